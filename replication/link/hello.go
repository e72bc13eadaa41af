package link

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/millrace/millrace/replication/protocol"
)

// Purpose is what a connection between nodes is for. It is its first byte, and
// over TLS agrees with the protocol name (ALPN).
type Purpose byte

const (
	PurposeRaft Purpose = 'R'
	PurposeLink Purpose = 'L'
	// PurposeKnock: one question, by whoever proves to be a node.
	PurposeKnock Purpose = 'J'
)

// Versions of the link that this program speaks.
const (
	versionMin = 1
	versionMax = 1
)

const (
	nonceBytes = 32
	proofBytes = sha256.Size
	// nameBytesMax bounds names of nodes and clusters.
	nameBytesMax = 255
	// helloBytesMax is the longest hello: fixed part and three names.
	helloBytesMax = helloFixed + 3*(1+nameBytesMax)
	helloFixed    = 4 + 2 + 2 + 2 + 8 + nonceBytes
)

// hello is what the dialer says first.
//
//	 0   1     4      6    7    8    9    10      18       50
//	+---+-----+------+----+----+----+----+-------+--------+------+--------+----+----+
//	|LRJ| MRL |length|min |max |slot|slots bundle| nonce  |  n cluster | n from | n to |
//	+---+-----+------+----+----+----+----+-------+--------+------+--------+----+----+
//
// The length counts all after it. Slot and slots number a bundle's connections;
// bundle is 0 in the first one and else what its welcome said. In a knock the
// cluster may be empty, and whom it is for always is.
type hello struct {
	purpose     Purpose
	min, max    byte // versions
	slot, slots byte
	bundle      uint64
	nonce       [nonceBytes]byte
	cluster     string
	from, to    protocol.NodeID
}

const helloMagic = "MRL"

func (h *hello) append(dst []byte) []byte {
	dst = append(dst, byte(h.purpose))
	dst = append(dst, helloMagic...)
	at := len(dst)
	dst = append(dst, 0, 0, h.min, h.max, h.slot, h.slots)
	dst = binary.BigEndian.AppendUint64(dst, h.bundle)
	dst = append(dst, h.nonce[:]...)
	for _, s := range [...]string{h.cluster, string(h.from), string(h.to)} {
		dst = append(append(dst, byte(len(s))), s...)
	}
	binary.BigEndian.PutUint16(dst[at:], uint16(len(dst)-at-2))
	return dst
}

// readHello reads a hello and returns its bytes too, which proofs are over.
func readHello(r io.Reader) (h hello, raw []byte, err error) {
	raw = make([]byte, 6, helloBytesMax)
	if _, err = io.ReadFull(r, raw); err != nil {
		return h, nil, err
	}
	n := int(binary.BigEndian.Uint16(raw[4:]))
	h.purpose = Purpose(raw[0])
	if string(raw[1:4]) != helloMagic || 6+n > helloBytesMax || protocolNames[h.purpose] == "" {
		return h, nil, fmt.Errorf("first bytes % x: %w", raw, ErrHandshake)
	}
	raw = raw[:6+n]
	if _, err = io.ReadFull(r, raw[6:]); err != nil {
		return h, nil, err
	}
	c := cursor{p: raw[6:]}
	h.min, h.max, h.slot, h.slots, h.bundle = c.u8(), c.u8(), c.u8(), c.u8(), c.u64()
	copy(h.nonce[:], c.take(nonceBytes))
	h.cluster, h.from, h.to = c.words(), protocol.NodeID(c.text()), protocol.NodeID(c.words())
	knock := h.purpose == PurposeKnock
	c.require(knock == (h.to == "") && (knock || h.cluster != ""))
	c.require(h.slot < h.slots && h.slots <= slotsMax && h.min <= h.max)
	if !c.done() {
		return h, nil, fmt.Errorf("hello of %d bytes: %w", n, ErrHandshake)
	}
	return h, raw, nil
}

// answer is what the acceptor says, twice: after the hello (challenge) and after
// the dialer's proof (welcome).
//
//	 0    1    2       10       42
//	+----+----+-------+--------+
//	|code|vers| bundle| nonce, |
//	|    |    |       | proof  |
//	+----+----+-------+--------+
//
// A code that is not 0 ends the connection.
type answer struct {
	code    byte
	version byte
	bundle  uint64   // in the welcome
	value   [32]byte // challenge: the acceptor's nonce; welcome: its proof
}

const answerBytes = 2 + 8 + 32

func (a *answer) append(dst []byte) []byte {
	dst = append(dst, a.code, a.version)
	dst = binary.BigEndian.AppendUint64(dst, a.bundle)
	return append(dst, a.value[:]...)
}

// readAnswer reads an answer; a refusal comes as the error that it stands for.
func readAnswer(r io.Reader) (a answer, raw []byte, err error) {
	raw = make([]byte, answerBytes)
	if _, err = io.ReadFull(r, raw); err != nil {
		return a, nil, err
	}
	c := cursor{p: raw}
	a.code, a.version, a.bundle = c.u8(), c.u8(), c.u64()
	copy(a.value[:], c.take(len(a.value)))
	if a.code != 0 {
		return a, nil, fmt.Errorf("refused by the other side: %w", refusal(a.code))
	}
	return a, raw, nil
}

// refusals are the codes on the wire; 0 is none.
var refusals = [...]error{
	1: ErrHandshake, 2: ErrVersion, 3: ErrCluster, 4: ErrNode, 5: ErrUnproven,
	6: ErrStranger, 7: ErrBusy, 8: ErrClosed, 9: ErrPlain,
}

func refusal(code byte) error {
	if int(code) < len(refusals) {
		return refusals[code]
	}
	return ErrHandshake
}

// proof shows that its maker knows the secret and speaks in this very
// conversation: the hello with the dialer's nonce, the challenge with the
// acceptor's, and over TLS a key that only both ends of this connection have.
// Each side has a label of its own, so that no proof can be sent back.
func proof(secret []byte, label string, transcript ...[]byte) (p [proofBytes]byte) {
	mac := hmac.New(sha256.New, secret)
	var n [4]byte
	for _, part := range append([][]byte{[]byte(label)}, transcript...) {
		binary.BigEndian.PutUint32(n[:], uint32(len(part)))
		mac.Write(n[:])
		mac.Write(part)
	}
	mac.Sum(p[:0])
	return p
}

const (
	labelDialer   = "millrace link 1: dialer"
	labelAcceptor = "millrace link 1: acceptor"
)

// provedBy returns the secret that a proof was made with, nil if none.
func provedBy(secrets [][]byte, p []byte, label string, transcript ...[]byte) []byte {
	var by []byte
	for _, s := range secrets {
		if want := proof(s, label, transcript...); hmac.Equal(want[:], p) {
			by = s
		}
	}
	return by
}

// emptyProof is what stands in a proof's place where no secret is used.
var emptyProof [proofBytes]byte

func isEmpty(p []byte) bool { return bytes.Equal(p, emptyProof[:]) }
