package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// settledFor is how long nothing may happen to a stream before its replicas are
// taken for level.
const settledFor = 300 * time.Millisecond

// AwaitLevel waits until all replicas of a stream know the same commit, and
// nothing more comes. Somebody must have ended the traffic.
func (c *Cluster) AwaitLevel(stream string) error {
	deadline := time.Now().Add(readyWithin)
	var last, now []admin.Stream
	var err error
	since := time.Now()
	for {
		if now, err = c.figures(stream); err == nil {
			level := !slices.ContainsFunc(now, func(s admin.Stream) bool { return s.CommittedLSN != now[0].CommittedLSN })
			if !level || len(last) == 0 || last[0].CommittedLSN != now[0].CommittedLSN {
				last, since = now, time.Now()
			}
			if level && time.Since(since) > settledFor {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("stream %s: the replicas are not level after %v: %w%s", stream, readyWithin, err, commits(now))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func commits(list []admin.Stream) (text string) {
	for _, s := range list {
		text += fmt.Sprintf("; commit %d, next offset %d", s.CommittedLSN, s.NextOffset)
	}
	return text
}

// figures are those of each replica, asked on its own node.
func (c *Cluster) figures(stream string) ([]admin.Stream, error) {
	var list []admin.Stream
	var names []string
	for _, n := range c.Nodes {
		if !n.Running() {
			return nil, fmt.Errorf("node %s does not run", n.Name)
		}
		body, err := n.Get("/api/v1/streams/%2F/" + stream)
		if err != nil {
			return nil, err
		}
		var s admin.Stream
		if err := json.Unmarshal(body, &s); err != nil {
			return nil, err
		}
		if len(names) == 0 {
			names = s.Replicas
		}
		if slices.Contains(names, n.Name) {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("stream %s has no replicas", stream)
	}
	return list, nil
}

// SameReplicas judges what the nodes' disks hold of streams, after the traffic
// has ended: it waits until the replicas are level, kills all nodes, and reads
// copies of their directories. On every replica user chunks are the same by
// their running digest, offsets are dense, and tracking is equal.
func (c *Cluster) SameReplicas(streams ...string) error {
	c.t.Helper()
	placed := map[string][]string{} // replicas' nodes by stream
	names := map[string]string{}    // incarnations by stream
	for _, stream := range streams {
		if err := c.AwaitLevel(stream); err != nil {
			return err
		}
		list, err := c.figures(stream)
		if err != nil {
			return err
		}
		placed[stream], names[stream] = list[0].Replicas, list[0].Incarnation
	}
	for _, n := range c.Nodes {
		n.Kill()
	}
	replicas := map[string]map[string]*Disk{}
	for _, n := range c.Nodes {
		disk, err := ReadDisk(c.t, n.DataDir)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		replicas[n.Name] = disk
	}
	var problems []error
	for _, stream := range streams {
		var first *Disk
		for _, node := range placed[stream] {
			d := replicas[node][names[stream]]
			switch {
			case d == nil:
				problems = append(problems, fmt.Errorf("stream %s: node %s has no replica", stream, node))
				continue
			case first == nil:
				first = d
			default:
				problems = append(problems, first.Same(d))
			}
			problems = append(problems, d.Problem)
		}
	}
	return errors.Join(problems...)
}

// Disk is one replica as its files say.
type Disk struct {
	Path       string
	Tail       chunk.Tail
	Digest     chunk.Digest
	First      chunk.Offset
	Next       chunk.Offset
	Chunks     int
	Offsets    map[string]tracking.Stored
	Publishers map[string]tracking.Sequence
	// Problem is what is wrong with it taken alone.
	Problem error
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
	store, err := segstore.NewStore(segstore.Options{Dir: to})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	found := map[string]*Disk{}
	for _, s := range store.List() {
		log, r, err := store.Open(s.Incarnation, segstore.Config{})
		if err != nil {
			return nil, err
		}
		d := readLog(log)
		d.Path = dir
		for _, damage := range r.Damage {
			d.Problem = errors.Join(d.Problem, damage)
		}
		found[s.Incarnation.String()] = d
	}
	return found, nil
}

func readLog(log *segstore.Log) *Disk {
	d := &Disk{
		Tail: log.Tail(), Digest: log.Digest(), First: log.First(), Next: log.Next(),
		Offsets: map[string]tracking.Stored{}, Publishers: map[string]tracking.Sequence{},
	}
	for ref, stored := range log.Tracking().Offsets() {
		d.Offsets[ref] = stored
	}
	for ref, sequence := range log.Tracking().Publishers() {
		d.Publishers[ref] = sequence
	}
	if !log.Tracking().Known() {
		d.Problem = errors.New("its tracking is not known")
	}
	reader := log.AttachLSN(log.LogStart().LSN)
	defer reader.Close()
	next := d.First
	for {
		v, ok, err := reader.Next(d.Tail.LSN)
		if err != nil {
			d.Problem = errors.Join(d.Problem, err)
			return d
		}
		if !ok {
			break
		}
		if h := v.Header; h.Type == chunk.User {
			if h.BaseOffset != next {
				d.Problem = errors.Join(d.Problem, fmt.Errorf("K2: chunk %d begins at offset %d where %d is due", h.LSN, h.BaseOffset, next))
			}
			next = h.Next()
			d.Chunks++
		}
		v.Release()
	}
	if next != d.Next {
		d.Problem = errors.Join(d.Problem, fmt.Errorf("K2: the chunks end at offset %d, and the log at %d", next, d.Next))
	}
	return d
}

// Same compares two replicas; log starts may differ.
func (d *Disk) Same(other *Disk) error {
	var problems []error
	differ := func(what string, a, b any) {
		problems = append(problems, fmt.Errorf("replicas differ in %s: %v in %s, %v in %s", what, a, d.Path, b, other.Path))
	}
	if d.Tail != other.Tail {
		differ("their tails", d.Tail, other.Tail)
	}
	if d.Digest != other.Digest || d.Next != other.Next {
		differ("the digest of user chunks", fmt.Sprintf("%x up to %d", uint64(d.Digest), d.Next), fmt.Sprintf("%x up to %d", uint64(other.Digest), other.Next))
	}
	if a, b := fmt.Sprint(strip(d.Offsets)), fmt.Sprint(strip(other.Offsets)); a != b {
		differ("stored offsets", a, b)
	}
	if a, b := fmt.Sprint(d.Publishers), fmt.Sprint(other.Publishers); a != b {
		differ("publishers' sequences", a, b)
	}
	return errors.Join(problems...)
}

// strip leaves what the fold of a log says: the offset with its place among all
// stores.
func strip(offsets map[string]tracking.Stored) map[string]tracking.Stored {
	out := map[string]tracking.Stored{}
	for ref, s := range offsets {
		s.Time = 0 // a snapshot may know of later refreshes
		out[ref] = s
	}
	return out
}

// AwaitFollowed waits until every replica of a stream knows a commit that is at
// least what any knew when it was called.
func (c *Cluster) AwaitFollowed(stream string) error {
	var most uint64
	var list []admin.Stream
	var err error
	for deadline := time.Now().Add(readyWithin); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if list, err = c.figures(stream); err != nil {
			continue
		}
		if most == 0 {
			for _, s := range list {
				most = max(most, s.CommittedLSN)
			}
		}
		if !slices.ContainsFunc(list, func(s admin.Stream) bool { return s.CommittedLSN < most }) {
			return nil
		}
	}
	return fmt.Errorf("stream %s: not all replicas follow up to chunk %d within %v: %w%s", stream, most, readyWithin, err, commits(list))
}
