package goclient

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// balancer is a load balancer before the nodes: each connection goes to the next
// node that takes one. Clients see its address alone.
type balancer struct {
	listener net.Listener
	nodes    []string
	next     atomic.Int64
	taken    atomic.Int64 // connections
}

func startBalancer(t *testing.T, nodes []string) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: listener, nodes: nodes}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			b.taken.Add(1)
			go b.serve(conn)
		}
	}()
	return b
}

func (b *balancer) port() int { return b.listener.Addr().(*net.TCPAddr).Port }

func (b *balancer) serve(from net.Conn) {
	defer from.Close()
	for range b.nodes {
		to, err := net.Dial("tcp", b.nodes[int(b.next.Add(1))%len(b.nodes)])
		if err != nil {
			continue
		}
		defer to.Close()
		var both sync.WaitGroup
		for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
			both.Go(func() {
				_, _ = io.Copy(way[1], way[0]) // ends with either side
				from.Close()
				to.Close()
			})
		}
		both.Wait()
		return
	}
}
