package integration

import (
	"context"
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
)

// TestSecure_renewed: a running node takes a new certificate, shows it to whoever
// comes next, streams and operators alike, and keeps who is connected.
func TestSecure_renewed(t *testing.T) {
	n := harness.StartSecure(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := client.Dial(ctx, client.Config{Addr: n.StreamTLS, TLS: n.Client(t, "guest"), External: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.Server.AdvertisedAddr != "localhost:"+n.StreamTLS[strings.LastIndex(n.StreamTLS, ":")+1:] {
		t.Errorf("over TLS %s is advertised, not %s", conn.Server.AdvertisedAddr, n.StreamTLS)
	}
	shown := func(addr string) string {
		t.Helper()
		c, err := tls.Dial("tcp", addr, n.Client(t, ""))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	renewed := n.Renew(t).SerialNumber.String()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for shown(n.StreamTLS) != renewed || shown(n.HTTPTLS) != renewed {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the new certificate is not shown")
		}
	}
	if _, err := conn.Metadata(ctx, "s"); err != nil {
		t.Errorf("who was connected is not any more: %v", err)
	}
}
