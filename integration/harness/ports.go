package harness

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports of nodes lie below those that the kernel gives to connections, and to
// whoever asks for any: a node that is down would lose its own to them.
const (
	portsFrom = 16_000
	portsTo   = 32_000
	// portTries bounds the search for one that is free.
	portTries = 1000
)

// ports were given out in this process.
var ports struct {
	mu    sync.Mutex // guards given
	given map[int]bool
}

// freePorts returns addresses on loopback that nobody listens on, and that are
// nobody else's in this process.
func freePorts(t testing.TB, n int) []string {
	t.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.given == nil {
		ports.given = map[int]bool{}
	}
	var addrs []string
	for range portTries {
		if len(addrs) == n {
			return addrs
		}
		port := portsFrom + rand.IntN(portsTo-portsFrom)
		if ports.given[port] {
			continue
		}
		addr := fmt.Sprintf("localhost:%d", port)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		_ = l.Close()
		ports.given[port] = true
		addrs = append(addrs, addr)
	}
	t.Fatalf("there are no %d free ports from %d to %d", n, portsFrom, portsTo)
	return nil
}
