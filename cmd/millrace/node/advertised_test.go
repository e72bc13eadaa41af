package node

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cmd/millrace/config"
)

// logged is a log that a test waits for.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logged) holds(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		found := true
		for _, word := range words {
			found = found && strings.Contains(line, word)
		}
		if found {
			return true
		}
	}
	return false
}

// A node says in one line whether the address that clients are told leads to it.
func TestAdvertised_saidAtStart(t *testing.T) {
	for _, row := range []struct {
		name string
		host string
		port int
		says []string
	}{
		{"its own", "127.0.0.1", 0, []string{"[INFO]", "advertised=127.0.0.1:", "leads to this machine"}},
		{"nobody listens there", "127.0.0.1", 1, []string{"[WARN]", "advertised=127.0.0.1:1", "advertised.host", "refused"}},
		{"no address", "256.0.0.1", 0, []string{"[WARN]", "advertised=256.0.0.1:", "resolve 256.0.0.1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := config.Server()
			c.NodeName, c.DataDir = "n1", filepath.Join(t.TempDir(), "n1")
			c.StreamAddr, c.HTTPAddr, c.NodeAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
			c.AdvertisedHost, c.AdvertisedPort = row.host, row.port
			log := &logged{}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			n, err := Start(ctx, c, "test", hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: log}))
			if err != nil {
				t.Fatal(err)
			}
			defer n.Stop(ctx)
			w := &whole{t: t}
			w.until("the log says it", func() bool { return log.holds(row.says...) })
		})
	}
}
