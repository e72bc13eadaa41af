package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/wire"
)

// clientPatience is how long clients wait for an answer.
const clientPatience = 10 * time.Second

// TestOperators_noMajority: with two nodes of three gone, what a client wants made
// or deleted is answered with "not available" before the client gives up, on a
// connection that goes on; once the nodes are back the same call, sent again, is
// carried out. (EL-12)
func TestOperators_noMajority(t *testing.T) {
	o := newOperators(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, leads := range []bool{true, false} {
		at := fmt.Sprint(" ", leads)
		left := o.cluster.MetaLeader()
		if !leads {
			left = o.cluster.Others(left)[0]
		}
		calls := map[string]struct {
			call func(*client.Conn) error
			done wire.ResponseCode // what it says if an earlier attempt was carried out
		}{
			"create": {func(c *client.Conn) error { return c.Create(ctx, "new"+at, nil) }, wire.CodeStreamAlreadyExists},
			"delete": {func(c *client.Conn) error { return c.Delete(ctx, "old"+at) }, wire.CodeStreamDoesNotExist},
			"create super stream": {func(c *client.Conn) error {
				return c.CreateSuperStream(ctx, "new super"+at, []string{"new part" + at}, []string{"a"}, nil)
			}, wire.CodeStreamAlreadyExists},
			"delete super stream": {func(c *client.Conn) error { return c.DeleteSuperStream(ctx, "old super"+at) }, wire.CodeStreamDoesNotExist},
		}
		conns := map[string]*client.Conn{}
		for what := range calls {
			conn, err := client.Dial(ctx, client.Config{Addr: left.Stream, Name: what, Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conns[what] = conn
		}
		if err := conns["create"].Create(ctx, "old"+at, nil); err != nil {
			t.Fatal(err)
		}
		if err := conns["create"].CreateSuperStream(ctx, "old super"+at, []string{"old part" + at}, []string{"a"}, nil); err != nil {
			t.Fatal(err)
		}
		gone := o.cluster.Others(left)
		for _, n := range gone {
			n.Kill()
		}
		var all sync.WaitGroup
		for what, x := range calls {
			all.Go(func() {
				begin := time.Now()
				err := x.call(conns[what])
				if took := time.Since(begin); client.Code(err) != wire.CodeStreamNotAvailable || took > clientPatience {
					t.Errorf("%s without a majority%s: %v after %v", what, at, err, took)
				}
			})
		}
		all.Wait()
		o.cluster.Restart(gone...)
		for what, x := range calls {
			for {
				err := x.call(conns[what])
				if code := client.Code(err); code == wire.CodeOK || code == x.done {
					break
				} else if code != wire.CodeStreamNotAvailable || ctx.Err() != nil {
					t.Fatalf("%s with all nodes back%s: %v", what, at, err)
				}
			}
		}
		found, err := conns["create"].Metadata(ctx, "new"+at, "new part"+at, "old"+at, "old part"+at)
		if err != nil {
			t.Fatal(err)
		}
		for s := range found.Streams.All() {
			want := wire.CodeOK
			if s.Stream == "old"+at || s.Stream == "old part"+at {
				want = wire.CodeStreamDoesNotExist
			}
			if s.Code != want {
				t.Errorf("stream %q in the end: %v, want %v", s.Stream, s.Code, want)
			}
		}
	}
}
