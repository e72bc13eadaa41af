package harness

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// Rogue speaks to the port between nodes, by the bytes of replication/PROTOCOL.md
// and with whatever credentials it is given; what it says once it is let in is the
// caller's.
type Rogue struct {
	// Purpose is R for raft, L for a link, J for a knock.
	Purpose byte
	// Cluster, From and To are what its hello says.
	Cluster, From, To string
	// Secret and Certificate are what it proves itself by, if there are any; Bare
	// shows no certificate where the node wants TLS.
	Secret      []byte
	Certificate *tls.Certificate
	Bare        bool
	// Slot of Slots is the connection's place in a bundle, 0 of 1 by default.
	Slot, Slots byte
	Bundle      uint64
	// Hello and Proof are said instead of its own, if set: a recording.
	Hello, Proof []byte
}

// RefusedError is a node's refusal of a hello or a proof, by its code.
type RefusedError byte

func (e RefusedError) Error() string { return fmt.Sprintf("refused with code %d", byte(e)) }

// Said is what a Rogue has said of itself, to be said again.
type Said struct {
	Hello, Proof []byte
	Bundle       uint64 // that the welcome gave
}

const (
	roguePatience = 10 * time.Second
	answerBytes   = 42 // of challenge and welcome
)

// alpn are TLS's names of the purposes.
var alpn = map[byte]string{'R': "millrace-raft/1", 'L': "millrace-link/1", 'J': "millrace-knock/1"}

// Dial goes through the whole handshake.
func (r Rogue) Dial(addr string) (net.Conn, *Said, error) {
	conn, err := net.DialTimeout("tcp", addr, roguePatience)
	if err != nil {
		return nil, nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(roguePatience))
	over, said, err := r.handshake(conn)
	if err != nil {
		_ = conn.Close()
		return nil, said, err
	}
	return over, said, conn.SetDeadline(time.Time{})
}

func (r Rogue) handshake(conn net.Conn) (net.Conn, *Said, error) {
	var binding []byte
	if r.Certificate != nil || r.Bare {
		over := tls.Client(conn, r.tls())
		if err := over.Handshake(); err != nil {
			return nil, nil, err
		}
		state := over.ConnectionState()
		var err error
		if binding, err = state.ExportKeyingMaterial("EXPORTER-millrace-link", nil, 32); err != nil {
			return nil, nil, err
		}
		conn = over
	}
	said := &Said{Hello: r.Hello, Proof: r.Proof}
	if said.Hello == nil {
		said.Hello = r.Greeting()
	}
	if _, err := conn.Write(said.Hello); err != nil {
		return nil, said, err
	}
	challenge, err := readRefusable(conn)
	if err != nil {
		return nil, said, err
	}
	if said.Proof == nil {
		said.Proof = make([]byte, sha256.Size)
		if r.Secret != nil {
			said.Proof = r.prove(said.Hello, challenge, binding)
		}
	}
	if _, err := conn.Write(said.Proof); err != nil {
		return nil, said, err
	}
	welcome, err := readRefusable(conn)
	if err != nil {
		return nil, said, err
	}
	said.Bundle = binary.BigEndian.Uint64(welcome[2:])
	return conn, said, nil
}

func (r Rogue) tls() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{alpn[r.Purpose]}}
	if r.Certificate != nil {
		config.Certificates = []tls.Certificate{*r.Certificate}
	}
	return config
}

// Greeting is its hello, with a nonce drawn anew.
func (r Rogue) Greeting() []byte {
	b := append([]byte{r.Purpose}, "MRL\x00\x00\x01\x01"...)
	b = append(b, r.Slot, max(r.Slots, 1))
	b = binary.BigEndian.AppendUint64(b, r.Bundle)
	nonce := make([]byte, 32)
	_, _ = rand.Read(nonce) // never fails
	b = append(b, nonce...)
	for _, name := range []string{r.Cluster, r.From, r.To} {
		b = append(append(b, byte(len(name))), name...)
	}
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-6))
	return b
}

func (r Rogue) prove(parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, r.Secret)
	for _, part := range append([][]byte{[]byte("millrace link 1: dialer")}, parts...) {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		mac.Write(part)
	}
	return mac.Sum(nil)
}

func readRefusable(conn net.Conn) ([]byte, error) {
	b := make([]byte, answerBytes)
	if _, err := io.ReadFull(conn, b); err != nil {
		return nil, err
	}
	if b[0] != 0 {
		return nil, RefusedError(b[0])
	}
	return bytes.Clone(b), nil
}
