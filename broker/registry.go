package broker

import (
	"cmp"
	"crypto/tls"
	"maps"
	"slices"
	"time"
)

// Connection is an open connection, as operators see it.
type Connection struct {
	Name       string // peer -> local
	PeerHost   string
	PeerPort   int
	Host       string
	Port       int
	User       string
	VHost      string
	Mechanism  string
	TLS        string // version and cipher; "" on the plain port
	FrameMax   uint32
	Heartbeat  time.Duration
	Connected  time.Time
	Blocked    bool              // not read from, for a limit or an alarm
	Properties map[string]string // what the client told about itself
	Publishers []Publisher       // by id
	Consumers  []Consumer        // by subscription id
}

// Publisher is one of a connection's publishers. The counts are of entries.
type Publisher struct {
	ID                            uint8
	Stream                        string
	Reference                     string
	Published, Confirmed, Errored uint64
}

// Consumer is one of a connection's subscriptions.
type Consumer struct {
	SubscriptionID uint8
	Stream         string
	Credits        int
	Consumed       uint64 // records
	// Offset is that of the last chunk sent, plus its entries but one; -1 before
	// the first. Lag is how far the last committed record is ahead of it.
	Offset     int64
	Lag        int64
	Properties map[string]string
	// Activity is up, or for a single active consumer single_active or waiting.
	Activity string
}

// Connections lists the open connections by name, exact at the moment.
func (b *Broker) Connections() []Connection {
	sessions := b.openSessions()
	all := make([]Connection, 0, len(sessions))
	for _, s := range sessions {
		all = append(all, s.describe())
	}
	slices.SortFunc(all, func(x, y Connection) int { return cmp.Compare(x.Name, y.Name) })
	return all
}

// CloseConnection closes the named connection's socket, as operators do; the
// client is not asked. False: there is none.
func (b *Broker) CloseConnection(name, reason string) bool {
	for _, s := range b.openSessions() {
		if s.name == name {
			b.config.Log.Info("connection closed by an operator", "connection", name, "reason", reason)
			s.kill()
			return true
		}
	}
	return false
}

func (b *Broker) openSessions() []*session {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := make([]*session, 0, len(b.sessions))
	for s := range b.sessions {
		if s.isOpen.Load() {
			open = append(open, s)
		}
	}
	return open
}

func (s *session) describe() Connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := Connection{
		Name:     s.name,
		PeerHost: s.peer.Addr().String(), PeerPort: int(s.peer.Port()),
		Host: s.local.Addr().String(), Port: int(s.local.Port()),
		User: s.user, VHost: s.vhost, Mechanism: s.mechanism,
		FrameMax: s.frameMax, Heartbeat: time.Duration(s.heartbeatSeconds) * time.Second,
		Connected: s.since, Blocked: s.blocked.Load(),
		Properties: maps.Clone(s.properties),
	}
	if s.tls != nil {
		state := s.tls.ConnectionState()
		c.TLS = tls.VersionName(state.Version) + " " + tls.CipherSuiteName(state.CipherSuite)
	}
	for _, p := range s.publishers {
		c.Publishers = append(c.Publishers, Publisher{
			ID: p.id, Stream: p.tie.stream.Name, Reference: p.reference,
			Published: p.published.Load(), Confirmed: p.confirmed.Load(), Errored: p.errored.Load(),
		})
	}
	for _, sub := range s.subscriptions {
		c.Consumers = append(c.Consumers, sub.describe())
	}
	slices.SortFunc(c.Publishers, func(x, y Publisher) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(c.Consumers, func(x, y Consumer) int { return cmp.Compare(x.SubscriptionID, y.SubscriptionID) })
	return c
}

func (sub *subscription) describe() Consumer {
	_, next := sub.replica.Committed()
	c := Consumer{
		SubscriptionID: sub.id, Stream: sub.tie.stream.Name,
		Credits: int(sub.creditsLeft.Load()), Consumed: sub.consumed.Load(),
		Offset: sub.last.Load(), Properties: sub.properties, Activity: sub.activity(),
	}
	if c.Offset >= 0 {
		c.Lag = max(0, int64(next)-1-c.Offset)
	}
	return c
}

// activity expects session.mu to be held.
func (sub *subscription) activity() string {
	switch {
	case sub.member == nil:
		return "up"
	case sub.member.stage == active:
		return "single_active"
	}
	return "waiting"
}
