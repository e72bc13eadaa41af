package admin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// A page may have its site's name lead to this node once it is loaded (DNS
// rebinding). To the browser the node is that site then: what the page asks is of
// the same origin, comes from the visitor's machine, and may bring guest's
// password. What gives it away is the name that it asks for: the site's, by which
// no node goes.

// hosts are the names that this node goes by, besides IP addresses and localhost,
// which no site can have. They are as hostOf writes them.
type hosts []string

func hostsOf(names []string) hosts {
	var all hosts
	for _, name := range names {
		if name = hostOf(name); name != "" {
			all = append(all, name)
		}
	}
	return all
}

// include tells whether a request whose Host is hostPort may be meant for this node.
func (h hosts) include(hostPort string) bool {
	host := hostOf(hostPort)
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || slices.Contains(h, host)
}

// hostOf is the host of a Host header, with or without a port, in one spelling.
func hostOf(hostPort string) string {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostPort, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// addressed refuses a request under a name that is not this node's, before its
// password is looked at. What anyone may see is shown under any name: probes and
// Prometheus come under names that only they know.
func (s *Server) addressed(needed right, req *http.Request) error {
	if needed == anyone || s.hosts.include(req.Host) {
		return nil
	}
	return fmt.Errorf("%w: %q", errOtherHost, hostOf(req.Host))
}
