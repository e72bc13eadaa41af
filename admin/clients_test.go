package admin

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// clientOf is the name of the client at a port, as its node has it.
func clientOf(port int) string { return fmt.Sprintf("10.0.0.9:%d -> 10.0.0.1:5552", port) }

// crowd is a pair with clients: 1 on n1, 2 and 3 on n2; n3 does not answer.
func crowd(t *testing.T) *pair {
	t.Helper()
	p := newPair(t)
	for port, h := range map[int]*house{1: p.house, 2: p.n2, 3: p.n2} {
		name := clientOf(port)
		h.sessions[name] = Connection{Name: name, VHost: "/"}
		at := AtStream{Stream: "s", VHost: "/", Connection: name}
		h.publishers = append(h.publishers, Publisher{AtStream: at, Published: uint64(port)})
		h.consumers = append(h.consumers, Consumer{AtStream: at, Consumed: uint64(port)})
	}
	return p
}

// TestClients_ofAllNodes: whichever node is asked, the list has the clients of
// all, says where each is, and names the nodes that did not answer.
func TestClients_ofAllNodes(t *testing.T) {
	where := []string{"n1 " + clientOf(1), "n2 " + clientOf(2), "n2 " + clientOf(3)}
	for _, row := range []struct {
		query   string
		want    []string
		unknown string
		asked   int
	}{
		{"", where, "n3: ", 2},
		{"?node=n1", where[:1], "", 0},
		{"?node=n2", where[1:], "", 1},
		{"?node=n3", nil, "n3: ", 1},
	} {
		for path, list := range map[string]func(string) ([]string, []string){
			"/api/v1/connections": func(body string) (list, unknown []string) {
				a := decode[Across[Connection]](t, body)
				for _, c := range a.Items {
					list = append(list, c.Node+" "+c.Name)
				}
				return list, a.Unknown
			},
			"/api/v1/publishers": func(body string) (list, unknown []string) {
				a := decode[Across[Publisher]](t, body)
				for _, c := range a.Items {
					list = append(list, c.Node+" "+c.Connection)
				}
				return list, a.Unknown
			},
			"/api/v1/consumers": func(body string) (list, unknown []string) {
				a := decode[Across[Consumer]](t, body)
				for _, c := range a.Items {
					list = append(list, c.Node+" "+c.Connection)
				}
				return list, a.Unknown
			},
		} {
			p := crowd(t)
			res, body := call(t, p.server().Handler(), "watcher", "GET", path+row.query, nil)
			got, unknown := list(body)
			if res.StatusCode != 200 || !slices.Equal(got, row.want) {
				t.Errorf("%s%s: %d %s", path, row.query, res.StatusCode, body)
			}
			if told := strings.Join(unknown, "; "); (row.unknown == "") != (told == "") || !strings.HasPrefix(told, row.unknown) {
				t.Errorf("%s%s: unknown are %q", path, row.query, unknown)
			}
			if len(p.asked) > row.asked { // n3 is asked too, in vain
				t.Errorf("%s%s: asked %q", path, row.query, p.asked)
			}
		}
	}
	res, body := call(t, crowd(t).server().Handler(), "root", "GET", "/api/v1/connections?node=n9", nil)
	if got := decode[Failure](t, body); res.StatusCode != 404 || got.Code != "node_missing" {
		t.Errorf("of a node that is none: %d %s", res.StatusCode, body)
	}
}

// A node that is known to be down is not waited for.
func TestClients_downIsNotAsked(t *testing.T) {
	p := crowd(t)
	p.down = []string{"n2", "n3"}
	_, body := call(t, p.server().Handler(), "root", "GET", "/api/v1/connections", nil)
	list := decode[Across[Connection]](t, body)
	if len(list.Items) != 1 || len(list.Unknown) != 2 || !strings.Contains(list.Unknown[0], "n2 is down") || len(p.asked) > 0 {
		t.Errorf("%s, asked %q", body, p.asked)
	}
}

// TestClients_close: a connection is closed where it is, by whoever may, and a
// name that is none, or two, or perhaps on a silent node, is refused.
func TestClients_close(t *testing.T) {
	at := func(port int) string { return "/api/v1/connections/" + url.PathEscape(clientOf(port)) }
	for _, row := range []struct {
		name, user, path string
		change           func(*pair)
		status           int
		left1, left2     int // clients of n1 and n2 afterwards
	}{
		{"here", "root", at(1), func(*pair) {}, 204, 0, 2},
		{"on another node", "root", at(2), func(*pair) {}, 204, 1, 1},
		{"on the one that is named", "root", at(2) + "?node=n2", func(*pair) {}, 204, 1, 1},
		{"not on the one that is named", "root", at(2) + "?node=n1", func(*pair) {}, 404, 1, 2},
		{"perhaps on one that is silent", "root", at(7), func(*pair) {}, 504, 1, 2},
		{"on none", "root", at(7), func(p *pair) {
			p.others["n3"] = New(Parts{Sessions: newHouse(t), Node: newHouse(t), Log: p.server().log})
		}, 404, 1, 2},
		{"on two", "root", at(1), func(p *pair) { p.n2.sessions[clientOf(1)] = Connection{Name: clientOf(1)} }, 409, 1, 3},
		{"on two, and one is named", "root", at(1) + "?node=n2", func(p *pair) { p.n2.sessions[clientOf(1)] = Connection{Name: clientOf(1)} }, 204, 1, 2},
		{"by who may only look", "watcher", at(2), func(*pair) {}, 403, 1, 2},
	} {
		p := crowd(t)
		row.change(p)
		res, body := call(t, p.server().Handler(), row.user, "DELETE", row.path, nil)
		if res.StatusCode != row.status {
			t.Errorf("%s: %d %s, want %d", row.name, res.StatusCode, body, row.status)
		}
		if len(p.sessions) != row.left1 || len(p.n2.sessions) != row.left2 {
			t.Errorf("%s: left are %d and %d", row.name, len(p.sessions), len(p.n2.sessions))
		}
	}
}

// Tools of clients see those of all nodes by the management port too.
func TestClients_management(t *testing.T) {
	p := crowd(t)
	res, body := call(t, p.server().ManagementHandler(), "root", "GET", "/api/connections", nil)
	if list := decode[[]map[string]any](t, body); res.StatusCode != http.StatusOK || len(list) != 3 || list[2]["node"] != "n2" {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if res, body = call(t, p.server().ManagementHandler(), "root", "DELETE", "/api/connections/"+url.PathEscape(clientOf(3)), nil); res.StatusCode != http.StatusNoContent {
		t.Errorf("close: %d %s", res.StatusCode, body)
	}
	if len(p.n2.sessions) != 1 {
		t.Errorf("left are %v", p.n2.sessions)
	}
}
