package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// TestOperators_access: users, permissions and virtual hosts that one node is
// told hold on all of them, for who is connected there too.
func TestOperators_access(t *testing.T) {
	o := newOperators(t, "--stream-failed-login-delay", "20ms")
	at := func(i int) *harness.Node { return o.cluster.Nodes[i] }
	do := func(node int, method, path string, body any) {
		t.Helper()
		if status, answer, err := at(node).Send(method, path, body); err != nil || status >= 300 {
			t.Fatalf("%s %s on node %d: %d %s (%v)", method, path, node+1, status, answer, err)
		}
	}
	do(0, "POST", "/api/v1/vhosts", map[string]any{"name": "shop"})
	do(1, "POST", "/api/v1/users", map[string]any{"name": "ann", "password": "secret of ann"})
	do(2, "PUT", "/api/v1/permissions/shop/ann", map[string]any{"configure": ".*", "write": ".*", "read": ".*"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	login := func(i int) (*client.Conn, error) {
		return client.Dial(ctx, client.Config{Addr: at(i).Stream, User: "ann", Password: "secret of ann", VirtualHost: "shop"})
	}
	// A node may know of a change a moment later than the one that was told.
	open := func(i int) *client.Conn {
		t.Helper()
		for {
			conn, err := login(i)
			if err == nil {
				t.Cleanup(conn.Abort)
				return conn
			}
			if code := client.Code(err); ctx.Err() != nil || code != wire.CodeAuthenticationFailure && code != wire.CodeVirtualHostAccessFailure {
				t.Fatalf("node %d: %v", i+1, err)
			}
		}
	}
	var conns []*client.Conn
	for i := range 3 {
		conns = append(conns, open(i))
	}
	if err := conns[0].Create(ctx, "orders", nil); err != nil {
		t.Fatal(err)
	}
	ended := func(why string) {
		t.Helper()
		for i, conn := range conns {
			select {
			case <-conn.Done():
			case <-ctx.Done():
				t.Fatalf("node %d: still connected after %s", i+1, why)
			}
			if _, err := login(i); err == nil {
				t.Errorf("node %d: let in after %s", i+1, why)
			}
		}
	}
	do(1, "DELETE", "/api/v1/permissions/shop/ann", nil)
	ended("the permission was taken away")
	do(0, "PUT", "/api/v1/permissions/shop/ann", map[string]any{"read": ".*"})
	for i := range conns {
		conns[i] = open(i)
		if err := conns[i].Create(ctx, fmt.Sprint("more-", i), nil); client.Code(err) != wire.CodeAccessRefused {
			t.Errorf("node %d: a create without the right: %v", i+1, err)
		}
	}
	do(2, "DELETE", "/api/v1/users/ann", nil)
	ended("the user was deleted")
	do(1, "DELETE", "/api/v1/vhosts/shop", nil)
	for left := "?"; left != "[]"; {
		text, err := at(2).Get("/api/v1/streams")
		if err != nil || ctx.Err() != nil {
			t.Fatalf("streams of a deleted virtual host are left: %s (%v)", left, err)
		}
		left = strings.TrimSpace(string(text))
	}
}
