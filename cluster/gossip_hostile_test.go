package cluster

import (
	"bytes"
	"compress/lzw"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// The bytes of memberlist's messages that a hostile member of the gossip sends;
// it has label and key.
const (
	gossipPushPull byte = 6
	gossipUser     byte = 8
	gossipCompress byte = 9
	gossipEncrypt  byte = 10
	gossipHasLabel byte = 244
)

// insider writes what memberlist itself never would.
type insider struct {
	t   *testing.T
	s   *site
	key cipher.AEAD
}

func newInsider(t *testing.T, s *site) *insider {
	keys, err := gossipKeys(s.gossip.Secrets)
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(keys[0])
	if err != nil {
		t.Fatal(err)
	}
	key, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return &insider{t: t, s: s, key: key}
}

// seal is encryption version 1: no padding.
func (i *insider) seal(plain, with []byte) []byte {
	nonce := make([]byte, i.key.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return i.key.Seal(append([]byte{1}, nonce...), nonce, plain, with)
}

func (i *insider) label() []byte {
	id := i.s.ID()
	return append([]byte{gossipHasLabel, byte(len(id))}, id...)
}

// packet sends one over UDP.
func (i *insider) packet(plain []byte) {
	i.t.Helper()
	c, err := net.Dial("udp", i.s.Cluster.gossip.addr)
	if err != nil {
		i.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(append(i.label(), i.seal(plain, []byte(i.s.ID()))...)); err != nil {
		i.t.Fatal(err)
	}
}

// stream sends one over TCP and waits until the node has closed it.
func (i *insider) stream(plain []byte) {
	i.t.Helper()
	c, err := net.Dial("tcp", i.s.Cluster.gossip.addr)
	if err != nil {
		i.t.Fatal(err)
	}
	defer c.Close()
	sealedBytes := 1 + i.key.NonceSize() + len(plain) + i.key.Overhead()
	head := binary.BigEndian.AppendUint32([]byte{gossipEncrypt}, uint32(sealedBytes))
	with := append(bytes.Clone(head), i.s.ID()...)
	// Its end may come while it is still being sent.
	_, _ = c.Write(append(append(i.label(), head...), i.seal(plain, with)...))
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, _ = io.Copy(io.Discard, c)
}

// raw sends bytes as they are behind the label, over UDP or TCP, and waits for the
// end of the answer.
func (i *insider) raw(network string, b []byte) {
	i.t.Helper()
	c, err := net.Dial(network, i.s.Cluster.gossip.addr)
	if err != nil {
		i.t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(append(i.label(), b...))
	if tcp, is := c.(*net.TCPConn); is {
		_ = tcp.CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, _ = io.Copy(io.Discard, c)
	}
}

// padded is encryption version 0, whose padding the text ends with.
func (i *insider) padded(text, with []byte) []byte {
	nonce := make([]byte, i.key.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return i.key.Seal(append([]byte{0}, nonce...), nonce, text, with)
}

// framed is a stream of one sealed message; seal is told what it stands behind.
func (i *insider) framed(sealedBytes int, seal func(with []byte) []byte) []byte {
	head := binary.BigEndian.AppendUint32([]byte{gossipEncrypt}, uint32(sealedBytes))
	return append(head, seal(append(bytes.Clone(head), i.s.ID()...))...)
}

// TestGossip_messagesThatEndMemberlist: who has label and key sends what memberlist
// does not live through, sealed as it should be: messages with nothing in them, and
// with padding that is none.
func TestGossip_messagesThatEndMemberlist(t *testing.T) {
	t.Parallel()
	s := newTown(t).chatty("n1")[0]
	i := newInsider(t, s)
	over := 1 + i.key.NonceSize() + i.key.Overhead()
	blank := bytes.Repeat([]byte{16}, 16) // padding alone
	wrong := bytes.Repeat([]byte{200}, 16)
	for _, text := range [][]byte{blank, wrong} {
		i.raw("tcp", i.framed(over+len(text), func(with []byte) []byte { return i.padded(text, with) }))
		i.raw("udp", i.padded(text, []byte(i.s.ID())))
	}
	i.stream(nil)
	i.packet(nil)
	// Cut at each byte of what would be a message.
	whole := i.framed(over+3, func(with []byte) []byte { return i.seal([]byte{gossipUser, 0x80, 0}, with) })
	for n := range len(whole) {
		i.raw("tcp", whole[:n])
		i.raw("udp", whole[:n])
	}
	for n := range over + 2 { // lengths that hold less than a message
		i.raw("tcp", append(binary.BigEndian.AppendUint32([]byte{gossipEncrypt}, uint32(n)), i.seal(nil, nil)...))
	}
	create(t, s.Cluster, "still-there")
}

// TestGossip_streamsAreBounded: strangers who open streams and say nothing, or claim
// megabytes, hold so many and no more, and members get through.
func TestGossip_streamsAreBounded(t *testing.T) {
	t.Parallel()
	s := newTown(t).chatty("n1")[0]
	i := newInsider(t, s)
	const own = 9 * time.Second // memberlist by itself ends them after 10
	ends := time.Now().Add(own)
	var idle []net.Conn
	for n := range 4 * gossipStreamsMax {
		c, err := net.Dial("tcp", s.Cluster.gossip.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if n%2 == 0 {
			_, _ = c.Write(append(i.label(), gossipEncrypt, 0, 0x10, 0, 0, 1)) // 1 MiB, to come
		}
		idle = append(idle, c)
	}
	for _, c := range idle[:3*gossipStreamsMax] {
		_ = c.SetReadDeadline(ends)
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("an old stream is still open")
		}
	}
	c, err := net.Dial("tcp", s.Cluster.gossip.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ping := []byte("\x00\x81\xa5SeqNo\x01")
	_, _ = c.Write(append(i.label(), i.framed(1+i.key.NonceSize()+len(ping)+i.key.Overhead(), func(with []byte) []byte {
		return i.seal(ping, with)
	})...))
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if n, err := c.Read(make([]byte, 1)); n != 1 {
		t.Errorf("a member's ping is not answered: %v", err)
	}
}

// compressed wraps a message of so many zeros.
func compressed(bytesOut int) []byte {
	var b bytes.Buffer
	w := lzw.NewWriter(&b, lzw.LSB, 8)
	zeros := make([]byte, 1<<20)
	_, _ = w.Write([]byte{gossipUser})
	for range bytesOut >> 20 {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	out := append([]byte{gossipCompress, 0x82}, "\xa4Algo\x00\xa3Buf\xdb"...)
	out = binary.BigEndian.AppendUint32(out, uint32(b.Len()))
	return append(out, b.Bytes()...)
}

// pushPull claims so many members and brings so many.
func pushPull(claimed uint32, brought int) []byte {
	out := append([]byte{gossipPushPull, 0x83}, "\xa5Nodes\xce"...)
	out = binary.BigEndian.AppendUint32(out, claimed)
	out = append(out, "\xacUserStateLen\x00\xa4Join\xc3"...)
	for n := range brought {
		out = append(out, "\x87\xa4Name"...)
		name := fmt.Sprintf("ghost-%07d", n)
		out = append(append(out, 0xa0|byte(len(name))), name...)
		out = append(out, "\xa4Addr\xa4\x7f\x00\x00\x01\xa4Port\xcd\x1f\x0a\xa4Meta\xa0\xabIncarnation\x01\xa5State\x00\xa3Vsn\xa6\x01\x05\x05\x00\x00\x00"...)
	}
	return out
}

// TestGossip_bombs: who has label and key sends what unpacks to a thousand times
// its size, a million members that are none, and claims of both without the bytes.
// The node stays, its members are the same, and its memory is bounded.
func TestGossip_bombs(t *testing.T) {
	t.Parallel()
	s := newTown(t).chatty("n1")[0]
	i := newInsider(t, s)
	if plain := compressed(1 << 20); len(plain) > 8<<10 {
		t.Fatalf("a mebibyte of zeros takes %d bytes", len(plain))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for name, send := range map[string]func(){
		"a bomb beyond the bound over TCP":    func() { i.stream(compressed(48 << 20)) },
		"a bomb within the bound over TCP":    func() { i.stream(compressed(8 << 20)) },
		"a bomb of 40 MiB in one packet":      func() { i.packet(compressed(40 << 20)) },
		"2^31 members claimed, none brought":  func() { i.stream(pushPull(1<<31, 0)) },
		"1 M members claimed, none brought":   func() { i.stream(pushPull(1_000_000, 0)) },
		"100,000 members brought":             func() { i.stream(pushPull(100_000, 100_000)) },
		"a bomb that is cut":                  func() { b := compressed(8 << 20); i.stream(b[:len(b)/2]) },
		"a length of what does not come":      func() { i.stream(pushPull(10, 3)) },
		"an unknown message":                  func() { i.stream([]byte{0x7f, 1, 2, 3}) },
		"an unknown message in a packet":      func() { i.packet([]byte{0x7f, 1, 2, 3}) },
		"a packet with nothing in it":         func() { i.packet(nil) },
		"packets in packets, a thousand deep": func() { i.packet(bytes.Repeat([]byte{7, 1, 0xff, 0xff}, 1000)) },
	} {
		send()
		if n := len(s.Cluster.gossip.list.Members()); n != 1 {
			t.Errorf("%s: %d members", name, n)
		}
	}
	create(t, s.Cluster, "still-there")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("%d bytes are left", grown)
	}
	if total := after.TotalAlloc - before.TotalAlloc; total > 2<<30 {
		t.Errorf("%d bytes were allocated", total)
	}
	s.lines.mu.Lock()
	defer s.lines.mu.Unlock()
	if n := len(s.lines.all); n > 200 {
		t.Errorf("%d lines were logged", n)
	}
}
