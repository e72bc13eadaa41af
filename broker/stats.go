package broker

import (
	"sync/atomic"

	"github.com/millrace/millrace/wire"
)

// counters count since the start, or what is now where the name says a state.
type counters struct {
	accepted, opened, refused      atomic.Uint64 // connections
	failedLogins                   atomic.Uint64
	published, confirmed, errored  atomic.Uint64 // records; errored: entries
	delivered, deliveredChunks     atomic.Uint64
	sentBytes, receivedBytes       atomic.Uint64
	cutConsumers, overtaken        atomic.Uint64
	unanswered                     atomic.Uint64
	publishers, consumers, blocked atomic.Int64 // now
	answers                        [codesCounted]atomic.Uint64
}

const codesCounted = int(wire.CodeSaslCannotChangeUsername) + 1

// count notes an answer that is no success.
func (c *counters) count(code wire.ResponseCode) {
	if code != wire.CodeOK && int(code) < codesCounted {
		c.answers[code].Add(1)
	}
}

// Stats are figures of the stream port. Counts are since the start.
type Stats struct {
	Connections int // now, those not open yet too
	Unopened    int // now
	Publishers  int // now
	Consumers   int // now
	Blocked     int // now: connections that are not read from

	Accepted     uint64 // connections
	Opened       uint64 // of them, those that got through Open
	Refused      uint64 // connections, by a limit
	FailedLogins uint64
	CutConsumers uint64 // connections that did not read
	Unanswered   uint64 // connections whose single active consumer did not answer in time
	Overtaken    uint64 // times that retention took what a subscription had not read

	Published       uint64 // records
	Confirmed       uint64 // entries
	Errored         uint64 // entries
	Delivered       uint64 // records
	DeliveredChunks uint64
	SentBytes       uint64
	ReceivedBytes   uint64
	Unconfirmed     int64 // bytes, now

	// Errors counts the answers of each response code but ok.
	Errors map[wire.ResponseCode]uint64
}

// Stats returns the figures of the moment.
func (b *Broker) Stats() Stats {
	c := &b.stats
	s := Stats{
		Publishers: int(c.publishers.Load()), Consumers: int(c.consumers.Load()), Blocked: int(c.blocked.Load()),
		Accepted: c.accepted.Load(), Opened: c.opened.Load(), Refused: c.refused.Load(), FailedLogins: c.failedLogins.Load(),
		CutConsumers: c.cutConsumers.Load(), Unanswered: c.unanswered.Load(), Overtaken: c.overtaken.Load(),
		Published: c.published.Load(), Confirmed: c.confirmed.Load(), Errored: c.errored.Load(),
		Delivered: c.delivered.Load(), DeliveredChunks: c.deliveredChunks.Load(),
		SentBytes: c.sentBytes.Load(), ReceivedBytes: c.receivedBytes.Load(),
		Unconfirmed: b.unconfirmed.Load(),
		Errors:      map[wire.ResponseCode]uint64{},
	}
	s.Connections, s.Unopened = b.admission.counts()
	for code := range c.answers {
		if n := c.answers[code].Load(); n > 0 {
			s.Errors[wire.ResponseCode(code)] = n
		}
	}
	return s
}
