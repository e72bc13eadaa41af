package integration

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
)

// written is a node with a stream "orders" of a few confirmed messages.
func written(t *testing.T) (*harness.Node, *harness.Ledger) {
	t.Helper()
	n, ledger := harness.Start(t), harness.NewLedger()
	conn := dialNode(t, n)
	defer conn.Close()
	if err := conn.Create(t.Context(), "orders", nil); err != nil {
		t.Fatal(err)
	}
	publishMore(t, conn, ledger, 1, 500)
	return n, ledger
}

func dialNode(t *testing.T, n *harness.Node) *client.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), usableWithin)
	defer cancel()
	conn, err := client.Dial(ctx, client.Config{Addr: n.Stream, Name: "integration"})
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	return conn
}

// publishMore publishes and confirms messages as a producer of its own.
func publishMore(t *testing.T, conn *client.Conn, ledger *harness.Ledger, producer uint32, messages uint64) {
	t.Helper()
	pub, err := conn.DeclarePublisher(t.Context(), client.PublisherConfig{
		Stream: "orders",
		Confirmed: func(ids []uint64) {
			for _, id := range ids {
				ledger.Confirmed(producer, id)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for counter := uint64(1); counter <= messages; counter++ {
		ledger.Sent(producer, counter)
		if err := pub.Send(counter, harness.AppendMessage(nil, producer, counter, 100)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), usableWithin)
	defer cancel()
	if err := pub.Drain(ctx); err != nil {
		t.Fatalf("publish: %v", err)
	}
	if err := pub.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// check reads the whole stream and holds it against the ledger.
func check(t *testing.T, n *harness.Node, ledger *harness.Ledger, when string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), usableWithin)
	defer cancel()
	conn := dialNode(t, n)
	defer conn.Close()
	stats, err := conn.Stats(ctx, "orders")
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	reading, err := readAll(ctx, conn, "orders", uint64(stats["committed_offset"]+1), ledger)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if err := reading.End(); err != nil {
		t.Errorf("%s: %v", when, err)
	}
}

func TestNode_stopsInOrder(t *testing.T) {
	n, ledger := written(t)
	conn := dialNode(t, n)
	if err := conn.StoreOffset("reader", "orders", 123); err != nil {
		t.Fatal(err)
	}
	if got, err := conn.QueryOffset(t.Context(), "reader", "orders"); err != nil || got != 123 {
		t.Fatalf("stored offset %d, %v", got, err)
	}
	if code := n.Stop(); code != 0 {
		t.Errorf("SIGTERM ends the node with %d", code)
	}
	n.Restart()
	check(t, n, ledger, "after SIGTERM")
	again := dialNode(t, n)
	defer again.Close()
	if got, err := again.QueryOffset(t.Context(), "reader", "orders"); err != nil || got != 123 {
		t.Errorf("after SIGTERM the stored offset is %d, %v: a clean stop flushes all", got, err)
	}
}

func TestNode_goesOnAfterAPause(t *testing.T) {
	t.Parallel()
	n, ledger := written(t)
	conn := dialNode(t, n)
	defer conn.Close()
	n.Pause()
	paused := make(chan struct{})
	time.AfterFunc(500*time.Millisecond, func() {
		n.Continue()
		close(paused)
	})
	publishMore(t, conn, ledger, 2, 500)
	<-paused
	check(t, n, ledger, "after a pause")
}

// TestNode_garbageBehindTheTail: what a power loss may leave behind the last
// chunk is cut, and stays cut: the fault that this is about showed at the second
// start only.
func TestNode_garbageBehindTheTail(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		garbage []byte
	}{{"zeros", make([]byte, 4096)}, {"text", []byte("this is no chunk")}} {
		t.Run(row.name, func(t *testing.T) {
			n, ledger := written(t)
			n.Kill()
			segments := n.Segments()
			if len(segments) != 1 {
				t.Fatalf("%d segments", len(segments))
			}
			if err := harness.Extend(segments[0], row.garbage); err != nil {
				t.Fatal(err)
			}
			n.Restart()
			check(t, n, ledger, "after the first start")
			conn := dialNode(t, n)
			publishMore(t, conn, ledger, 2, 500)
			conn.Close()
			if code := n.Stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			n.Restart()
			check(t, n, ledger, "after the second start")
		})
	}
}

// TestNode_managementClosesSockets: an operator's DELETE ends the client's
// connection, and the list tells so.
func TestNode_managementClosesSockets(t *testing.T) {
	n := harness.Start(t)
	conn := dialNode(t, n)
	defer conn.Close()
	list := func() (names []string) {
		t.Helper()
		var all []struct {
			Name             string            `json:"name"`
			ClientProperties map[string]string `json:"client_properties"`
		}
		if err := json.Unmarshal(manage(t, n, http.MethodGet, "/api/connections/", http.StatusOK), &all); err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if c.ClientProperties["connection_name"] != "integration" {
				t.Errorf("connection_name is %q", c.ClientProperties["connection_name"])
			}
			names = append(names, c.Name)
		}
		return names
	}
	names := list()
	if len(names) != 1 {
		t.Fatalf("connections: %v", names)
	}
	path := "/api/connections/" + url.PathEscape(names[0])
	manage(t, n, http.MethodGet, path, http.StatusOK)
	manage(t, n, http.MethodDelete, path, http.StatusNoContent)
	select {
	case <-conn.Done():
	case <-time.After(usableWithin):
		t.Fatal("the socket is still open")
	}
	eventually(t, "the connection leaves the list", func() bool { return len(list()) == 0 })
	manage(t, n, http.MethodGet, path, http.StatusNotFound)
}

// TestNode_newVirtualHostIsOpenAtOnce: a client may open what it just created,
// without a permission call in between.
func TestNode_newVirtualHostIsOpenAtOnce(t *testing.T) {
	t.Parallel()
	n := harness.Start(t)
	manage(t, n, http.MethodPut, "/api/vhosts/new%2Fone", http.StatusCreated)
	cfg := client.Config{Addr: n.Stream, VirtualHost: "new/one"}
	conn, err := client.Dial(t.Context(), cfg)
	if err != nil {
		t.Fatalf("open the new virtual host: %v", err)
	}
	if err := conn.Create(t.Context(), "orders", nil); err != nil {
		t.Errorf("create in the new virtual host: %v", err)
	}
	conn.Close()
	manage(t, n, http.MethodDelete, "/api/vhosts/new%2Fone", http.StatusNoContent)
	if conn, err := client.Dial(t.Context(), cfg); err == nil {
		conn.Close()
		t.Error("a deleted virtual host can be opened")
	}
}

// manage calls the management port as guest and wants the status.
func manage(t *testing.T, n *harness.Node, method, path string, want int) []byte {
	t.Helper()
	status, body, err := n.Manage(method, path)
	if err != nil {
		t.Fatal(err)
	}
	if status != want {
		t.Fatalf("%s %s answers %d, want %d: %s", method, path, status, want, body)
	}
	return body
}

// eventually waits for a condition, and fails the test when it does not come.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	giveUp := time.After(usableWithin)
	for !is() {
		select {
		case <-tick.C:
		case <-giveUp:
			t.Fatalf("%s: not within %v", what, usableWithin)
		}
	}
}
