package link

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/millrace/millrace/replication/protocol"
)

// A knock is one question to the node at an address, whoever it is: a node that
// joins knows neither the names of the others nor, without certificates, their
// cluster. Both ends prove themselves as on every other connection; that they
// are of one cluster only a certificate says. Then, both ways:
//
//	0        4
//	+--------+- - - -+
//	| length | text  |
//	+--------+- - - -+
const (
	// knockBytesMax bounds question and answer.
	knockBytesMax = 256 << 10
	// knockTimeout bounds the answer to a question.
	knockTimeout = 30 * time.Second
	// knocksMax bounds the questions that are being answered.
	knocksMax = 32
)

// Knock asks the node at an address and returns its answer.
func (m *Mux) Knock(ctx context.Context, addr string, question []byte) ([]byte, error) {
	if len(question) > knockBytesMax {
		return nil, fmt.Errorf("knock of %d bytes: %w", len(question), ErrTooLarge)
	}
	c, err := m.dialAt(ctx, addr, hello{purpose: PurposeKnock, slots: 1}, func() {})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.SetDeadline(time.Now().Add(knockTimeout)); err != nil {
		return nil, err
	}
	if err := writeText(c, question); err != nil {
		return nil, fmt.Errorf("knock at %s: %w", addr, err)
	}
	answer, err := readText(c)
	if err != nil {
		return nil, fmt.Errorf("knock at %s: %w", addr, err)
	}
	return answer, nil
}

// answerKnock serves one question.
func (m *Mux) answerKnock(c *peerConn) {
	defer c.Close()
	select {
	case m.knocks <- struct{}{}:
		defer func() { <-m.knocks }()
	default:
		m.config.Refused(c.RemoteAddr(), ErrTooMany)
		return
	}
	stop := context.AfterFunc(m.ctx, func() { _ = c.Close() })
	defer stop()
	if c.SetDeadline(time.Now().Add(knockTimeout)) != nil {
		return
	}
	question, err := readText(c)
	if err != nil {
		m.config.Refused(c.RemoteAddr(), err)
		return
	}
	ctx, cancel := context.WithTimeout(m.ctx, knockTimeout)
	defer cancel()
	_ = writeText(c, m.config.Knocked(ctx, c.peer, question)) // who has gone does not want it
}

func writeText(c net.Conn, text []byte) error {
	_, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

func readText(c net.Conn) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > knockBytesMax {
		return nil, fmt.Errorf("text of %d bytes: %w", n, ErrTooLarge)
	}
	text := make([]byte, n)
	_, err := io.ReadFull(c, text)
	return text, err
}

// Certified returns the cluster that this node's certificate names, "" without
// a certificate.
func (m *Mux) Certified() (string, error) {
	c, err := m.credentials()
	if err != nil || c.cert == nil {
		return "", err
	}
	return clusterIn(c.cert, m.config.Node)
}

// clusterIn returns the cluster that a node's certificate names.
func clusterIn(cert *tls.Certificate, node protocol.NodeID) (string, error) {
	_, others := nodesIn(cert.Leaf, "")
	for _, cluster := range others {
		if nodes, _ := nodesIn(cert.Leaf, cluster); contains(nodes, node) {
			return cluster, nil
		}
	}
	return "", fmt.Errorf("%w: it does not name node %q (%sCLUSTER/%s); issue one for it (millrace cert issue)", ErrCertificate, node, identityScheme, node)
}
