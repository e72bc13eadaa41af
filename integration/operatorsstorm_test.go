package integration

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
)

// TestOperators_storm: a thousand clients that log in at once, as after a restart,
// with a password that costs 40 ms of a core to prove, all get in, and the node
// answers others meanwhile. Those that too many others keep out try again.
func TestOperators_storm(t *testing.T) {
	if os.Getenv("OPERATORS") == "" {
		t.Skip("a thousand clients take long; make operators-test has them")
	}
	const clients = 1000
	n := harness.Start(t)
	if status, answer, err := n.Send("POST", "/api/v1/users", map[string]any{"name": "ann", "password": "secret of ann"}); err != nil || status != 201 {
		t.Fatalf("%d %s (%v)", status, answer, err)
	}
	if status, answer, err := n.Send("PUT", "/api/v1/permissions/%2F/ann", map[string]any{"read": ".*"}); err != nil || status != 204 {
		t.Fatalf("%d %s (%v)", status, answer, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	begin := time.Now()
	var dialing sync.WaitGroup
	var tries atomic.Int64
	conns := make([]*client.Conn, clients)
	for i := range conns {
		dialing.Go(func() {
			for ctx.Err() == nil {
				tries.Add(1)
				conn, err := client.Dial(ctx, client.Config{Addr: n.Stream, User: "ann", Password: "secret of ann"})
				if err == nil {
					conns[i] = conn
					return
				}
			}
		})
	}
	all := make(chan struct{})
	go func() { dialing.Wait(); close(all) }()
	var slowest time.Duration
	for in := false; !in; {
		asked := time.Now()
		if _, err := n.Get("/api/v1/status"); err != nil {
			t.Fatalf("meanwhile the node does not answer: %v", err)
		}
		slowest = max(slowest, time.Since(asked))
		select {
		case <-all:
			in = true
		default:
		}
	}
	took := time.Since(begin)
	for i, conn := range conns {
		if conn == nil {
			t.Fatalf("client %d is not in after %s", i, took)
		}
		conn.Abort()
	}
	t.Logf("FIGURE login storm: %d clients with one password at once are in after %d ms (%d tries); the HTTP API answers within %d ms meanwhile",
		clients, took.Milliseconds(), tries.Load(), slowest.Milliseconds())
}
