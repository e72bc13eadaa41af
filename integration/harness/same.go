package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// SameReplicas judges all streams of the cluster after the traffic has ended, in
// the two ways in which a replica can be seen: it waits until the replicas are
// level, reads each of them as a client of its node, kills all nodes, and reads
// copies of their directories. On every replica, and in both views of it, user
// chunks are the same, offsets are dense from the log's start to its end, each
// chunk continues the running digest, and tracking is equal.
func (c *Cluster) SameReplicas() error {
	c.t.Helper()
	streams, err := c.streams()
	if err != nil {
		return err
	}
	seen := make([][]Copy, len(streams)) // a copy for each replica
	errs := make([]error, len(streams))
	turns := make(chan struct{}, lookedAtOnce)
	var all sync.WaitGroup
	for i, s := range streams {
		turns <- struct{}{}
		all.Go(func() {
			seen[i], errs[i] = c.look(s)
			<-turns
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		n.Kill()
	}
	disks := map[string]map[string]*Disk{}
	for _, n := range c.Nodes {
		if disks[n.Name], err = ReadDisk(c.t, n.DataDir); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	var problems []error
	for i, s := range streams {
		var replicas []*Disk
		for _, name := range s.Replicas {
			if d := disks[name][s.Incarnation]; d != nil {
				replicas = append(replicas, d)
			} else {
				problems = append(problems, fmt.Errorf("node %s has no replica", name))
			}
		}
		if err := errors.Join(append(problems, judgeReplicas(replicas, seen[i]))...); err != nil {
			return fmt.Errorf("stream %s: %w", s.Name, err)
		}
	}
	return nil
}

// lookedAtOnce bounds the streams that are looked at side by side; most of what
// one needs is waiting until it is surely level.
const lookedAtOnce = 16

// look waits until a stream's replicas are level, and reads each.
func (c *Cluster) look(s admin.Stream) (copies []Copy, err error) {
	if err := c.AwaitLevel(s.Name); err != nil {
		return nil, err
	}
	for _, name := range s.Replicas {
		copied, err := c.Named(name).readAsClient(s.Name)
		if err != nil {
			return nil, err
		}
		copies = append(copies, copied)
	}
	return copies, nil
}

// judgeReplicas compares all that was seen of one stream.
func judgeReplicas(disks []*Disk, seen []Copy) error {
	var problems []error
	for _, d := range disks {
		problems = append(problems, d.Problem, disks[0].Same(d))
	}
	for i := range seen {
		problems = append(problems, seen[i].Problem)
		if len(disks) > 0 {
			problems = append(problems, disks[0].SameMessages(&seen[i]))
		}
	}
	return errors.Join(problems...)
}

// streams lists all of the cluster's default virtual host.
func (c *Cluster) streams() (list []admin.Stream, err error) {
	for _, n := range c.Nodes {
		if n.Running() {
			err = n.Call("GET", "/api/v1/streams?vhost=%2F", nil, &list)
			return list, err
		}
	}
	return nil, errors.New("no node runs")
}

// readAsClient reads all that is committed on this node.
func (n *Node) readAsClient(stream string) (Copy, error) {
	body, err := n.Get("/api/v1/streams/%2F/" + stream + "?node=" + n.Name)
	if err != nil {
		return Copy{}, err
	}
	var s admin.Stream
	if err := json.Unmarshal(body, &s); err != nil {
		return Copy{}, err
	}
	return n.ReadCopy(stream, s.FirstOffset, s.NextOffset), nil
}

// Disk is one replica as its files say.
type Disk struct {
	Copy
	Tail       chunk.Tail
	Digest     chunk.Digest
	Offsets    map[string]tracking.Stored
	Publishers map[string]tracking.Sequence
	// Registration is the metadata's entry of the replica that the journal knows.
	Registration uint64
}

// ReadDisk reads the replicas in a copy of a stopped node's data directory, by
// their incarnations.
func ReadDisk(t testing.TB, dir string) (map[string]*Disk, error) {
	to := filepath.Join(t.TempDir(), "copy")
	for _, part := range []string{"streams", "journal"} {
		if err := os.CopyFS(filepath.Join(to, part), os.DirFS(filepath.Join(dir, part))); err != nil {
			return nil, fmt.Errorf("copy the data directory: %w", err)
		}
	}
	found := map[string]*Disk{}
	if err := readLogs(to, dir, found); err != nil {
		return nil, err
	}
	// The store has cut what a kill tore; what is left must be good to the bit.
	for incarnation, d := range found {
		folders, err := Folders(to, "*-"+incarnation)
		if err != nil || len(folders) != 1 {
			return nil, fmt.Errorf("folders of %s: %v, %w", incarnation, folders, err)
		}
		var inc chunk.Incarnation
		if err := inc.UnmarshalText([]byte(incarnation)); err != nil {
			return nil, err
		}
		v, err := segstore.VerifyDir(vfs.OS{}, folders[0], inc)
		if err != nil {
			return nil, err
		}
		for _, p := range v.Problems {
			d.fail("%w", p)
		}
	}
	return found, nil
}

func readLogs(dir, where string, found map[string]*Disk) error {
	store, err := segstore.NewStore(segstore.Options{Dir: dir})
	if err != nil {
		return err
	}
	defer store.Close()
	for _, s := range store.List() {
		log, r, err := store.Open(s.Incarnation, segstore.Config{})
		if err != nil {
			return err
		}
		d := readLog(log, "in "+where)
		for _, damage := range r.Damage {
			d.fail("%w", damage)
		}
		state, _ := store.Journal().State(s.Incarnation)
		d.Registration = uint64(state.Registration)
		found[s.Incarnation.String()] = d
	}
	return nil
}

func readLog(log *segstore.Log, where string) *Disk {
	d := &Disk{
		Copy: newCopy(where, log.First()), Tail: log.Tail(), Digest: log.Digest(),
		Offsets: map[string]tracking.Stored{}, Publishers: map[string]tracking.Sequence{},
	}
	for ref, stored := range log.Tracking().Offsets() {
		stored.Time = 0 // a snapshot may know of later refreshes
		d.Offsets[ref] = stored
	}
	for ref, sequence := range log.Tracking().Publishers() {
		d.Publishers[ref] = sequence
	}
	if !log.Tracking().Known() {
		d.fail("its tracking is not known")
	}
	digest := log.LogStart().Digest
	reader := log.AttachLSN(log.LogStart().LSN)
	defer reader.Close()
	for {
		v, ok, err := reader.Next(d.Tail.LSN)
		if err != nil {
			d.fail("%w", err)
			return d
		}
		if !ok {
			break
		}
		if h := v.Header; h.Type == chunk.User {
			d.add(&h)
			if h.DigestBefore != digest {
				d.fail("chunk %d continues digest %v, and %v is before it", h.LSN, h.DigestBefore, digest)
			}
			digest = h.DigestAfter()
		}
		v.Release()
	}
	if d.Next != log.Next() || digest != d.Digest {
		d.fail("K2: the chunks end at offset %d with digest %v, and the log at %d with %v", d.Next, digest, log.Next(), d.Digest)
	}
	return d
}

// Same compares two replicas; log starts may differ.
func (d *Disk) Same(other *Disk) error {
	problems := []error{d.SameMessages(&other.Copy)}
	differ := func(what string, a, b any) {
		problems = append(problems, fmt.Errorf("replicas differ in %s: %v %s, %v %s", what, a, d.Where, b, other.Where))
	}
	if d.Tail != other.Tail {
		differ("their tails", d.Tail, other.Tail)
	}
	if d.Digest != other.Digest {
		differ("the digest of user chunks", d.Digest, other.Digest)
	}
	if a, b := fmt.Sprint(d.Offsets), fmt.Sprint(other.Offsets); a != b {
		differ("stored offsets", a, b)
	}
	if a, b := fmt.Sprint(d.Publishers), fmt.Sprint(other.Publishers); a != b {
		differ("publishers' sequences", a, b)
	}
	return errors.Join(problems...)
}
