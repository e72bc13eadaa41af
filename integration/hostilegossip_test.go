package integration

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	cryptorand "crypto/rand"
	"crypto/sha256"
	"io"
	"net"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/integration/harness"
)

// hostilePackets is how many packets gossip gets; HOSTILE_PACKETS says otherwise.
const hostilePackets = 50_000

// keyHolder has label and key of the cluster's gossip.
type keyHolder struct {
	label  []byte // with its header
	id     []byte
	sealer cipher.AEAD
}

func (h *hostileTest) keyHolder() *keyHolder {
	h.t.Helper()
	key, err := hkdf.Key(sha256.New, h.cluster.Secret, nil, "millrace gossip 1", 32)
	if err != nil {
		h.t.Fatal(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		h.t.Fatal(err)
	}
	k := &keyHolder{id: []byte(h.id), label: append([]byte{244, byte(len(h.id))}, h.id...)}
	if k.sealer, err = cipher.NewGCM(block); err != nil {
		h.t.Fatal(err)
	}
	return k
}

func (k *keyHolder) seal(version byte, text, with []byte) []byte {
	nonce := make([]byte, k.sealer.NonceSize())
	_, _ = cryptorand.Read(nonce) // never fails
	return k.sealer.Seal(append([]byte{version}, nonce...), nonce, text, with)
}

func (k *keyHolder) packet(version byte, text []byte) []byte {
	return append(bytes.Clone(k.label), k.seal(version, text, k.id)...)
}

func (k *keyHolder) stream(version byte, text []byte) []byte {
	head := append([]byte{10}, u32(uint32(1+k.sealer.NonceSize()+len(text)+k.sealer.Overhead()))...)
	sealed := k.seal(version, text, append(bytes.Clone(head), k.id...))
	return append(append(bytes.Clone(k.label), head...), sealed...)
}

// TestHostile_gossipPort sends random packets, mutated ones, and messages sealed by
// the right key that say what no node says, to the gossip of three processes: none
// ends or grows, and their view of each other is as before. (EL-11)
func TestHostile_gossipPort(t *testing.T) {
	h := newHostileTest(t, harness.StartCluster)
	k := h.keyHolder()
	packets := number(t, "HOSTILE_PACKETS", hostilePackets)
	// What members say, of nodes that are none.
	ghost := "\xa4Node\xa5ghost\xa4Addr\xa4\x7f\x00\x00\x01\xa4Port\xcd\x1f\x0a\xa4Meta\xa0\xabIncarnation\x01\xa3Vsn\xa6\x01\x05\x05\x00\x00\x00"
	seeds := [][]byte{
		[]byte("\x00\x82\xa5SeqNo\x01\xa4Node\xa2n1"),
		[]byte("\x01\x84\xa5SeqNo\x01\xa6Target\xa4\x7f\x00\x00\x01\xa4Port\x00\xa4Node\xa2n1"),
		[]byte("\x02\x82\xa5SeqNo\x01\xa7Payload\xa3abc"),
		[]byte("\x03\x83\xabIncarnation\x01\xa4Node\xa5ghost\xa4From\xa2n1"),
		[]byte("\x04\x86" + ghost),
		[]byte("\x05\x83\xabIncarnation\x01\xa4Node\xa5ghost\xa4From\xa2n1"),
		[]byte("\x06\x83\xa5Nodes\x01\xacUserStateLen\x00\xa4Join\xc3\x87\xa5State\x00" + ghost),
		[]byte("\x07\x02\x00\x01\x00\x02\x00\x00\x00"),
		[]byte("\x08\x81\xaaUserMsgLen\x04abcd"),
		[]byte("\x09\x82\xa4Algo\x00\xa3Buf\xc4\x04\x80\x00\x01\x02"),
		[]byte("\x0b\x81\xa5SeqNo\x01"),
		[]byte("\x0c\x00\x00\x00\x00\x00"),
	}
	mutated := func() []byte {
		b := bytes.Clone(seeds[h.random.IntN(len(seeds))])
		for range 1 + h.random.IntN(4) {
			switch at := h.random.IntN(len(b)); h.random.IntN(3) {
			case 0:
				b[at] = byte(h.random.Uint32())
			case 1:
				b = b[:max(at, 1)]
			default:
				b = append(b[:at:at], append(h.bytes(h.random.IntN(20)), b[at:]...)...)
			}
		}
		return b
	}
	for _, n := range h.cluster.Nodes {
		udp, err := net.Dial("udp", n.Gossip)
		if err != nil {
			t.Fatal(err)
		}
		defer udp.Close()
		for i := range packets / len(h.cluster.Nodes) {
			var b []byte
			switch i % 4 {
			case 0:
				b = h.bytes(h.random.IntN(1400))
			case 1: // with the label, which is no secret
				b = append(bytes.Clone(k.label), h.bytes(h.random.IntN(200))...)
			case 2: // a good one that the line has changed
				b = k.packet(1, seeds[h.random.IntN(len(seeds))])
				b[h.random.IntN(len(b))] ^= byte(1 + h.random.IntN(255))
			default:
				b = k.packet(1, mutated())
			}
			_, _ = udp.Write(b)
		}
		padding := bytes.Repeat([]byte{16}, 16)
		wrong := bytes.Repeat([]byte{200}, 16)
		for what, b := range map[string][]byte{
			"nothing":                         nil,
			"random bytes":                    h.bytes(4096),
			"a megabyte of them":              h.bytes(1 << 20),
			"HTTP":                            []byte("GET / HTTP/1.1\r\n\r\n"),
			"a label cut short":               k.label[:len(k.label)/2],
			"a label alone":                   k.label,
			"another label":                   append([]byte{244, 3}, "abc\x0a\x00\x00\x00\x30"...),
			"plain, with the label":           append(bytes.Clone(k.label), seeds[6]...),
			"a length of 4 GiB":               append(bytes.Clone(k.label), 10, 0xff, 0xff, 0xff, 0xff, 1),
			"20 MiB that do not come":         append(bytes.Clone(k.label), 10, 1, 0x40, 0, 0, 1),
			"sealed nothing":                  k.stream(1, nil),
			"sealed padding alone":            k.stream(0, padding),
			"sealed padding that is none":     k.stream(0, wrong),
			"sealed, cut short":               k.stream(1, seeds[6])[:60],
			"an unknown message":              k.stream(1, []byte{0x7f, 1, 2, 3}),
			"a million members, none brought": k.stream(1, append([]byte("\x06\x83\xa5Nodes\xce\x00\x0f\x42\x40"), "\xacUserStateLen\x00\xa4Join\xc3"...)),
			"2^31 members":                    k.stream(1, append([]byte("\x06\x83\xa5Nodes\xce\x80\x00\x00\x00"), "\xacUserStateLen\x00\xa4Join\xc3"...)),
			"members with state of 2 GiB":     k.stream(1, append([]byte("\x06\x83\xa5Nodes\x00"), "\xacUserStateLen\xce\x7f\xff\xff\xff\xa4Join\xc3"...)),
		} {
			h.throw(what, n.Gossip, b)
		}
		for range 500 {
			h.throw("a mutated stream", n.Gossip, k.stream(1, mutated()))
		}
		for _, text := range [][]byte{nil, padding, wrong} {
			_, _ = udp.Write(k.packet(0, text))
			_, _ = udp.Write(k.packet(1, text))
		}
		h.held(n.Gossip, k.label)
		h.stands("packets to the gossip of " + n.Name)
	}
	// All see all as before.
	for _, n := range h.cluster.Nodes {
		var about admin.Cluster
		for end := time.Now().Add(usableWithin); ; time.Sleep(100 * time.Millisecond) {
			up := 0
			if err := n.Call("GET", "/api/v1/cluster", nil, &about); err == nil {
				for _, m := range about.Members {
					if m.State == "up" {
						up++
					}
				}
			}
			if up == 3 && len(about.Members) == 3 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("node %s sees %+v", n.Name, about.Members)
			}
		}
	}
	t.Logf("FIGURE hostile gossip: %d packets, a quarter of them sealed with the right key", packets)
	h.said(h.cluster.Nodes[0], "gossip: ")
	h.quiet()
	h.finish()
}

// held keeps connections open that say nothing; they end by themselves.
func (h *hostileTest) held(addr string, first []byte) {
	h.t.Helper()
	var open []net.Conn
	for i := range held {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			h.t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			_, _ = c.Write(first)
		}
		open = append(open, c)
	}
	ends := time.Now().Add(15 * time.Second)
	for _, c := range open {
		_ = c.SetReadDeadline(ends)
		if _, err := io.Copy(io.Discard, c); err != nil && time.Now().After(ends) {
			h.t.Fatal("a connection that says nothing is still open")
		}
	}
}
