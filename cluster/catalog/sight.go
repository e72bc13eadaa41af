package catalog

import (
	"slices"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Presence is what the coordinator believes of a node. It is a hint: wrong
// beliefs cost time, never data.
type Presence uint8

const (
	// Up: the node answers, as far as is known.
	Up Presence = iota
	// Gone: the node has not answered for longer than the patience.
	Gone
)

func (p Presence) String() string { return [...]string{"up", "gone"}[p] }

// Time that the coordinator gives to others, in ticks (milliseconds).
const (
	// fencePatience is how long an election with a majority of reports waits
	// for the voters that are up and have not reported: one may hold more.
	fencePatience protocol.Tick = 100
	// placePatience is how long a new stream's waits for the place that was chosen
	// for it. Only who makes it waits; and of many that are made at once, a node
	// whose disk is slower would lead none.
	placePatience protocol.Tick = 1_000
	// retryFirst and retryMost bound the pause before asking again what was
	// not answered; it doubles in between.
	retryFirst protocol.Tick = 50
	retryMost  protocol.Tick = 2_000
	// deferral is before looking again at what a bound has put off.
	deferral protocol.Tick = 20
)

// Bounds of what the coordinator has under way.
const (
	// handoversMax leaders may be handing over at the same time.
	handoversMax = 32
	// learnersMax learners may be catching up on one node at the same time.
	learnersMax = 8
)

// Sight is what the coordinator knows beside the catalog: who is there, and
// how far each election has come. It is lost with the coordinator, and the next
// one finds out again. It is fed by its methods and read by NextSteps.
type Sight struct {
	presence map[protocol.NodeID]Presence // absent is Up
	streams  map[chunk.Incarnation]*progress
	// handing are the streams whose leaders were asked to hand over. They are
	// few at a time: a leader that was asked takes nothing from publishers.
	handing map[chunk.Incarnation]chunk.Epoch
}

// progress is the state of one stream's newest epoch, as far as the coordinator
// took part in it. Of another epoch it means nothing.
type progress struct {
	epoch   chunk.Epoch
	asked   []protocol.NodeID // fenced, no answer yet
	since   protocol.Tick     // when the last were asked
	reports []protocol.Report
	refused []refusal     // fences that a replica declined
	retry   protocol.Tick // ask nobody again before; 0 is at once
	pause   protocol.Tick // the next pause
	// inheritance is for the winner, once there is one.
	inheritance protocol.Inheritance

	installing bool // the leader is being told
	installed  bool // the leader said that it leads
	over       bool // the leader said that it does not, or no longer
	// passed is how the epoch ended, and before the one before it, if by handing
	// over (D4).
	passed, before succession
}

// succession is one leader's making way for another: what it had is committed and
// durable at the heir, and it takes no message any more. So nobody else holds
// more than the two of them, and offsets that were stored since are its alone.
type succession struct{ from, to protocol.NodeID }

type refusal struct {
	node   protocol.NodeID
	reason string
}

// NewSight knows nothing; all nodes are taken to be up.
func NewSight() *Sight {
	return &Sight{
		presence: make(map[protocol.NodeID]Presence),
		streams:  make(map[chunk.Incarnation]*progress),
		handing:  make(map[chunk.Incarnation]chunk.Epoch),
	}
}

// See notes a node's presence and reports whether it is news.
func (g *Sight) See(node protocol.NodeID, p Presence) bool {
	if g.presence[node] == p {
		return false
	}
	g.presence[node] = p
	return true
}

// Present returns a node's presence.
func (g *Sight) Present(node protocol.NodeID) Presence { return g.presence[node] }

// Forget drops what is known of a stream that is gone.
func (g *Sight) Forget(i chunk.Incarnation) {
	delete(g.streams, i)
	delete(g.handing, i)
}

// of returns the progress of a stream's newest epoch, empty if there is none.
func (g *Sight) of(s *Stream) *progress {
	p := g.streams[s.Incarnation]
	if p == nil || p.epoch != s.Epoch {
		next := &progress{epoch: s.Epoch}
		if p != nil && p.epoch+1 == s.Epoch {
			next.before = p.passed
		}
		g.streams[s.Incarnation], p = next, next
	}
	return p
}

// at returns the progress of an epoch, or nil if it is not the one at work.
func (g *Sight) at(i chunk.Incarnation, e chunk.Epoch) *progress {
	if p := g.streams[i]; p != nil && p.epoch == e {
		return p
	}
	return nil
}

// Reported takes a replica's answer to a fence.
func (g *Sight) Reported(r protocol.Report) {
	if p := g.at(r.Stream, r.Epoch); p != nil {
		p.drop(r.Node)
		p.reports = slices.DeleteFunc(p.reports, func(old protocol.Report) bool { return old.Node == r.Node })
		p.reports = append(p.reports, r)
	}
}

// FenceFailed notes that a node did not answer a fence, or declined it for a
// reason.
func (g *Sight) FenceFailed(i chunk.Incarnation, e chunk.Epoch, node protocol.NodeID, reason string, now protocol.Tick) {
	if p := g.at(i, e); p != nil {
		p.drop(node)
		p.refused = slices.DeleteFunc(p.refused, func(r refusal) bool { return r.node == node })
		p.refused = append(p.refused, refusal{node, reason})
		p.later(now)
	}
}

// Installed notes that a leader leads.
func (g *Sight) Installed(i chunk.Incarnation, e chunk.Epoch) {
	if p := g.at(i, e); p != nil {
		p.installing, p.installed, p.pause = false, true, 0
	}
}

// IsInstalled says whether the leader of an epoch is known to lead.
func (g *Sight) IsInstalled(i chunk.Incarnation, e chunk.Epoch) bool {
	p := g.at(i, e)
	return p != nil && p.installed && !p.over
}

// InstallFailed notes that a leader could not be told.
func (g *Sight) InstallFailed(i chunk.Incarnation, e chunk.Epoch, now protocol.Tick) {
	if p := g.at(i, e); p != nil {
		p.installing = false
		p.later(now)
	}
}

// Over notes that a replica does not lead the epoch, or no longer: it has
// another run, lost something, or handed over. The stream needs a new epoch.
func (g *Sight) Over(s *Stream, e chunk.Epoch) {
	if s.Epoch == e {
		p := g.of(s)
		p.installing, p.installed, p.over = false, false, true
	}
}

// Restarted notes that a node's process is a new one: whether its replicas
// still lead is to be asked again. It returns the streams that this concerns.
func (g *Sight) Restarted(s *State, node protocol.NodeID) []chunk.Incarnation {
	var led []chunk.Incarnation
	for stream := range s.Streams() {
		if stream.Leader.Node == node {
			p := g.of(stream)
			p.installed, p.installing = false, false
			led = append(led, stream.Incarnation)
		}
	}
	return led
}

// HandedOver notes that the leader has stopped for good, with everything
// committed and durable at the heir (D4).
func (g *Sight) HandedOver(s *Stream, e chunk.Epoch, heir protocol.NodeID) {
	delete(g.handing, s.Incarnation)
	g.Over(s, e)
	if s.Epoch == e {
		g.of(s).passed = succession{s.Leader.Node, heir}
	}
}

// HandoverFailed notes that the leader leads on.
func (g *Sight) HandoverFailed(i chunk.Incarnation, e chunk.Epoch, now protocol.Tick) {
	delete(g.handing, i)
	if p := g.at(i, e); p != nil {
		p.later(now)
	}
}

func (p *progress) drop(node protocol.NodeID) {
	p.asked = slices.DeleteFunc(p.asked, func(n protocol.NodeID) bool { return n == node })
}

// later puts the next attempt off.
func (p *progress) later(now protocol.Tick) {
	if p.retry > now {
		return // several failures of one attempt count once
	}
	p.pause = min(max(2*p.pause, retryFirst), retryMost)
	p.retry = now + p.pause
}

// settled tells whether an election's outcome can't change any more: all voters
// that were asked have answered, or both sides of a handing over have and its
// heir wins.
func (p *progress) settled(winner protocol.NodeID) bool {
	return len(p.asked) == 0 || p.before.to == winner && p.reported(p.before.from)
}

func (p *progress) reported(node protocol.NodeID) bool {
	return slices.ContainsFunc(p.reports, func(r protocol.Report) bool { return r.Node == node })
}
