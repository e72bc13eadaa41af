package broker_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
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
