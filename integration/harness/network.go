package harness

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// Network is what lies between the nodes of a cluster: each node is told to the
// others by the address of its gate, which passes connections on. Who dials is
// known from the first bytes of a connection, so each direction between two nodes
// can be cut for itself.
//
// What is said in a cut direction is held, not dropped, as on a real network that
// comes back: it arrives late, in order, or never if the sender gives up first.
// Gossip is not cut, and is wrong about who can talk to whom.
type Network struct {
	mu   sync.Mutex // guards all below
	cond *sync.Cond // on mu: cut has changed, or all is over
	cut  map[direction]bool
	over bool
	// passed counts bytes.
	passed map[direction]int64
}

type direction struct{ from, to string }

// StartPartitionable is StartCluster with a network that can be cut.
func StartPartitionable(t testing.TB, n int, args ...string) (*Cluster, *Network) {
	t.Helper()
	network := &Network{cut: map[direction]bool{}, passed: map[direction]int64{}}
	network.cond = sync.NewCond(&network.mu)
	return startCluster(t, onLoopback(t, n, network), sharedSecret, args), network
}

// Cut holds what one node says to another from now on.
func (w *Network) Cut(from, to *Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[direction{from.Name, to.Name}] = true
}

// CutBoth holds what two nodes say to each other.
func (w *Network) CutBoth(a, b *Node) {
	w.Cut(a, b)
	w.Cut(b, a)
}

// Heal lets everything pass, what was held first.
func (w *Network) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.cut)
	w.cond.Broadcast()
}

// close ends all waiting.
func (w *Network) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.cond.Broadcast()
}

// await returns once a direction is open; false if all is over.
func (w *Network) await(d direction) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.cut[d] && !w.over {
		w.cond.Wait()
	}
	return !w.over
}

// gate listens for the node at an address, and returns where.
func (w *Network) gate(t testing.TB, node, addr string) string {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.Close()
		w.close()
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.pass(conn, node, addr)
		}
	}()
	return l.Addr().String()
}

// pass serves one connection to a node.
func (w *Network) pass(in net.Conn, node, addr string) {
	defer in.Close()
	hello, from, err := readHello(in)
	if err != nil || !w.await(direction{from, node}) {
		return
	}
	out, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer out.Close()
	if _, err := out.Write(hello); err != nil {
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		w.pump(out, in, direction{node, from})
	}()
	w.pump(in, out, direction{from, node})
	<-back
}

// pump carries one direction to its end; the end is held like all else. What
// nobody takes any more is read and dropped: the sender must not learn from it,
// since the news would have to come the other way.
func (w *Network) pump(from, to net.Conn, d direction) {
	defer to.Close() // the nodes never close one half
	buf := make([]byte, 64<<10)
	for taken := true; ; {
		n, err := from.Read(buf)
		if !w.await(d) || err != nil {
			return
		}
		w.count(d, n)
		if taken {
			_, failed := to.Write(buf[:n])
			taken = failed == nil
		}
	}
}

func (w *Network) count(d direction, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passed[d] += int64(n)
}

// Passed is how many bytes one node has said to another, whoever dialed.
func (w *Network) Passed(from, to *Node) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.passed[direction{from.Name, to.Name}]
}

var errNoHello = errors.New("this is not how nodes begin to talk")

// readHello reads what a dialing node says first (replication/link), and who it
// is.
func readHello(r io.Reader) (raw []byte, from string, err error) {
	const fixed = 4 + 8 + 32 // of what the length counts, before the names
	raw = make([]byte, 6)
	if _, err = io.ReadFull(r, raw); err != nil {
		return nil, "", err
	}
	raw = append(raw, make([]byte, binary.BigEndian.Uint16(raw[4:]))...)
	if _, err = io.ReadFull(r, raw[6:]); err != nil {
		return nil, "", err
	}
	names := raw[min(6+fixed, len(raw)):]
	for range 2 { // the cluster's name, then the dialer's
		if len(names) == 0 || len(names) < 1+int(names[0]) {
			return nil, "", errNoHello
		}
		from, names = string(names[1:1+names[0]]), names[1+names[0]:]
	}
	return raw, from, nil
}
