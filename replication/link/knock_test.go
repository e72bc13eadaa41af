package link

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
)

// echo answers a knock with who asked what.
func echo(c *MuxConfig, _ *Config) {
	c.Knocked = func(_ context.Context, from protocol.NodeID, question []byte) []byte {
		return fmt.Appendf(nil, "%s asked %s", from, question)
	}
}

// A node that belongs to no cluster yet can ask one that does, if it can prove
// itself; and nobody else can.
func TestKnock_whoMayAsk(t *testing.T) {
	ca, other := authority(t, "c1"), authority(t, "c1")
	rows := map[string]struct {
		asker, asked Security
		cluster      string
		node         protocol.NodeID
		want         error
	}{
		"without a cluster":              {withSecret(1), withSecret(1), "", "new", nil},
		"of another cluster":             {withSecret(1), withSecret(1), "c2", "new", nil}, // the answer will say no
		"under the name of who is asked": {withSecret(1), withSecret(1), "", "b", nil},
		"with another secret":            {withSecret(2), withSecret(1), "", "new", ErrUnproven},
		"certificate":                    {identity(t, ca, "c1", "new"), identity(t, ca, "c1", "b"), "", "new", nil},
		"certificate of another node":    {identity(t, ca, "c1", "x"), identity(t, ca, "c1", "b"), "c1", "new", errAny},
		"certificate of a stranger":      {identity(t, other, "c1", "new", ca), identity(t, ca, "c1", "b"), "", "new", errAny},
		"certificate of another cluster": {identity(t, ca, "c2", "new"), identity(t, ca, "c1", "b"), "", "new", errAny},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			w := newTown(t)
			b := w.host(t, "b", r.asked, echo)
			addr, _ := w.address("b")
			asker, err := NewMux(MuxConfig{Listener: listen(t), Cluster: r.cluster, Node: r.node, Security: r.asker, Address: w.address})
			if err != nil {
				t.Fatal(err)
			}
			defer asker.Close()
			answer, err := asker.Knock(t.Context(), addr, []byte("hm"))
			if r.want == nil {
				if err != nil || string(answer) != fmt.Sprintf("%s asked hm", r.node) {
					t.Fatalf("answer %q, %v", answer, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("answered %q", answer)
			}
			if !errors.Is(r.want, errAny) {
				b.waitRefused(r.want)
			}
		})
	}
}

func TestKnock_bounds(t *testing.T) {
	w := newTown(t)
	b := w.host(t, "b", withSecret(1), echo)
	a := w.host(t, "a", withSecret(1), nil)
	addr, _ := w.address("b")
	if _, err := a.mux.Knock(t.Context(), addr, make([]byte, knockBytesMax+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too long a question: %v", err)
	}
	c, err := a.mux.dialAt(t.Context(), addr, hello{purpose: PurposeKnock, slots: 1}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if said := closed(t, c); len(said) > 0 {
		t.Errorf("said %q", said)
	}
	b.waitRefused(ErrTooLarge)
}
