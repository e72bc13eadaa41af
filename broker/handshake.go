package broker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"time"

	"github.com/millrace/millrace/wire"
)

// protocolVersion is what clients look for in the property version to decide
// what they may use; 4.3.0 would promise ResolveOffsetSpec.
const protocolVersion = "4.2.0"

func (s *session) peerProperties(q *wire.PeerProperties) error {
	s.mu.Lock()
	s.properties = q.Properties.Map()
	s.mu.Unlock()
	s.state = identified
	s.answer(&wire.PeerPropertiesResponse{
		Correlation: q.Correlation, Code: wire.CodeOK, Properties: s.broker.properties,
	})
	return nil
}

// serverProperties are the same six as the ancestor's; only version is read.
func serverProperties(config Config) wire.Properties {
	return wire.PropertiesOf(
		"cluster_name", config.ClusterName,
		"copyright", "Copyright (c) The Millrace Authors",
		"information", "Licensed under the Apache License 2.0",
		"platform", "Millrace "+config.ReleaseVersion+", "+runtime.Version(),
		"product", "Millrace",
		"version", protocolVersion,
	)
}

func (s *session) saslHandshake(q *wire.SaslHandshake) error {
	s.state = authenticating
	s.answer(&wire.SaslHandshakeResponse{
		Correlation: q.Correlation, Code: wire.CodeOK, Mechanisms: wire.StringsOf(s.mechanisms()...),
	})
	return nil
}

// saslAuthenticate logs the client in, or in an open connection renews what it
// is allowed.
func (s *session) saslAuthenticate(q *wire.SaslAuthenticate) error {
	arrived := time.Now()
	renewal := s.state == open
	if renewal && q.Mechanism != s.mechanism {
		return s.withhold(q, wire.CodeSaslCannotChangeMechanism, errMechanism, arrived)
	}
	found, err := s.prove(q)
	switch {
	case errors.Is(err, errMechanism), errors.Is(err, errMalformed), errors.Is(err, errLoopbackOnly):
		s.refuse(q, err)
		return answered{err}
	case err != nil:
		s.broker.stats.failedLogins.Add(1)
		return s.withhold(q, wire.CodeAuthenticationFailure, err, arrived)
	case renewal && found.user != s.user:
		return s.withhold(q, wire.CodeSaslCannotChangeUsername, errCredentials, arrived)
	case renewal && !s.mayEnter(s.vhost):
		return s.withhold(q, wire.CodeVirtualHostAccessFailure, errVHostAccess, arrived)
	}
	s.respond(q.Key(), q.Correlation, wire.CodeOK)
	if renewal {
		s.recheck()
		return nil
	}
	s.mu.Lock()
	s.user, s.mechanism = found.user, found.mechanism
	s.mu.Unlock()
	s.state = tuning
	s.answer(&wire.Tune{FrameMax: s.limits.FrameMax, Heartbeat: s.limits.heartbeatSeconds()})
	return nil
}

// mechanisms are those that are offered on the connection, in the order they are
// listed. EXTERNAL is offered to clients without a certificate too: some hang when
// their mechanism is missing, and none does when it is refused.
func (s *session) mechanisms() []string {
	if s.tls != nil {
		return mechanismsTLS
	}
	return mechanisms
}

// prove has the client logged in.
func (s *session) prove(q *wire.SaslAuthenticate) (credentials, error) {
	if q.Mechanism == mechanismExternal && s.tls != nil {
		return s.broker.loginByCertificate(s)
	}
	found, err := parseCredentials(q.Mechanism, q.Data)
	if err == nil {
		err = s.broker.login(s.peer.Addr(), found)
	}
	return found, err
}

// login proves credentials against the directory, behind the guard.
func (b *Broker) login(peer netip.Addr, found credentials) error {
	ctx, cancel := context.WithTimeout(b.context, b.config.HandshakeTimeout)
	defer cancel()
	return b.logins.login(ctx, peer, found, b.directory.Authenticate)
}

// withhold refuses by an answer that leaves only some seconds after the request
// came, so that neither guessing nor the time to check tells anything.
func (s *session) withhold(q wire.Command, code wire.ResponseCode, cause error, arrived time.Time) error {
	s.broker.stats.count(code)
	return withheld{answer: wire.Refusal(q, code), cause: cause, until: arrived.Add(s.limits.FailedLoginDelay)}
}

// tune takes the client's decision. The frame limit holds from Open on, the
// heartbeat at once.
func (s *session) tune(q *wire.Tune) error {
	s.frameMax = effectiveFrameMax(s.limits.FrameMax, q.FrameMax)
	s.mu.Lock()
	s.heartbeatSeconds = q.Heartbeat
	s.mu.Unlock()
	s.state = tuned
	s.out.beat(heartbeatInterval(q.Heartbeat) / 2)
	return nil
}

// effectiveFrameMax lets the client lower our limit, however far; 0 leaves it,
// and more than ours is clamped.
func effectiveFrameMax(ours, theirs uint32) uint32 {
	if theirs == 0 || theirs > ours {
		return ours
	}
	return theirs
}

// heartbeatInterval is the client's value, bounded so that no arithmetic with
// it overflows. 0 is none.
func heartbeatInterval(seconds uint32) time.Duration {
	return min(time.Duration(seconds)*time.Second, 24*time.Hour)
}

func (s *session) open(q *wire.Open) error {
	arrived := time.Now()
	if s.state == tuning {
		s.frameMax = s.limits.FrameMax
	}
	if !s.mayEnter(q.VirtualHost) {
		return s.withhold(q, wire.CodeVirtualHostAccessFailure,
			fmt.Errorf("%w: user %q, virtual host %q", errVHostAccess, s.user, q.VirtualHost), arrived)
	}
	s.mu.Lock()
	s.vhost = q.VirtualHost
	s.mu.Unlock()
	host, port := s.broker.advertised(s.tls != nil)
	s.answer(&wire.OpenResponse{
		Correlation: q.Correlation, Code: wire.CodeOK,
		Properties: wire.PropertiesOf(
			"advertised_host", host,
			"advertised_port", strconv.Itoa(port),
		),
	})
	s.state = open
	interval := heartbeatInterval(s.heartbeatSeconds)
	s.frames.splitter.SetLimit(s.frameMax)
	s.frames.until = time.Time{}
	s.frames.idle = interval*2 + interval/2
	s.frames.whole = s.limits.PartialFrameTimeout
	if interval > 0 {
		s.frames.whole = 2 * interval
	}
	s.broker.opened(s)
	s.still(s.mayEnter(q.VirtualHost))
	return nil
}

// heartbeat shows that the client lives; that it came has been noted already.
func (s *session) heartbeat(*wire.Heartbeat) error { return nil }

func (s *session) closeByClient(q *wire.Close) error {
	s.respond(q.Key(), q.Correlation, wire.CodeOK)
	return answered{errClientClosed}
}

// exchangeCommandVersions notes whether the client understands Deliver 2, also
// for subscriptions that run already. Nothing turns that off again.
func (s *session) exchangeCommandVersions(q *wire.ExchangeCommandVersions) error {
	for version := range q.Versions.All() {
		if version.Key == wire.KeyDeliver && version.Max >= 2 {
			s.deliverV2.Store(true)
		}
	}
	s.answer(&wire.ExchangeCommandVersionsResponse{
		Correlation: q.Correlation, Code: wire.CodeOK, Versions: wire.ServerVersions,
	})
	return nil
}
