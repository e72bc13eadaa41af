package broker_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/wire"
)

// TestTLS_publishesAndDelivers: under TLS everything is as without, whole chunks
// from the log included.
func TestTLS_publishesAndDelivers(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			h := serveTLS(t, nil, tls.NoClientCert)
			p, err := h.dialTLS(t, nil, version)
			if err != nil {
				t.Fatal(err)
			}
			p.advance(5, "guest", "guest", &wire.Tune{FrameMax: 1 << 20, Heartbeat: 60})
			p.create("s")
			p.declare(0, "", "s")
			var want []string
			for i := range 40 {
				want = append(want, strings.Repeat(fmt.Sprint(i%10), 20_000)) // chunks beyond a record, together beyond what is collected
			}
			for i, message := range want {
				p.publish(0, uint64(i), message)
				p.wantConfirms(0, uint64(i), 1)
			}
			p.subscribe(0, "s", first, 1000)
			var got []string
			for len(got) < len(want) {
				got = append(got, p.wantDeliver().messages...)
			}
			if !slices.Equal(got, want) {
				t.Fatal("other messages came than went")
			}
			if c := h.broker.Connections()[0]; !strings.HasPrefix(c.TLS, tls.VersionName(version)) {
				t.Errorf("the connection is shown as %q", c.TLS)
			}
		})
	}
}

// TestTLS_olderVersions: what is broken is not spoken.
func TestTLS_olderVersions(t *testing.T) {
	h := serveTLS(t, nil, tls.NoClientCert)
	if _, err := h.dialTLS(t, nil, tls.VersionTLS11); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
}

// TestTLS_metadataNamesEndpointsOfTheSameKind: who came by TLS is sent on by TLS,
// who did not is not.
func TestTLS_metadataNamesEndpointsOfTheSameKind(t *testing.T) {
	h := serveTLS(t, func(c *broker.Config) { c.AdvertisedHost, c.AdvertisedTLSHost = "plain.example", "secure.example" }, tls.NoClientCert)
	plain := h.open(t)
	plain.create("s")
	for node, at := range map[string]catalog.Endpoints{
		"n2": {Stream: "two.example:1", StreamTLS: "two.example:2"}, "n3": {Stream: "three.example:1"},
	} {
		h.addReplica(t, "s", node, at.Stream)
		h.promote(t, "s", node)
		put := &catalog.PutNode{Disk: "other", Endpoints: at}
		setID(&put.ID, node)
		h.do(t, put)
	}
	secure := h.secure(t)
	secure.advance(4, "guest", "guest", &wire.Tune{})
	opened := secure.ask(&wire.Open{Correlation: 1, VirtualHost: "/"}).(*wire.OpenResponse).Properties.Map()
	if opened["advertised_host"] != "secure.example" || opened["advertised_port"] != portOf(h.addrTLS) {
		t.Errorf("open says %v", opened)
	}
	for _, r := range []struct {
		p    *peer
		want []string
	}{
		{plain, []string{"plain.example:" + portOf(h.addr), "three.example:1", "two.example:1"}},
		{secure, []string{"secure.example:" + portOf(h.addrTLS), "two.example:2"}},
	} {
		var got []string
		for b := range r.p.ask(&wire.Metadata{Correlation: 1, Streams: wire.StringsOf("s")}).(*wire.MetadataResponse).Brokers.All() {
			got = append(got, fmt.Sprintf("%s:%d", b.Host, b.Port))
		}
		slices.Sort(got)
		if slices.Sort(r.want); !slices.Equal(got, r.want) {
			t.Errorf("metadata names %v, want %v", got, r.want)
		}
	}
}

// TestTLS_external: a certificate logs its user in, and nothing else does.
func TestTLS_external(t *testing.T) {
	h := serveTLS(t, func(c *broker.Config) { c.LoopbackUsers = []string{} }, tls.VerifyClientCertIfGiven)
	h.addUser(t, "ann", "unknown")
	h.permit(t, "ann", "/", "", "", "^s")
	ann, nobody := h.authority.user("ann"), h.authority.user("nobody")
	external := &wire.SaslAuthenticate{Correlation: 9, Mechanism: "EXTERNAL", Data: []byte("\x00guest\x00guest")}
	for _, r := range []struct {
		name  string
		shows *tls.Certificate
		want  wire.ResponseCode
	}{
		{"a certificate of a user", &ann, wire.CodeOK},
		{"a certificate of nobody", &nobody, wire.CodeAuthenticationFailure},
		{"no certificate", nil, wire.CodeAuthenticationFailure},
	} {
		p, err := h.dialTLS(t, r.shows, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.advance(1, "", "", nil)
		offer := p.ask(&wire.SaslHandshake{Correlation: 1}).(*wire.SaslHandshakeResponse).Mechanisms.Slice()
		if !slices.Equal(offer, []string{"AMQPLAIN", "EXTERNAL", "PLAIN"}) {
			t.Errorf("offered are %v", offer)
		}
		p.wantCode(p.ask(external), r.want)
		if r.want != wire.CodeOK {
			p.wantEnd()
			continue
		}
		p.await(wire.KeyTune)
		p.send(&wire.Tune{})
		p.wantCode(p.ask(&wire.Open{Correlation: 1, VirtualHost: "/"}), wire.CodeOK)
		if c := h.broker.Connections()[0]; c.User != "ann" || c.Mechanism != "EXTERNAL" {
			t.Errorf("logged in is %q by %s, not who the certificate names", c.User, c.Mechanism)
		}
		p.wantCode(p.ask(external), wire.CodeOK) // renewed
		p.wantCode(p.ask(&wire.Create{Correlation: 1, Stream: "s"}), wire.CodeAccessRefused)
	}
	// Another authority's certificate does not get that far.
	stranger := newAuthority(t).user("ann")
	if p, err := h.dialTLS(t, &stranger, tls.VersionTLS12); err == nil {
		p.wantEnd()
		t.Error("a stranger's certificate is taken")
	}
	h.lines.wantLine(t, "client turned away") // of the refusals above; one line for all
	// Without TLS there is no such mechanism.
	plain := h.dial(t)
	plain.advance(2, "", "", nil)
	plain.wantCode(plain.ask(external), wire.CodeSaslMechanismNotSupported)
	plain.wantEnd()
}

// TestTLS_verifyRequired: where certificates are required, a password alone does
// not do, and a certificate does not replace one.
func TestTLS_verifyRequired(t *testing.T) {
	h := serveTLS(t, nil, tls.RequireAndVerifyClientCert)
	guest := h.authority.user("guest")
	p, err := h.dialTLS(t, &guest, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.advance(5, "guest", "guest", &wire.Tune{})
	if _, err := h.dialTLS(t, nil, tls.VersionTLS12); err == nil {
		t.Fatal("who shows no certificate is let in")
	}
	h.lines.wantLine(t, "TLS handshake failed", "didn't provide a certificate", "tls.verify")
}

// TestTLS_wrongPort: who speaks something else is sent away at once, with one line
// that says which port is which.
func TestTLS_wrongPort(t *testing.T) {
	for _, r := range []struct {
		name, says string
		secure     bool
		hello      string
		want       []string
	}{
		{"a plain client on the TLS port", "PeerProperties", true,
			string(wire.Append(nil, &wire.PeerProperties{Correlation: 1})), []string{"without TLS", "stream.addr"}},
		{"HTTP on the TLS port", "GET", true, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", []string{"not TLS"}},
		{"noise on the TLS port", "noise", true, "\xde\xad\xbe\xef\x01\x02\x03\x04\x05", []string{"not TLS"}},
		{"TLS on the plain port", "hello", false, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", []string{"this port is plain", "stream.tls.addr"}},
	} {
		t.Run(r.name, func(t *testing.T) {
			h := serveTLS(t, nil, tls.NoClientCert)
			addr := h.addr
			if r.secure {
				addr = h.addrTLS
			}
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			if _, err := conn.Write([]byte(r.hello)); err != nil {
				t.Fatal(err)
			}
			if answer, _ := io.ReadAll(conn); len(answer) > 16 {
				t.Errorf("it is answered %q", answer)
			}
			h.lines.wantLine(t, append(r.want, "127.0.0.1")...)
			h.secure(t).advance(5, "guest", "guest", &wire.Tune{}) // others are served
		})
	}
}

// TestTLS_unfinishedHandshakeIsCut: neither silence nor a drip keeps a socket
// beyond the time for TLS, which is no part of what others wait for.
func TestTLS_unfinishedHandshakeIsCut(t *testing.T) {
	h := serveTLS(t, func(c *broker.Config) { c.TLSHandshakeTimeout = 200 * time.Millisecond }, tls.NoClientCert)
	for _, begun := range []string{"", "\x16\x03\x01", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"} {
		conn, err := net.Dial("tcp", h.addrTLS)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		done := make(chan error, 1)
		go func() { _, err := io.Copy(io.Discard, conn); done <- err }()
		drip := time.NewTicker(20 * time.Millisecond)
		_, _ = conn.Write([]byte(begun))
		for ended := false; !ended; {
			select {
			case err := <-done:
				ended = true
				if timedOut(err) {
					t.Errorf("%q is waited for", begun)
				}
			case <-drip.C:
				if begun != "" {
					_, _ = conn.Write([]byte{0})
				}
			}
		}
		drip.Stop()
	}
	h.lines.wantLine(t, "stream.tls.handshake_timeout")
	h.secure(t).advance(5, "guest", "guest", &wire.Tune{})
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// TestTLS_probesAreSilent: a load balancer that looks whether the port is open
// leaves no line.
func TestTLS_probesAreSilent(t *testing.T) {
	h := serveTLS(t, nil, tls.NoClientCert)
	for range 20 {
		conn, err := net.Dial("tcp", h.addrTLS)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	eventually(t, "all are gone", func() bool { return h.broker.Stats().Accepted == 20 && h.broker.Stats().Connections == 0 })
	if len(h.lines.lines) > 0 {
		t.Errorf("the log says %v", h.lines.lines)
	}
}

// TestTLS_aConsumerThatDoesNotReadIsCut: what waits under TLS is bounded in bytes
// and time, and closing does not wait for the client.
func TestTLS_aConsumerThatDoesNotReadIsCut(t *testing.T) {
	h := serveTLS(t, func(c *broker.Config) { c.BlockedSocketTimeout = 200 * time.Millisecond }, tls.NoClientCert)
	p := h.secure(t)
	p.advance(5, "guest", "guest", &wire.Tune{FrameMax: 1 << 20})
	p.create("s")
	p.declare(0, "", "s")
	big := string(bytes.Repeat([]byte("x"), 500_000))
	for i := range 40 {
		p.publish(0, uint64(i), big)
		p.wantConfirms(0, uint64(i), 1)
	}
	p.subscribe(0, "s", first, 65_000)
	eventually(t, "the connection is cut", func() bool { return len(h.broker.Connections()) == 0 })
	if cut := h.broker.Stats().CutConsumers; cut != 1 {
		t.Errorf("%d consumers were cut", cut)
	}
}
