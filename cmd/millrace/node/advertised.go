package node

import (
	"context"
	"fmt"
	"net"
	"time"
)

// advertisedPatience bounds the look at this node's own advertised address.
const advertisedPatience = 5 * time.Second

// checkAdvertised looks, once clients are served, whether the addresses that they
// are told lead here, and says so in one line each: a name that nobody resolves
// is otherwise found out by clients alone, which only say that they can't connect.
func (n *Node) checkAdvertised() {
	if n.config.Dev {
		return // loopback, by definition
	}
	for _, addr := range []string{n.addresses.Advertised, n.addresses.AdvertisedTLS} {
		if addr == "" {
			continue
		}
		n.serving.Go(func() {
			ctx, cancel := context.WithTimeout(n.running, advertisedPatience)
			defer cancel()
			ips, err := dialAdvertised(ctx, addr)
			switch {
			case err == nil:
				n.log.Info("clients are told to connect here, and it leads to this machine's port", "advertised", addr, "resolves", ips)
			case n.running.Err() == nil:
				n.log.Warn("clients are told to connect to an address that can't be reached from here: set advertised.host and advertised.port; "+
					"millrace check advertised tells it from a client's machine", "advertised", addr, "error", err)
			}
		})
	}
}

// dialAdvertised resolves host:port and connects to it.
func dialAdvertised(ctx context.Context, addr string) (ips []string, err error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if ips, err = net.DefaultResolver.LookupHost(ctx, host); err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return ips, err
	}
	return ips, conn.Close()
}
