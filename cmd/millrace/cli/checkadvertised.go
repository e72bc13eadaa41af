package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/wire"
)

func checkAdvertised(t *terminal) *cobra.Command {
	return probe(t, "advertised", "do clients here reach the nodes where they are told to?",
		`Clients connect to a node by any address, and are then told by each stream's metadata
where its leader is: advertised.host and advertised.port. This resolves and dials
that address of every node from the machine it runs on, as a client there would,
and looks whether that very node answers. Critical: one can't be reached, or another
one answers.`,
		"millrace check advertised --addr http://n1.example.com:7080", "on a client's machine", 0, inVHost,
		func(p *probing, cmd *cobra.Command, _ []string, f *finding) error {
			var c admin.Cluster
			if err := p.call(cmd.Context(), "GET", "/api/v1/cluster", nil, &c); err != nil {
				return err
			}
			password, err := p.who.password(p.t)
			if err != nil {
				return err
			}
			reached := make([]error, len(c.Members))
			var all sync.WaitGroup
			for i, m := range c.Members {
				all.Go(func() {
					reached[i] = p.reach(cmd.Context(), m.Addresses["stream"], password)
				})
			}
			all.Wait()
			judgeAdvertised(f, c.Members, reached)
			return nil
		})
}

// reach connects as a client does, and wants the address to be the node's own.
func (p *probing) reach(ctx context.Context, addr, password string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is no address: %w", addr, err)
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if _, err := net.DefaultResolver.LookupHost(ctx, host); err != nil {
		return fmt.Errorf("%s is not known here: %w", host, err)
	}
	conn, err := client.Dial(ctx, client.Config{Addr: addr, User: p.who.user, Password: password, VirtualHost: p.vhost, Name: "millrace check", Timeout: p.timeout})
	var closed *client.ClosedError
	switch code := client.Code(err); {
	case err == nil:
	case code != 0 && code != wire.CodeOK, errors.As(err, &closed):
		return nil // a broker answers there, though it does not let this user in
	default:
		return err
	}
	defer conn.Close()
	if own := conn.Server.AdvertisedAddr; own != addr {
		return fmt.Errorf("another node answers there, which calls itself %s", own)
	}
	return nil
}

// judgeAdvertised says which addresses are of no use to clients here.
func judgeAdvertised(f *finding, members []admin.Member, reached []error) {
	good := 0
	for i, m := range members {
		switch addr := m.Addresses["stream"]; {
		case reached[i] == nil:
			good++
		case m.State != admin.StateOf(true):
			f.because(checkWarning, "%s is down", m.Node)
		default:
			f.because(checkCritical, "%s tells clients to connect to %s: %v (see advertised.host and advertised.port)", m.Node, addr, reached[i])
		}
	}
	f.Summary = fmt.Sprintf("%s reached at the address that it tells clients", some(good, "node"))
	f.figure("nodes", float64(len(members)))
	f.figure("nodes_reached", float64(good))
}
