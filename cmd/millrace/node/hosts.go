package node

import (
	"net"
	"os"
	"strings"

	"github.com/millrace/millrace/cmd/millrace/config"
)

// hostNames are the names that operators may ask this node under: its own, its
// machine's, those in the addresses that it listens on or tells others, and those
// that it is given as such.
func hostNames(c config.Config) []string {
	names := append([]string{c.NodeName, c.AdvertisedHost, c.AdvertisedTLSHost}, c.HTTPHosts...)
	for _, addr := range []string{c.HTTPAddr, c.HTTPTLSAddr, c.ManagementAddr, c.StreamAddr, c.StreamTLSAddr, c.NodeAddr, c.NodeAdvertised} {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			names = append(names, host)
		}
	}
	if machine, err := os.Hostname(); err == nil { // a machine without a name has none to be asked under
		short, _, _ := strings.Cut(machine, ".")
		names = append(names, machine, short)
	}
	return names
}
