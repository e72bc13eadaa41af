package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// TestPresence_await: who calls a node that is gone waits for its link, and for
// nothing else.
func TestPresence_await(t *testing.T) {
	const patience = time.Minute
	synctest.Test(t, func(t *testing.T) {
		p := newPresence(func(protocol.NodeID, catalog.Presence) {})
		quit := make(chan struct{})
		took := func(during func()) time.Duration {
			begin := time.Now()
			done := make(chan time.Duration, 2)
			for range cap(done) {
				go func() {
					p.await("n2", patience, quit)
					done <- time.Since(begin)
				}()
			}
			synctest.Wait()
			during()
			return max(<-done, <-done)
		}
		nothing := func() {}
		later := func(do func()) func() {
			return func() { time.Sleep(time.Second); do() }
		}
		for _, row := range []struct {
			name   string
			before func()
			during func()
			want   time.Duration
		}{
			{"unknown", nothing, nothing, 0},
			{"never linked", func() { p.expect("n2") }, nothing, 0},
			{"linked", func() { p.set("n2", true) }, nothing, 0},
			{"comes back", func() { p.set("n2", false) }, later(func() { p.set("n2", true) }), time.Second},
			{"stays away", func() { p.set("n2", false) }, nothing, patience},
			{"another comes", nothing, later(func() { p.set("n3", true) }), patience},
			{"is removed", nothing, later(func() { p.forget("n2") }), time.Second},
			{"raft stops", func() { p.set("n2", true); p.set("n2", false) }, later(func() { close(quit) }), time.Second},
		} {
			row.before()
			if got := took(row.during); got != row.want {
				t.Errorf("%s: waited %v, want %v", row.name, got, row.want)
			}
		}
	})
}
