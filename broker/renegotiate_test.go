package broker_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/wire"
)

// heard keeps what a connection's other end says.
type heard struct {
	net.Conn
	bytes bytes.Buffer
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	h.bytes.Write(p[:n])
	return n, err
}

// TestTLS_renegotiationIsRefused: who begins another handshake inside of TLS 1.2,
// which costs a node more than it costs him, is cut off. No client of this language
// does that, so the record is sealed by hand.
func TestTLS_renegotiationIsRefused(t *testing.T) {
	hello := append([]byte{1, 0, 0, 43, 3, 3}, make([]byte, 32)...) // ClientHello: random
	hello = append(hello, 0, 0, 2, 0xc0, 0x2b, 1, 0, 0, 0)          // no session, one cipher, no extensions
	for _, r := range []struct {
		name    string
		message []byte
		ends    string // with which error
	}{{"ClientHello", hello, "unexpected handshake message of type *tls.clientHelloMsg"}, {"HelloRequest", []byte{0, 0, 0, 0}, "tls: no renegotiation"}} {
		t.Run(r.name, func(t *testing.T) {
			h := serveTLS(t, nil, tls.NoClientCert)
			conn, err := net.Dial("tcp", h.addrTLS)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			server, keys := &heard{Conn: conn}, &bytes.Buffer{}
			secure := tls.Client(server, &tls.Config{
				RootCAs: h.authority.pool(), ServerName: "localhost", MaxVersion: tls.VersionTLS12,
				CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}, KeyLogWriter: keys,
			})
			if err := secure.Handshake(); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(sealRecord(t, keys.String(), server.bytes.Bytes()[11:43], r.message)); err != nil {
				t.Fatal(err)
			}
			if n, err := secure.Read(make([]byte, 1)); err == nil || timedOut(err) {
				t.Fatalf("%d bytes, error %v: the connection goes on", n, err)
			}
			eventually(t, "the connection is gone", func() bool { return h.broker.Stats().Connections == 0 && h.lines.says(r.ends) })
			h.secure(t).advance(5, "guest", "guest", &wire.Tune{}) // others are served
		})
	}
}

// sealRecord makes the client's second record of TLS 1.2, a handshake message, from
// the log of keys (CLIENT_RANDOM random secret) and the server's random.
func sealRecord(t *testing.T, keyLog string, serverRandom, message []byte) []byte {
	t.Helper()
	fields := strings.Fields(keyLog)
	clientRandom, errRandom := hex.DecodeString(fields[1])
	secret, errSecret := hex.DecodeString(fields[2])
	if errRandom != nil || errSecret != nil {
		t.Fatal(errRandom, errSecret)
	}
	// 16 bytes of the client's key, 16 of the server's, 4 of the client's IV.
	block := expand(secret, append(append([]byte("key expansion"), serverRandom...), clientRandom...), 36)
	c, err := aes.NewCipher(block[:16])
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(c)
	if err != nil {
		t.Fatal(err)
	}
	sequence := []byte{0, 0, 0, 0, 0, 0, 0, 1}
	head := []byte{22, 3, 3}
	about := binary.BigEndian.AppendUint16(append(bytes.Clone(sequence), head...), uint16(len(message)))
	sealed := aead.Seal(bytes.Clone(sequence), append(bytes.Clone(block[32:36]), sequence...), message, about)
	return append(binary.BigEndian.AppendUint16(head, uint16(len(sealed))), sealed...)
}

// expand is TLS 1.2's pseudo-random function.
func expand(secret, seed []byte, size int) []byte {
	sum := func(parts ...[]byte) []byte {
		m := hmac.New(sha256.New, secret)
		for _, p := range parts {
			m.Write(p)
		}
		return m.Sum(nil)
	}
	var out []byte
	for a := sum(seed); len(out) < size; a = sum(a) {
		out = append(out, sum(a, seed)...)
	}
	return out[:size]
}

// TestTLS_changesOfKeys: a client may have the keys changed as often as it lets the
// broker speak in between; the answers to one that only asks do not pile up.
func TestTLS_changesOfKeys(t *testing.T) {
	h := serveTLS(t, nil, tls.NoClientCert)
	const together = 10 // TLS takes so many without anything in between
	t.Run("between answers", func(t *testing.T) {
		c := h.sealTLS(t)
		p := newPeer(t, c)
		p.advance(5, "guest", "guest", &wire.Tune{FrameMax: 1 << 20})
		for range 400 {
			c.changeKeys(t, together)
			p.ask(&wire.Metadata{Correlation: p.next(), Streams: wire.StringsOf()})
		}
	})
	t.Run("without an answer before the login", func(t *testing.T) {
		c := h.sealTLS(t)
		frame := append([]byte{0, 0, 0x10, 0}, make([]byte, 400)...) // never whole
		for _, b := range frame {
			if c.changeKeys(t, together) != nil {
				break
			}
			if _, err := c.Write([]byte{b}); err != nil {
				break
			}
		}
		h.lines.wantLine(t, "too many changes of keys")
		eventually(t, "the connection is gone", func() bool { return h.broker.Stats().Connections == 0 })
	})
}

// sealing is a client of TLS 1.3 whose records are sealed by hand, since none of
// this language asks for a change of keys.
type sealing struct {
	*tls.Conn // which reads
	socket    net.Conn
	secret    []byte
	aead      cipher.AEAD
	iv        []byte
	sequence  uint64
}

func (h *secureHouse) sealTLS(t *testing.T) *sealing {
	t.Helper()
	socket, err := net.Dial("tcp", h.addrTLS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	_ = socket.SetDeadline(time.Now().Add(patience))
	keys := &bytes.Buffer{}
	c := &sealing{socket: socket, Conn: tls.Client(socket, &tls.Config{
		RootCAs: h.authority.pool(), ServerName: "localhost", MinVersion: tls.VersionTLS13, KeyLogWriter: keys,
	})}
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	if suite := c.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Skipf("%s is agreed, which is not sealed by hand here", tls.CipherSuiteName(suite))
	}
	for line := range strings.Lines(keys.String()) {
		if fields := strings.Fields(line); fields[0] == "CLIENT_TRAFFIC_SECRET_0" {
			if c.secret, err = hex.DecodeString(fields[2]); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.take(t)
	return c
}

// take makes the keys of the secret.
func (c *sealing) take(t *testing.T) {
	t.Helper()
	block, err := aes.NewCipher(c.derive(t, "key", 16))
	if err != nil {
		t.Fatal(err)
	}
	if c.aead, err = cipher.NewGCM(block); err != nil {
		t.Fatal(err)
	}
	c.iv, c.sequence = c.derive(t, "iv", 12), 0
}

// derive is TLS 1.3's HKDF-Expand-Label without a context.
func (c *sealing) derive(t *testing.T, label string, size int) []byte {
	t.Helper()
	label = "tls13 " + label
	out, err := hkdf.Expand(sha256.New, c.secret, string([]byte{0, byte(size), byte(len(label))})+label+"\x00", size)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// record seals content of a type.
func (c *sealing) record(sort byte, content []byte) []byte {
	nonce := bytes.Clone(c.iv)
	for i, b := range binary.BigEndian.AppendUint64(nil, c.sequence) {
		nonce[4+i] ^= b
	}
	c.sequence++
	head := binary.BigEndian.AppendUint16([]byte{23, 3, 3}, uint16(len(content)+1+c.aead.Overhead()))
	return c.aead.Seal(head, nonce, append(bytes.Clone(content), sort), head)
}

// changeKeys sends changes of keys that ask for the other side's.
func (c *sealing) changeKeys(t *testing.T, times int) error {
	t.Helper()
	var records []byte
	for range times {
		records = append(records, c.record(22, []byte{24, 0, 0, 1, 1})...)
		c.secret = c.derive(t, "traffic upd", sha256.Size)
		c.take(t)
	}
	_, err := c.socket.Write(records)
	return err
}

func (c *sealing) Write(p []byte) (int, error) {
	if _, err := c.socket.Write(c.record(23, p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
