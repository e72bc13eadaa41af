package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/millrace/millrace/wire"
)

// Config says how to connect. Only Addr is needed.
type Config struct {
	Addr        string // host:port
	User        string // default guest
	Password    string // default guest, with the default user
	VirtualHost string // default /
	// Name is shown by the broker's tools (connection_name), Properties go
	// beside it.
	Name       string
	Properties map[string]string
	// FrameMax is the largest frame asked for, in bytes; default 1 MiB.
	FrameMax uint32
	// Heartbeat is the interval asked for, in whole seconds; default 60 s,
	// negative for none. The broker may propose less.
	Heartbeat time.Duration
	// Timeout bounds connecting, and each request without a deadline of its
	// own; default 10 s.
	Timeout time.Duration
	// TLS, if set, is spoken from the first byte on.
	TLS *tls.Config
	// External logs in by the certificate in TLS, as the user whom that names;
	// User and Password are not looked at.
	External bool
	// DeliverV1 keeps silent about what we can receive, as older clients do.
	DeliverV1 bool
	// MetadataUpdate, if set, hears of streams that became unavailable.
	MetadataUpdate func(stream string, code wire.ResponseCode)
}

func (c Config) withDefaults() Config {
	if c.User == "" {
		c.User, c.Password = "guest", "guest"
	}
	if c.VirtualHost == "" {
		c.VirtualHost = "/"
	}
	if c.FrameMax == 0 {
		c.FrameMax = wire.FrameMaxDefault
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = time.Minute
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	return c
}

// Server is what the broker told while the connection was opened.
type Server struct {
	Properties map[string]string
	// AdvertisedAddr is host:port as Metadata gives it for this broker.
	AdvertisedAddr string
	FrameMax       uint32 // 0 = no limit
	Heartbeat      time.Duration
	// Versions are the versions of commands that it takes; nil if not asked.
	Versions []wire.CommandVersion
}

// dialRaw connects as the config says, TLS included.
func dialRaw(ctx context.Context, cfg Config) (*Raw, error) {
	raw, err := DialRaw(ctx, cfg.Addr)
	if err != nil || cfg.TLS == nil {
		return raw, err
	}
	settings := cfg.TLS.Clone()
	if settings.ServerName == "" {
		settings.ServerName, _, _ = net.SplitHostPort(cfg.Addr)
	}
	conn := tls.Client(raw.conn, settings)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return NewRaw(conn), nil
}

// Handshake takes a fresh connection to the point where every command is
// allowed. It uses correlation ids 1 to 5.
func (r *Raw) Handshake(cfg Config) (Server, error) {
	cfg = cfg.withDefaults()
	var s Server
	if err := checkNames(cfg.VirtualHost, cfg.Name); err != nil {
		return s, err
	}
	for _, step := range []func(Config, *Server) error{r.introduce, r.authenticate, r.tuneAndOpen, r.exchangeVersions} {
		if err := step(cfg, &s); err != nil {
			return s, fmt.Errorf("connect to %s: %w", cfg.Addr, err)
		}
	}
	return s, nil
}

func (r *Raw) introduce(cfg Config, s *Server) error {
	properties := map[string]string{"product": "Millrace client", "platform": "Go"}
	if cfg.Name != "" {
		properties["connection_name"] = cfg.Name
	}
	maps.Copy(properties, cfg.Properties)
	answer, err := r.Request(&wire.PeerProperties{Correlation: 1, Properties: wire.PropertiesFrom(properties)})
	if err != nil {
		return err
	}
	peer := answer.(*wire.PeerPropertiesResponse)
	s.Properties = peer.Properties.Map()
	return check(wire.KeyPeerProperties, peer.Code)
}

func (r *Raw) authenticate(cfg Config, _ *Server) error {
	mechanism, data := "PLAIN", []byte("\x00"+cfg.User+"\x00"+cfg.Password)
	if cfg.External {
		mechanism, data = "EXTERNAL", nil
	}
	answer, err := r.Request(&wire.SaslHandshake{Correlation: 2})
	if err != nil {
		return err
	}
	offer := answer.(*wire.SaslHandshakeResponse)
	if err := check(wire.KeySaslHandshake, offer.Code); err != nil {
		return err
	}
	if !slices.Contains(offer.Mechanisms.Slice(), mechanism) {
		return &CodeError{Command: wire.KeySaslHandshake, Code: wire.CodeSaslMechanismNotSupported}
	}
	answer, err = r.Request(&wire.SaslAuthenticate{Correlation: 3, Mechanism: mechanism, Data: data})
	if err != nil {
		return err
	}
	return check(wire.KeySaslAuthenticate, answer.(*wire.Response).Code)
}

func (r *Raw) tuneAndOpen(cfg Config, s *Server) error {
	proposal, err := r.await(wire.KeyTune)
	if err != nil {
		return err
	}
	tune := proposal.(*wire.Tune)
	seconds := uint32((max(0, cfg.Heartbeat) + time.Second - 1) / time.Second)
	tune.FrameMax = settle(tune.FrameMax, cfg.FrameMax)
	if seconds == 0 || tune.Heartbeat == 0 {
		tune.Heartbeat = seconds
	}
	tune.Heartbeat = min(tune.Heartbeat, seconds)
	s.FrameMax, s.Heartbeat = tune.FrameMax, time.Duration(tune.Heartbeat)*time.Second
	if err := r.Send(tune); err != nil {
		return err
	}
	answer, err := r.Request(&wire.Open{Correlation: 4, VirtualHost: cfg.VirtualHost})
	if err != nil {
		return err
	}
	open := answer.(*wire.OpenResponse)
	if err := check(wire.KeyOpen, open.Code); err != nil {
		return err
	}
	host, _ := open.Properties.Get("advertised_host")
	port, _ := open.Properties.Get("advertised_port")
	s.AdvertisedAddr = net.JoinHostPort(host, port)
	return nil
}

// settle is the frame size that the public clients answer: the smaller, where
// 0 means that there is no limit.
func settle(theirs, ours uint32) uint32 {
	if theirs == 0 || ours == 0 {
		return max(theirs, ours)
	}
	return min(theirs, ours)
}

func (r *Raw) exchangeVersions(cfg Config, s *Server) error {
	if cfg.DeliverV1 {
		return nil
	}
	answer, err := r.Request(&wire.ExchangeCommandVersions{Correlation: 5, Versions: wire.CommandVersionsOf(
		wire.CommandVersion{Key: wire.KeyDeliver, Min: 1, Max: 2})})
	if err != nil {
		return err
	}
	versions := answer.(*wire.ExchangeCommandVersionsResponse)
	s.Versions = versions.Versions.Slice()
	return check(wire.KeyExchangeCommandVersions, versions.Code)
}
