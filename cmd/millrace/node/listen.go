package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/millrace/millrace/cmd/millrace/config"
)

// listeners are the node's open ports. Each service has one listener for each
// address that its host stands for.
type listeners struct {
	stream, http, management []net.Listener
	streamTLS, httpTLS       []net.Listener
	node                     net.Listener // nil for a node that stays alone
}

func listenAll(c config.Config) (l listeners, err error) {
	streamTLS := c.StreamTLSAddr
	if c.TLSCert == "" {
		streamTLS = "" // by default it has an address
	}
	for _, service := range []struct {
		addr   string
		into   *[]net.Listener
		socket net.ListenConfig
	}{
		{c.StreamAddr, &l.stream, net.ListenConfig{Control: limitSegments}},
		{streamTLS, &l.streamTLS, net.ListenConfig{Control: limitSegments}},
		{c.HTTPTLSAddr, &l.httpTLS, net.ListenConfig{}},
		{c.HTTPAddr, &l.http, net.ListenConfig{}},
		{c.ManagementAddr, &l.management, net.ListenConfig{}},
	} {
		if service.addr == "" {
			continue
		}
		if *service.into, err = listen(service.socket, service.addr); err != nil {
			l.close()
			return listeners{}, err
		}
	}
	return l, nil
}

// listen opens addr. "localhost" is both loopback addresses, since clients try
// either first; a machine without IPv6 has one.
func listen(socket net.ListenConfig, addr string) ([]net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	if host != "localhost" {
		l, err := socket.Listen(context.Background(), "tcp", addr)
		if err != nil {
			return nil, err
		}
		return []net.Listener{l}, nil
	}
	four, err := socket.Listen(context.Background(), "tcp4", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return nil, err
	}
	// With port 0 the second one takes the port that the first one got.
	port = strconv.Itoa(four.Addr().(*net.TCPAddr).Port)
	six, err := socket.Listen(context.Background(), "tcp6", net.JoinHostPort("::1", port))
	if err != nil {
		return []net.Listener{four}, nil
	}
	return []net.Listener{four, six}, nil
}

// shown is the address as configured, with the port that it got.
func shown(addr string, on []net.Listener) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || len(on) == 0 {
		return ""
	}
	if host == "" {
		host = "localhost"
	}
	return net.JoinHostPort(host, strconv.Itoa(on[0].Addr().(*net.TCPAddr).Port))
}

// close ends all of them; a server that took one over has closed it already.
func (l *listeners) close() {
	for _, group := range [][]net.Listener{l.stream, l.streamTLS, l.http, l.httpTLS, l.management, {l.node}} {
		for _, one := range group {
			if one == nil {
				continue
			}
			if err := one.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				continue // nothing is left to be done about a port at the end
			}
		}
	}
}
