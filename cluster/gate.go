package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"sync"

	"github.com/hashicorp/memberlist"
)

// gate stands between the network and memberlist, which trusts whoever has the
// key: a message with nothing in it, or with padding that is none, ends the whole
// process there, in a goroutine that nobody else can catch. Both tell themselves by
// what is outside of the encryption, so that the gate needs no key.
//
//	244 | n | label, n bytes | version | nonce | text | tag              a packet
//	244 | n | label, n bytes | 10 | length | version | nonce | text | tag   a stream
//	                                4 bytes   1         12     ≥ 1    16
type gate struct {
	*memberlist.NetTransport
	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{} // closed by Shutdown, once nothing comes in any more
	log     *log.Logger

	mu   sync.Mutex // guards open
	open []*vetted  // the oldest first
}

const (
	// gossipStreamsMax bounds the streams that are open at once, and with the next
	// one the memory that strangers who know the label can have held. The oldest has
	// to go.
	gossipStreamsMax = 64
	// gossipStreamBytes bounds a stream's message: a member takes less than 1 KiB.
	gossipStreamBytes = 1 << 20

	labelled  = 244
	encrypted = 10
	// sealVersion is the one without padding, which all nodes write.
	sealVersion = 1
	// sealBytesMin are of a message with one byte of text.
	sealBytesMin = 1 + 12 + 1 + 16
)

var errUnsound = errors.New("what no node of this program writes")

// openGate listens on a host and port; port 0 takes a free one.
func openGate(host string, port int, lines *log.Logger) (*gate, error) {
	config := &memberlist.NetTransportConfig{BindAddrs: []string{host}, BindPort: port, Logger: lines}
	tries := 1
	if port == 0 {
		tries = gossipPortTries
	}
	var err error
	for range tries {
		var t *memberlist.NetTransport
		if t, err = memberlist.NewNetTransport(config); err == nil {
			g := &gate{
				NetTransport: t, packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
				done: make(chan struct{}), log: lines,
			}
			go g.run()
			return g, nil
		}
	}
	return nil, err
}

// gossipPortTries bounds the search for a port that is free for UDP and TCP.
const gossipPortTries = 10

// PacketCh and StreamCh are what memberlist takes from.
func (g *gate) PacketCh() <-chan *memberlist.Packet { return g.packets }
func (g *gate) StreamCh() <-chan net.Conn           { return g.streams }

// Shutdown ends it. What the listeners still hand over is taken until they are gone.
func (g *gate) Shutdown() error {
	err := g.NetTransport.Shutdown()
	close(g.done)
	return err
}

func (g *gate) run() {
	for {
		select {
		case p := <-g.NetTransport.PacketCh():
			if err := soundPacket(p.Buf); err != nil {
				g.log.Printf("[ERR] memberlist: packet refused: %v from=%s", err, p.From)
				continue
			}
			select {
			case g.packets <- p:
			case <-g.done:
			}
		case c := <-g.NetTransport.StreamCh():
			select {
			case g.streams <- g.vet(c):
			case <-g.done:
				_ = c.Close()
			}
		case <-g.done:
			return
		}
	}
}

// soundPacket tells whether memberlist may see a packet.
func soundPacket(b []byte) error {
	if len(b) < 2 || b[0] != labelled || len(b) < 2+int(b[1]) {
		return fmt.Errorf("no label: %w", errUnsound)
	}
	sealed := b[2+int(b[1]):]
	if len(sealed) == 0 {
		return fmt.Errorf("nothing behind the label: %w", errUnsound)
	}
	return soundSeal(sealed[0], len(sealed))
}

func soundSeal(version byte, length int) error {
	switch {
	case version != sealVersion:
		return fmt.Errorf("encryption %d: %w", version, errUnsound)
	case length < sealBytesMin:
		return fmt.Errorf("%d encrypted bytes: %w", length, errUnsound)
	}
	return nil
}

// vetted is a stream whose head is looked at before memberlist reads of it. The
// deadline is memberlist's.
type vetted struct {
	net.Conn
	gate *gate
	head []byte // looked at, and not yet read
	seen bool
}

// vet takes a stream in; the oldest one goes where there are too many.
func (g *gate) vet(c net.Conn) *vetted {
	v := &vetted{Conn: c, gate: g}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.open) == gossipStreamsMax {
		_ = g.open[0].Conn.Close() // its reader then closes it for good
		g.open = g.open[1:]
	}
	g.open = append(g.open, v)
	return v
}

// Close is memberlist's, or Shutdown's.
func (v *vetted) Close() error {
	v.gate.mu.Lock()
	for i, o := range v.gate.open {
		if o == v {
			v.gate.open = append(v.gate.open[:i:i], v.gate.open[i+1:]...)
			break
		}
	}
	v.gate.mu.Unlock()
	return v.Conn.Close()
}

// Read is called by one goroutine.
func (v *vetted) Read(p []byte) (int, error) {
	if !v.seen {
		v.seen = true
		if err := v.look(); err != nil {
			return 0, err
		}
	}
	if len(v.head) > 0 {
		n := copy(p, v.head)
		v.head = v.head[n:]
		return n, nil
	}
	return v.Conn.Read(p)
}

// look reads the head, up to the version.
func (v *vetted) look() error {
	var start [2]byte
	if _, err := io.ReadFull(v.Conn, start[:]); err != nil {
		return err
	}
	if start[0] != labelled {
		return fmt.Errorf("no label: %w", errUnsound)
	}
	const behind = 1 + 4 + 1 // type, length, version
	head := make([]byte, len(start)+int(start[1])+behind)
	copy(head, start[:])
	if _, err := io.ReadFull(v.Conn, head[len(start):]); err != nil {
		return err
	}
	at := head[len(head)-behind:]
	length := binary.BigEndian.Uint32(at[1:])
	switch {
	case at[0] != encrypted:
		return fmt.Errorf("message %d outside of encryption: %w", at[0], errUnsound)
	case length > gossipStreamBytes:
		return fmt.Errorf("%d encrypted bytes: %w", length, errUnsound)
	}
	if err := soundSeal(at[5], int(length)); err != nil {
		return err
	}
	v.head = head
	return nil
}
