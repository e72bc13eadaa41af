package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
)

// guestHash is of the password "guest".
const guestHash = "$rabbit-sha256$AAAAAPEoQ8a3jY6DABRiJzkoKooQbXiBp2iGLke7d+FVKzJx"

func TestOpen_foundsACluster(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, newReplicas(newDisk(), 1))
	v := c.View()
	if _, ok := v.VHost("/"); !ok {
		t.Error("no virtual host")
	}
	if u, ok := v.User("guest"); !ok || u.Tags[0] != "administrator" || !v.Allowed("/", "guest", catalog.Write, "any") {
		t.Errorf("user %+v", u)
	}
	n, ok := v.Node("n1")
	if !ok || n.Endpoints.Stream != "localhost:5552" || n.Disk == "" {
		t.Errorf("node %+v", n)
	}
	b, err := os.ReadFile(filepath.Join(dir, "node.json"))
	if err != nil {
		t.Fatal(err)
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil || id.Node != "n1" || id.Cluster != c.ID() || id.Disk != n.Disk || id.Founding {
		t.Errorf("identity %s: %v", b, err)
	}
}

func TestCreateStream_returnsWhenTheLeaderLeads(t *testing.T) {
	r := newReplicas(newDisk(), 7)
	c := open(t, t.TempDir(), r)
	create(t, c, "or\r\nders")
	s, ok := c.View().Stream("/", "orders")
	if !ok || s.Leader.Node != "n1" || s.Leader.Run != 7 || s.Epoch != 1 || s.Creator != "guest" {
		t.Fatalf("stream %+v", s)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leads[s.Incarnation] != 1 {
		t.Error("the create returned before the leader was told")
	}
}

func TestCreateStream_refuses(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	ctx := within(t)
	create(t, c, "s")
	aged, _ := catalog.ParseArguments(map[string]string{"max-age": "1h"})
	for _, row := range []struct {
		name    string
		request CreateStream
		want    error
	}{
		{"again", CreateStream{VHost: "/", Name: "s"}, catalog.ErrStreamExists},
		{"again with a line break", CreateStream{VHost: "/", Name: "s\n"}, catalog.ErrStreamExists},
		{"other arguments", CreateStream{VHost: "/", Name: "s", Arguments: aged}, catalog.ErrStreamDiffers},
		{"no name", CreateStream{VHost: "/"}, catalog.ErrBadArgument},
		{"no virtual host", CreateStream{VHost: "x", Name: "s"}, catalog.ErrVHostMissing},
	} {
		if err := c.CreateStream(ctx, row.request); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", row.name, err, row.want)
		}
	}
	if n := c.View().StreamCount(); n != 1 {
		t.Errorf("%d streams", n)
	}
}

func TestDeleteStream_freesTheName(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	ctx := within(t)
	create(t, c, "s")
	first, _ := c.View().Stream("/", "s")
	if err := c.DeleteStream(ctx, "/", "s"); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteStream(ctx, "/", "s"); !errors.Is(err, catalog.ErrStreamMissing) {
		t.Errorf("deleted twice: %v", err)
	}
	create(t, c, "s")
	if second, _ := c.View().Stream("/", "s"); second.Incarnation == first.Incarnation {
		t.Error("the new life has the old incarnation")
	}
}

// A stream without a leader in time is taken back, so that its name is free.
func TestCreateStream_leavesNothingBehind(t *testing.T) {
	r := newReplicas(newDisk(), 1)
	c := open(t, t.TempDir(), r)
	r.fail("s", errors.New("disk is full"))
	ctx, cancel := context.WithCancel(within(t))
	go func() {
		defer cancel()
		eventually(t, c, "the stream is made", func(v *catalog.State) bool { return v.StreamCount() == 1 })
	}()
	if err := c.CreateStream(ctx, CreateStream{VHost: "/", Name: "s"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("create: %v", err)
	}
	if n := c.View().StreamCount(); n != 0 {
		t.Errorf("%d streams are left", n)
	}
	r.fail("s", nil)
	create(t, c, "s")
}

// What is made when nobody waits for it any more is taken back; what was answered
// stays, whatever becomes of who asked.
func TestCreateStream_forNobody(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	ctx, cancel := context.WithCancel(t.Context())
	var batch []*creation
	for _, name := range []string{"wanted", "forsaken"} {
		batch = append(batch, &creation{ctx: ctx, answered: make(chan struct{}), request: CreateStream{
			VHost: "/", Name: name, Local: c.config.Node, Incarnation: drawIncarnation(),
		}})
	}
	c.createBatch(batch)
	if n := c.View().StreamCount(); n != 2 {
		t.Fatalf("%d streams are made", n)
	}
	batch[1].over.Store(true) // as ask does
	c.hand(batch)
	cancel()
	if _, ok := c.View().Stream("/", "wanted"); !ok || c.View().StreamCount() != 1 {
		t.Errorf("%d streams are left; the one that is wanted: %v", c.View().StreamCount(), ok)
	}
	given := &creation{ctx: ctx, answered: make(chan struct{}), request: batch[1].request}
	c.createBatch([]*creation{given})
	if !errors.Is(given.err, ErrUnavailable) || c.View().StreamCount() != 1 {
		t.Errorf("a create that was given up before: %v, %d streams", given.err, c.View().StreamCount())
	}
}

// A fence that fails is asked again until it succeeds.
func TestCreateStream_survivesFailedFences(t *testing.T) {
	r := newReplicas(newDisk(), 1)
	c := open(t, t.TempDir(), r)
	r.fail("s", errors.New("not now"))
	done := make(chan error, 1)
	go func() { done <- c.CreateStream(within(t), CreateStream{VHost: "/", Name: "s"}) }()
	eventually(t, c, "the stream is made", func(v *catalog.State) bool { return v.StreamCount() == 1 })
	for {
		if fences, _ := r.calls(); fences >= 3 {
			break
		}
		waitForCall(t, r)
	}
	r.fail("s", nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// waitForCall waits for the next fence; the coordinator's own pauses are what
// passes the time.
func waitForCall(t *testing.T, r *replicas) {
	t.Helper()
	before, _ := r.calls()
	ctx := within(t)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if now, _ := r.calls(); now > before {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("no further fence")
		}
	}
}

func TestOpen_againFindsAll(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	c := open(t, dir, newReplicas(d, 1))
	for i := range 20 {
		create(t, c, fmt.Sprintf("s%d", i))
	}
	if err := c.PutUser(within(t), catalog.User{Name: "ada", Hash: guestHash}); err != nil {
		t.Fatal(err)
	}
	id, before := c.ID(), c.View().Encode()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}

	r := newReplicas(d, 2) // every replica has another run
	c = open(t, dir, r)
	if c.ID() != id {
		t.Error("the cluster has another id")
	}
	if err := c.AwaitLeaders(within(t)); err != nil {
		t.Fatal(err)
	}
	fences, installs := r.calls()
	if fences != 1 || installs != 2 {
		t.Errorf("%d fences and %d installations for 20 streams, want one batch and one question before", fences, installs)
	}
	for s := range c.View().Streams() {
		if s.Epoch != 2 || s.Leader.Run != 2 {
			t.Errorf("stream %s is at epoch %d by run %d", s.Name, s.Epoch, s.Leader.Run)
		}
	}
	if _, ok := c.View().User("ada"); !ok || c.View().StreamCount() != 20 {
		t.Errorf("not all was found; before: %s", before)
	}
}

// Kept by kill -9 as by Close: what was answered is on disk.
func TestOpen_afterAKill(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	c := open(t, dir, newReplicas(d, 1))
	create(t, c, "s")
	copied := t.TempDir() // the files as they are, without a stop
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	c = open(t, copied, newReplicas(d, 2))
	if err := c.AwaitLeaders(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.View().Stream("/", "s"); !ok {
		t.Error("the stream is forgotten")
	}
}

// A founding that was cut short is finished by the next start.
func TestOpen_finishesAFounding(t *testing.T) {
	for _, step := range []string{"identity only", "raft is empty", "commands in part"} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			id, err := openIdentity(dir, "n1", false)
			if err != nil {
				t.Fatal(err)
			}
			switch step {
			case "raft is empty":
				s, err := openStore(dir, nullLog, func(error) {})
				if err != nil {
					t.Fatal(err)
				}
				s.close()
			case "commands in part":
				c := open(t, dir, newReplicas(newDisk(), 1))
				if err := c.DeleteUser(within(t), "guest"); err != nil {
					t.Fatal(err)
				}
				c.Close()
				id.Founding = true
				if err := id.write(dir); err != nil {
					t.Fatal(err)
				}
			}
			c := open(t, dir, newReplicas(newDisk(), 1))
			if _, ok := c.View().User("guest"); !ok || c.ID() != id.Cluster {
				t.Error("the founding is not finished")
			}
		})
	}
}

func TestOpen_refusesWhatDoesNotFit(t *testing.T) {
	for _, row := range []struct {
		name   string
		spoil  func(dir string) error
		reason string
	}{
		{"another name", func(dir string) error {
			return rewriteIdentity(dir, func(id *identity) { id.Node = "n2" })
		}, `belongs to node "n2"`},
		{"a later format", func(dir string) error {
			return rewriteIdentity(dir, func(id *identity) { id.Format = 2 })
		}, "upgrade this node"},
		{"no cluster", func(dir string) error {
			return rewriteIdentity(dir, func(id *identity) { id.Cluster = "" })
		}, "lacks"},
		{"not JSON", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, identityFile), []byte("x"), 0o600)
		}, "can't be read"},
		{"identity gone", func(dir string) error { return os.Remove(filepath.Join(dir, identityFile)) }, "is there but node.json is not"},
		{"raft gone", func(dir string) error { return os.RemoveAll(filepath.Join(dir, raftFolder)) }, "is empty"},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			open(t, dir, newReplicas(newDisk(), 1)).Close()
			if err := row.spoil(dir); err != nil {
				t.Fatal(err)
			}
			c, err := Open(context.Background(), Config{Dir: dir, Node: "n1", Fencer: newReplicas(newDisk(), 1)})
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), row.reason) {
				t.Errorf("error %v, want one about %q", err, row.reason)
			}
		})
	}
}

func rewriteIdentity(dir string, f func(*identity)) error {
	id, err := openIdentity(dir, "n1", false)
	if err != nil {
		return err
	}
	f(&id)
	return id.write(dir)
}

func TestOpen_refusesAStoreInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, newReplicas(newDisk(), 1))
	if _, err := Open(context.Background(), Config{Dir: dir, Node: "n1", Fencer: newReplicas(newDisk(), 1)}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second node on the same directory: %v", err)
	}
}

func TestLeaderOver_givesANewEpoch(t *testing.T) {
	r := newReplicas(newDisk(), 1)
	c := open(t, t.TempDir(), r)
	create(t, c, "s")
	s, _ := c.View().Stream("/", "s")
	c.LeaderOver(s.Incarnation, 1)
	eventually(t, c, "epoch 2 has a leader", func(v *catalog.State) bool {
		s, _ := v.Stream("/", "s")
		return s.Epoch == 2 && s.Led()
	})
	c.LeaderOver(s.Incarnation, 1) // old news
	if err := c.AwaitLeaders(within(t)); err != nil {
		t.Fatal(err)
	}
	if s, _ := c.View().Stream("/", "s"); s.Epoch != 2 {
		t.Errorf("epoch %d", s.Epoch)
	}
}

// What was deleted is known behind a restart too, as far as raft's log goes; what
// never was, is not called deleted.
func TestDeleted_behindARestart(t *testing.T) {
	dir, disk := t.TempDir(), newDisk()
	c := open(t, dir, newReplicas(disk, 1))
	create(t, c, "s")
	create(t, c, "kept")
	s, _ := c.View().Stream("/", "s")
	kept, _ := c.View().Stream("/", "kept")
	if c.Deleted(s.Incarnation) {
		t.Error("deleted before it was")
	}
	if err := c.DeleteStream(within(t), "/", "s"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = open(t, dir, newReplicas(disk, 2))
	if err := c.Current(within(t)); err != nil {
		t.Fatal(err)
	}
	if !c.Deleted(s.Incarnation) || c.Deleted(kept.Incarnation) || c.Deleted(s.Incarnation+1) {
		t.Errorf("deleted: %v, one that is there: %v, one that never was: %v",
			c.Deleted(s.Incarnation), c.Deleted(kept.Incarnation), c.Deleted(s.Incarnation+1))
	}
}

func TestSubscribe_tellsInOrder(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	var mu sync.Mutex
	var story []string
	last := map[chunk.Incarnation]*catalog.Stream{}
	cancel := c.Subscribe(func(changes []catalog.Change) {
		mu.Lock()
		defer mu.Unlock()
		for _, x := range changes {
			switch {
			case x.Kind != catalog.StreamChanged:
				continue
			case x.Stream == nil:
				story = append(story, "gone")
			case x.Before == nil:
				story = append(story, "new")
			case x.Stream.Led():
				story = append(story, "led")
			}
			if x.Before != nil && last[x.Before.Incarnation] != x.Before {
				t.Error("a change was left out")
			}
			if x.Stream != nil {
				last[x.Stream.Incarnation] = x.Stream
				if shown, ok := c.View().Incarnation(x.Stream.Incarnation); !ok || shown.Epoch < x.Stream.Epoch {
					t.Error("told before it is shown")
				}
			}
		}
	})
	create(t, c, "s")
	if err := c.DeleteStream(within(t), "/", "s"); err != nil {
		t.Fatal(err)
	}
	cancel()
	create(t, c, "unheard")
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(story, " "); got != "new led gone" {
		t.Errorf("told %q", got)
	}
}

// Creates from many clients at once: each name once, all led, and the commands
// are shared.
func TestCreateStream_manyAtOnce(t *testing.T) {
	r := newReplicas(newDisk(), 1)
	c := open(t, t.TempDir(), r)
	const streams, clients = 300, 16
	names := make(chan string)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for name := range names {
				if err := c.CreateStream(within(t), CreateStream{VHost: "/", Name: name}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	begin := time.Now()
	for i := range streams {
		names <- fmt.Sprintf("s%d", i)
	}
	close(names)
	wg.Wait()
	t.Logf("%d creates with %d in flight in %s", streams, clients, time.Since(begin))
	for s := range c.View().Streams() {
		if !s.Led() || s.Epoch != 1 {
			t.Errorf("stream %s: %+v", s.Name, s)
		}
	}
	if n := c.View().StreamCount(); n != streams {
		t.Errorf("%d streams", n)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for what, n := range r.installed {
		if n != 1 {
			t.Errorf("leader of %s was started %d times", what, n)
		}
	}
	if r.fences > streams/2 {
		t.Errorf("%d fences for %d streams: they are not collected", r.fences, streams)
	}
}

func TestSuperStream_isMadeWithItsLeaders(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	ctx := within(t)
	request := NewSuperStream{VHost: "/", Name: "super", Partitions: []catalog.Partition{{Stream: "super-0", Key: "0"}, {Stream: "super-1", Key: "1"}}}
	if err := c.CreateSuperStream(ctx, request); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"super-0", "super-1"} {
		if s, ok := c.View().Stream("/", name); !ok || !s.Led() || s.Arguments != (catalog.Arguments{}) {
			t.Errorf("partition %+v", s)
		}
	}
	if err := c.CreateSuperStream(ctx, request); !errors.Is(err, catalog.ErrSuperStreamExists) {
		t.Errorf("again: %v", err)
	}
	if err := c.DeleteSuperStream(ctx, "/", "super"); err != nil || c.View().StreamCount() != 0 {
		t.Errorf("delete: %v, %d streams left", err, c.View().StreamCount())
	}
}

func TestAccess_calls(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	ctx := within(t)
	if err := errors.Join(
		c.CreateVHost(ctx, "guest", "v"),
		c.PutUser(ctx, catalog.User{Name: "ada", Hash: ""}),
		c.SetPermission(ctx, catalog.SetPermission{VHost: "v", User: "ada", Read: "^a"}),
	); err != nil {
		t.Fatal(err)
	}
	v := c.View()
	if !v.Allowed("v", "guest", catalog.Configure, "x") || !v.Allowed("v", "ada", catalog.Read, "abc") || v.Allowed("v", "ada", catalog.Write, "abc") {
		t.Error("permissions")
	}
	if err := c.PutUser(ctx, catalog.User{Name: "bob", Hash: "plain text"}); !errors.Is(err, ErrBadHash) {
		t.Errorf("a password in place of its hash: %v", err)
	}
	if err := errors.Join(c.ClearPermission(ctx, "v", "ada"), c.DeleteUser(ctx, "ada"), c.DeleteVHost(ctx, "v")); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateVHost(ctx, "guest", "/"); !errors.Is(err, catalog.ErrVHostExists) {
		t.Errorf("again: %v", err)
	}
}

func TestClosed_answers(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateStream(within(t), CreateStream{VHost: "/", Name: "s"}); !errors.Is(err, ErrStopped) {
		t.Errorf("create: %v", err)
	}
	if err := c.DeleteUser(within(t), "guest"); !errors.Is(err, ErrStopped) {
		t.Errorf("delete: %v", err)
	}
	if _, ok := c.View().Node("n1"); !ok {
		t.Error("the view is gone")
	}
}
