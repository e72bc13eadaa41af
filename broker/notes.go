package broker

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// note logs how a connection ended, where that says something.
func (b *Broker) note(s *session, err error) {
	var broken violation
	switch {
	case errors.Is(err, errUnsecured) && (gone(err) || s.broker.context.Err() != nil):
		// a probe that only looks whether the port is open
	case errors.Is(err, errUnsecured):
		b.complain(s.peer, err, "guess", untrusted(err))
	case errors.As(err, &broken) && s.state != open:
		b.complain(s.peer, err, "guess", foreign(s.frames.first[:]))
	case errors.As(err, &broken), errors.Is(err, errBlocked), errors.Is(err, errKeyChanges):
		b.complain(s.peer, err, "connection", s.name)
	case errors.As(err, new(withheld)):
		b.complain(s.peer, err)
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
	default:
		b.config.Log.Debug("connection ended", "connection", s.name, "error", err)
	}
}

// gone says whether an error is only that the client went, or was sent away.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET)
}

// complain logs what a client did wrong: one line in a while for all of them.
func (b *Broker) complain(peer netip.AddrPort, err error, pairs ...any) {
	left, due := b.complaints.due(time.Now())
	if !due {
		return
	}
	pairs = append([]any{"peer", peer.String(), "error", err, "more", left}, pairs...)
	b.config.Log.Warn("client turned away", pairs...)
}

// foreign guesses what speaks to the port if it is not the stream protocol.
func foreign(first []byte) string {
	switch {
	case first[0] == 0x16:
		return "TLS: this port is plain; clients over TLS have a port of their own, stream.tls.addr"
	case bytes.HasPrefix(first, []byte("AMQP")):
		return "AMQP: this port speaks the stream protocol"
	case bytes.Equal(first, []byte("GET ")), bytes.Equal(first, []byte("POST")),
		bytes.Equal(first, []byte("HEAD")), bytes.Equal(first, []byte("PUT ")):
		return "HTTP: this port speaks the stream protocol"
	}
	return "not the stream protocol"
}

// untrusted guesses why TLS could not be agreed.
func untrusted(err error) string {
	var header tls.RecordHeaderError
	var remote *net.OpError
	switch {
	case errors.As(err, &header) && bytes.HasPrefix(header.RecordHeader[:], []byte{0, 0}):
		return "a stream client without TLS: plain clients have a port of their own, stream.addr"
	case errors.As(err, &header):
		return "not TLS: this port speaks the stream protocol over TLS"
	case errors.As(err, &remote) && remote.Op == "remote error":
		return "the client does not trust the certificate of this node, or has no protocol in common with it"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "the client's certificate is not of tls.client_ca, or has ended"
	}
	return "see tls.verify"
}

// complaints keeps the log short while somebody makes trouble: at most one line
// in a while for what strangers do, with how many were left out.
type complaints struct {
	mu   sync.Mutex // guards the fields below
	next time.Time
	left int
}

const complaintPause = 5 * time.Second

// due says whether to log now, and how many were left out since the last time.
func (c *complaints) due(now time.Time) (left int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.next) {
		c.left++
		return 0, false
	}
	left, c.left = c.left, 0
	c.next = now.Add(complaintPause)
	return left, true
}
