package node

import (
	"errors"
	"net"
	"strings"
	"testing"
)

// TestSecurity_secretAloneStaysOnLoopback: what follows a handshake by a secret is
// neither encrypted nor authenticated, so no other machine may reach it.
func TestSecurity_secretAloneStaysOnLoopback(t *testing.T) {
	secret, both := &security{secret: "s"}, &security{secret: "s", cert: "c"}
	for _, r := range []struct {
		s    *security
		at   string
		want error
	}{
		{secret, "127.0.0.1:7081", nil},
		{secret, "127.0.0.9:7081", nil},
		{secret, "[::1]:7081", nil},
		{secret, "0.0.0.0:7081", errInsecure},
		{secret, "[::]:7081", errInsecure},
		{secret, "192.0.2.7:7081", errInsecure},
		{secret, "169.254.1.1:7081", errInsecure},
		{secret, "[fe80::1]:7081", errInsecure},
		{both, "0.0.0.0:7081", nil},
		{both, "192.0.2.7:7081", nil},
	} {
		addr, err := net.ResolveTCPAddr("tcp", r.at)
		if err != nil {
			t.Fatal(err)
		}
		err = r.s.checkBind("node.addr", addr)
		if !errors.Is(err, r.want) {
			t.Errorf("%s: %v, want %v", r.at, err, r.want)
		}
		if err != nil && (!strings.Contains(err.Error(), "node.tls.cert") || !strings.Contains(err.Error(), "localhost")) {
			t.Errorf("%s: it does not say what to do: %v", r.at, err)
		}
	}
	if err := secret.checkBind("node.addr", &net.UnixAddr{Name: "x"}); !errors.Is(err, errInsecure) {
		t.Errorf("no TCP: %v", err)
	}
}
