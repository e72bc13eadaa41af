package cli

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// A node that waits for its cluster has its ports and answers nobody: the
// command says so, and does not advise to start another one.
func TestCall_silence(t *testing.T) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := api{t: &terminal{getenv: func(string) string { return "" }}, addr: "http://" + l.Addr().String(), timeout: 100 * time.Millisecond}
	p := explain(a.call(context.Background(), "GET", "/api/v1/streams", nil, nil))
	if p.code != exitUnreachable || p.why != silence {
		t.Errorf("a silent port gives code %d because %q, want %d because %q", p.code, p.why, exitUnreachable, silence)
	}
	if try := strings.Join(p.try, "\n"); strings.Contains(try, "millrace dev") || !strings.Contains(try, "--timeout") {
		t.Errorf("a silent port suggests %q", try)
	}
}
