package integration

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
)

// What strangers, nodes of other clusters and a member gone bad may send to the
// ports between nodes of three real processes, while clients publish and read. The
// nodes go on, keep what they had, and say what happened without filling the disk.

const (
	// held is how many connections are kept half way, beyond what a node bears.
	held = 300
	// hostileHeap is how much more of the heap may be in use afterwards, and
	// hostileDescriptors how many more files: traffic and raft need some at times.
	hostileHeap        = 96 << 20
	hostileDescriptors = 32
	// streamCache is what a node keeps of chunks in memory, at most.
	streamCache = 64 << 20
	// hostileResident is how much more memory a node may have meanwhile.
	hostileResident = 512 << 20
	// hostileLines bounds what each node logs, hostileLinesEach what it logs in a
	// second: refused connections and gossip have a line in 5 s and in 1 s.
	hostileLines     = 60
	hostileLinesEach = 3
	// brief is how long a connection is read from that ought to be closed.
	brief = 500 * time.Millisecond
)

// hostileTest is a cluster test with somebody who means ill.
type hostileTest struct {
	*clusterTest
	id     string
	random *rand.Rand
	before map[*harness.Node]usage
	begun  time.Time
	logged map[*harness.Node]int // bytes of the log when it began
	down   *harness.Node         // killed by the test
}

func newHostileTest(t *testing.T, start func(testing.TB, int, ...string) *harness.Cluster) *hostileTest {
	t.Helper()
	if os.Getenv("HOSTILE") == "" {
		t.Skip("attacks on processes take long; make hostile-test has them")
	}
	h := &hostileTest{
		clusterTest: &clusterTest{t: t, cluster: start(t, 3)}, random: rand.New(rand.NewPCG(7, 11)),
		before: map[*harness.Node]usage{}, logged: map[*harness.Node]int{},
	}
	var about admin.Cluster
	if err := h.cluster.Nodes[0].Call("GET", "/api/v1/cluster", nil, &about); err != nil {
		t.Fatal(err)
	}
	h.id = about.ID
	h.createWith(map[string]string{"stream-max-segment-size-bytes": "500000000"}) // few files
	h.start()
	h.warm()
	for _, n := range h.cluster.Nodes {
		h.before[n] = usage{descriptors: n.Descriptors(), resident: n.Resident(), heap: n.Heap()}
		h.logged[n] = len(n.Log())
	}
	h.begun = time.Now()
	return h
}

// warm waits until the traffic has filled what nodes keep in memory of streams, so
// that it is not taken for something else.
func (h *hostileTest) warm() {
	h.t.Helper()
	for end := time.Now().Add(usableWithin); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if !slices.ContainsFunc(h.cluster.Nodes, func(n *harness.Node) bool { return n.Heap() < streamCache }) {
			return
		}
	}
}

// as is somebody with the credentials of a node.
func (h *hostileTest) as(node string, purpose byte, to *harness.Node) harness.Rogue {
	h.t.Helper()
	r := harness.Rogue{Purpose: purpose, Cluster: h.id, From: node, To: to.Name, Secret: h.cluster.Secret}
	if h.cluster.Authority != nil {
		r.Certificate = h.certificate(h.cluster.Authority, h.id, node, time.Now())
	}
	return r
}

func (h *hostileTest) certificate(by *link.Authority, cluster, node string, at time.Time) *tls.Certificate {
	h.t.Helper()
	pair, err := by.Issue(cluster, protocol.NodeID(node), nil, at, time.Hour)
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		h.t.Fatal(err)
	}
	return &c
}

func (h *hostileTest) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(h.random.Uint32())
	}
	return b
}

// throw sends bytes to an address and waits for the end, which must come before a
// node's patience with a handshake ends.
func (h *hostileTest) throw(what, addr string, b []byte) {
	h.t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		h.t.Fatalf("%s: %v", what, err)
	}
	defer c.Close()
	_, _ = c.Write(b) // the node may end it meanwhile
	_ = c.(*net.TCPConn).CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(15 * time.Second))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		h.t.Errorf("%s: the connection is still open", what)
	}
}

// said waits until a node has logged something since the attacks began.
func (h *hostileTest) said(n *harness.Node, text string) {
	h.t.Helper()
	for end := time.Now().Add(usableWithin); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if strings.Contains(n.Log()[h.logged[n]:], text) {
			return
		}
	}
	h.t.Errorf("node %s never says %q", n.Name, text)
}

// stands fails unless all nodes run and their clients are served.
func (h *hostileTest) stands(after string) {
	h.t.Helper()
	for _, n := range h.cluster.Nodes {
		if n == h.down {
			continue
		}
		if !n.Running() {
			h.t.Fatalf("node %s has ended: %s", n.Name, after)
		}
		if now := n.Resident(); now > h.before[n].resident+hostileResident {
			h.t.Errorf("%s: node %s has %d MB, %d before", after, n.Name, now>>20, h.before[n].resident>>20)
		}
	}
	h.flows()
	if gap := h.gap(); gap > gapMax {
		h.t.Errorf("%s: a publisher was without a confirm for %v", after, gap)
	}
}

// quiet fails unless nodes have let go of what they held for the attackers, and have
// logged little.
func (h *hostileTest) quiet() {
	h.t.Helper()
	seconds := int(time.Since(h.begun).Seconds()) + 1
	for _, n := range h.cluster.Nodes {
		text := n.Log()[h.logged[n]:]
		if lines := strings.Count(text, "\n"); lines > hostileLines+hostileLinesEach*seconds {
			h.t.Errorf("node %s has logged %d lines in %d s", n.Name, lines, seconds)
		}
		for _, sign := range []string{"panic", "goroutine ", "DATA RACE"} {
			if strings.Contains(text, sign) {
				h.t.Errorf("node %s has logged %q", n.Name, sign)
			}
		}
		var now usage
		for end := time.Now().Add(usableWithin); ; time.Sleep(200 * time.Millisecond) {
			now = usage{descriptors: n.Descriptors(), resident: n.Resident(), heap: n.Heap()}
			more := now.descriptors > h.before[n].descriptors+hostileDescriptors || now.heap > h.before[n].heap+hostileHeap
			if !more {
				break
			}
			if time.Now().After(end) {
				h.t.Errorf("node %s has %d descriptors and %d MB of heap, before %d and %d MB", n.Name,
					now.descriptors, now.heap>>20, h.before[n].descriptors, h.before[n].heap>>20)
				break
			}
		}
		h.t.Logf("FIGURE hostile %s: node %s: %d descriptors before, %d after; heap %.1f MB, then %.1f MB; %d lines in %d s",
			h.t.Name(), n.Name, h.before[n].descriptors, now.descriptors, mb(h.before[n].heap), mb(now.heap), strings.Count(text, "\n"), seconds)
	}
}

func TestHostile_nodePortBySecret(t *testing.T) {
	testNodePort(newHostileTest(t, harness.StartCluster))
}

func TestHostile_nodePortByCertificate(t *testing.T) {
	h := newHostileTest(t, harness.StartTLSCluster)
	h.wrongCertificates(h.cluster.Nodes[0])
	testNodePort(h)
}

func testNodePort(h *hostileTest) {
	for _, n := range h.cluster.Nodes[:2] {
		h.strangers(n)
		h.wrongNames(n)
	}
	h.stands("bytes of strangers and handshakes of nobody")
	h.said(h.cluster.Nodes[0], "a connection between nodes was refused")
	h.halfHandshakes(h.cluster.Nodes[0])
	h.stands("handshakes that stop half way")
	// A member's key in other hands: the member itself is down.
	bad := h.cluster.MetaLeader()
	h.gap()
	killed := time.Now()
	for _, s := range h.streams {
		s.traffic.Killed(killed)
	}
	bad.Kill()
	h.down = bad
	h.flows()
	h.gap()
	victims := h.cluster.Others(bad)
	h.raftBytes(bad, victims[0])
	for _, to := range victims {
		h.linkBytes(bad, to)
	}
	h.requests(bad, victims[0])
	h.cluster.Restart(bad)
	h.down = nil
	h.before[bad] = usage{descriptors: bad.Descriptors(), resident: bad.Resident(), heap: streamCache}
	h.logged[bad] = len(bad.Log())
	for _, s := range h.streams {
		h.level(s)
	}
	h.stands("a member gone bad")
	h.quiet()
	h.finish()
}

// strangers know nothing but the address.
func (h *hostileTest) strangers(n *harness.Node) {
	h.t.Helper()
	hello := harness.Rogue{Purpose: 'L', Cluster: h.id, From: "n3", To: n.Name}.Greeting()
	long := bytes.Clone(hello)
	binary.BigEndian.PutUint16(long[4:], 0xffff)
	for what, b := range map[string][]byte{
		"nothing":                 nil,
		"one byte":                {'L'},
		"random bytes":            h.bytes(4096),
		"a megabyte of them":      h.bytes(1 << 20),
		"HTTP":                    []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"a client's handshake":    []byte("\x00\x00\x00\x0a\x00\x11\x00\x01\x00\x00\x00\x01\x00\x00"),
		"a hello of 64 KiB":       append(long, h.bytes(1<<16)...),
		"a hello of 64 KiB, cut":  long,
		"half a hello":            hello[:len(hello)/2],
		"a hello and the end":     hello,
		"a hello and no proof":    append(bytes.Clone(hello), make([]byte, 32)...),
		"a hello, random proof":   append(bytes.Clone(hello), h.bytes(32)...),
		"TLS of an old version":   {0x16, 3, 1, 0, 5, 1, 0, 0, 1, 3},
		"a TLS record of garbage": append([]byte{0x16, 3, 3, 0x40, 0}, h.bytes(1<<14)...),
		"a TLS alert":             {0x15, 3, 3, 0, 2, 2, 40},
		"lengths of 4 GiB":        bytes.Repeat([]byte{0xff}, 64),
		"zeros":                   make([]byte, 64<<10),
	} {
		h.throw(what, n.Peers, b)
	}
	for range 200 {
		h.throw("random bytes", n.Peers, h.bytes(h.random.IntN(300)))
	}
}

// refused fails unless a handshake is refused, with one of these codes if the node
// tells any.
func (h *hostileTest) refused(what string, r harness.Rogue, at *harness.Node, codes ...byte) {
	h.t.Helper()
	conn, _, err := r.Dial(at.Peers)
	if err != nil {
		var code harness.RefusedError
		if errors.As(err, &code) && !bytes.Contains(codes, []byte{byte(code)}) {
			h.t.Errorf("%s: %v, want one of %d", what, err, codes)
		}
		return
	}
	defer conn.Close()
	// TLS 1.3's dialer is done before the acceptor has looked at its certificate.
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		h.t.Errorf("%s: let in", what)
	}
}

// The codes of refusals, as replication/PROTOCOL.md has them.
const (
	refusedCluster  = 3
	refusedNode     = 4
	refusedUnproven = 5
	refusedStranger = 6
	refusedBusy     = 7
)

// wrongNames have a node's credentials, and say what these do not cover.
func (h *hostileTest) wrongNames(n *harness.Node) {
	h.t.Helper()
	for _, purpose := range []byte("LR") {
		good := h.as("n3", purpose, n)
		r := good
		r.Cluster = "another"
		h.refused("another cluster", r, n, refusedCluster)
		r = good
		r.To = "n9"
		h.refused("for another node", r, n, refusedNode)
		r = good
		r.From = n.Name
		h.refused("from the node itself", r, n, refusedNode)
		r = good
		r.From = "n2"
		if n.Name == "n2" {
			r.From = "n1"
		}
		if h.cluster.Authority != nil {
			h.refused("a certificate of another name", r, n, refusedNode)
			h.refused("a member that is none", h.as("n7", purpose, n), n, refusedStranger)
		} else { // who has the secret can be any member
			r.From = "n7"
			h.refused("a member that is none", r, n, refusedStranger)
			r = good
			r.Secret = bytes.Repeat([]byte{'a'}, 64)
			h.refused("another secret", r, n, refusedUnproven)
			r.Secret = nil
			h.refused("no secret", r, n, refusedUnproven)
		}
	}
	// A handshake that was good once: the node's nonce is another by now.
	knock := h.as("n3", 'J', n)
	knock.To = ""
	conn, said, err := knock.Dial(n.Peers)
	if err != nil {
		h.t.Fatalf("a knock with good credentials: %v", err)
	}
	_ = conn.Close()
	if h.cluster.Secret != nil {
		knock.Hello, knock.Proof = said.Hello, said.Proof
		h.refused("a recorded handshake", knock, n, refusedUnproven)
	}
}

// wrongCertificates are shown to a node that wants mutual TLS.
func (h *hostileTest) wrongCertificates(n *harness.Node) {
	h.t.Helper()
	foreign, err := link.NewAuthority(h.id, time.Now(), time.Hour)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, purpose := range []byte("LRJ") {
		for what, change := range map[string]func(*harness.Rogue){
			"no certificate":                     func(r *harness.Rogue) { r.Certificate, r.Bare = nil, true },
			"a certificate by another authority": func(r *harness.Rogue) { r.Certificate = h.certificate(foreign, h.id, "n3", time.Now()) },
			"an expired certificate": func(r *harness.Rogue) {
				r.Certificate = h.certificate(h.cluster.Authority, h.id, "n3", time.Now().Add(-3*time.Hour))
			},
			"a certificate of another cluster": func(r *harness.Rogue) {
				r.Certificate = h.certificate(h.cluster.Authority, "another", "n3", time.Now())
			},
			"no TLS where there must be some": func(r *harness.Rogue) { r.Certificate = nil },
			"a certificate for a node of no such name": func(r *harness.Rogue) {
				r.Certificate = h.certificate(h.cluster.Authority, h.id, "n7", time.Now())
			},
		} {
			r := h.as("n3", purpose, n)
			change(&r)
			h.refused(fmt.Sprintf("%s, for %c", what, purpose), r, n, refusedNode)
		}
	}
}

// halfHandshakes keeps hundreds of connections half way; somebody with credentials
// gets through all the same.
func (h *hostileTest) halfHandshakes(n *harness.Node) {
	h.t.Helper()
	hello := harness.Rogue{Purpose: 'L', Cluster: h.id, From: "n3", To: n.Name}.Greeting()
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for i := range held {
		c, err := net.Dial("tcp", n.Peers)
		if err != nil {
			h.t.Fatal(err)
		}
		open = append(open, c)
		switch i % 4 {
		case 1:
			_, _ = c.Write(hello[:7])
		case 2:
			_, _ = c.Write(hello)
		case 3:
			_, _ = c.Write([]byte{0x16, 3, 1, 0x40, 0})
		}
	}
	knock := h.as("n3", 'J', n)
	knock.To = ""
	conn, _, err := knock.Dial(n.Peers)
	if err != nil {
		h.t.Errorf("a node among %d that stop half way: %v", held, err)
	} else {
		_ = conn.Close()
	}
	h.flows()
	begin := time.Now()
	for _, c := range open { // 10 s is what a handshake may take
		_ = c.SetReadDeadline(begin.Add(15 * time.Second))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			h.t.Fatalf("a connection that says nothing is open after %v", time.Since(begin))
		}
	}
}
