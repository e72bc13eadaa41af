package sim

import (
	"errors"
	"slices"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// metadata is an ideal register with delays: commands are applied in one order,
// nodes see each state later, and what is asked or answered may get lost. Beside
// it runs the coordinator, by catalog.NextSteps.
type metadata struct {
	w     *World
	state *catalog.State
	sight *catalog.Sight
	busy  bool // commands of a round are on their way
	due   bool // a round is to come
	epoch map[chunk.Incarnation]chunk.Epoch
}

func newMetadata(w *World) *metadata {
	m := &metadata{w: w, state: catalog.New(), sight: catalog.NewSight(), epoch: map[chunk.Incarnation]chunk.Epoch{}}
	m.apply(&catalog.CreateVHost{Name: "/"})
	return m
}

func (m *metadata) tick() protocol.Tick { return protocol.Tick(m.w.now/1000) + 1 }

func (m *metadata) delay() int64 { return m.w.between(200*microsecond, m.w.opts.metaMax) }

func (m *metadata) lost() bool { return !m.w.calm && m.w.chance(m.w.opts.metaLossPerMille) }

// apply carries a command out now.
func (m *metadata) apply(body catalog.Body) catalog.Result {
	next, result, _ := m.state.Do(catalog.Command{At: chunk.Timestamp(epochOfTime.UnixMilli() + m.w.now/1000), Body: body})
	if v, ok := body.(*catalog.ChangeVoters); ok {
		for i := range v.Changes {
			if result.Outcomes[i].Refusal == nil {
				m.w.reach(markVoterChange)
			}
		}
	}
	m.state = next
	for _, s := range m.w.streams {
		c, ok := next.Incarnation(s.inc)
		if !ok {
			continue
		}
		if c.Epoch < m.epoch[s.inc] {
			m.w.violate("I1", "epochs of %s go from %d to %d", s, m.epoch[s.inc], c.Epoch)
		}
		m.epoch[s.inc] = c.Epoch
	}
	return result
}

// propose applies a command after a delay, and then tells the outcome; either
// may get lost.
func (m *metadata) propose(body catalog.Body, then func(catalog.Result)) {
	if m.lost() {
		return
	}
	m.w.after(m.delay(), func() {
		result := m.apply(body)
		m.changed()
		if then != nil && !m.lost() {
			m.w.after(m.delay(), func() { then(result) })
		}
	})
}

// insist is propose that is repeated until it was heard, as a node does that is
// not answered.
func (m *metadata) insist(n *node, body catalog.Body) {
	life, answered := n.life, false
	m.propose(body, func(catalog.Result) { answered = true })
	m.w.after(patience, func() {
		if !answered && n.lives(life) {
			m.insist(n, body)
		}
	})
}

// changed has everybody look at the new state, each at its own time.
func (m *metadata) changed() {
	for _, n := range m.w.nodes {
		state := m.state
		m.w.after(m.delay(), func() {
			if n.view != nil && state.Version() <= n.view.Version() {
				return
			}
			n.view = state
			if n.up && !n.dead {
				n.reconcile()
			}
		})
	}
	m.soon()
}

// soon has a round come.
func (m *metadata) soon() {
	if m.due {
		return
	}
	m.due = true
	m.w.after(m.w.between(100*microsecond, 2*millisecond), m.round)
}

// round looks once at all streams.
func (m *metadata) round() {
	m.due = false
	if m.busy {
		return // its end brings another
	}
	var incs []chunk.Incarnation
	for _, s := range m.w.living() {
		incs = append(incs, s.inc)
	}
	steps := catalog.NextSteps(m.state, m.sight, incs, m.tick())
	for _, f := range steps.Fences {
		for _, q := range f.Requests {
			m.fence(m.w.node(f.Node), q)
		}
	}
	for _, i := range steps.Installs {
		for k := range i.Assignments {
			m.install(m.w.node(i.Node), &i.Assignments[k])
		}
	}
	for _, h := range steps.Handovers {
		m.handover(m.w.node(h.From), h)
	}
	var bodies []catalog.Body
	if len(steps.Grants) > 0 {
		bodies = append(bodies, &catalog.GrantEpochs{Streams: steps.Grants})
	}
	if len(steps.Elected) > 0 {
		m.w.stats.Elections += len(steps.Elected)
		for _, e := range steps.Elected {
			if m.w.calm {
				m.w.reach(markCalmElection)
			}
			m.w.log("elect", "s%d e%d %s v%d", m.w.streamOf(e.Stream).index, e.Epoch, e.Node, e.ConfigVersion)
		}
		bodies = append(bodies, &catalog.AssignLeaders{Leaders: steps.Elected})
	}
	if len(steps.Added) > 0 {
		bodies = append(bodies, &catalog.AddReplicas{Replicas: steps.Added})
	}
	if len(steps.Retired) > 0 {
		bodies = append(bodies, &catalog.RetireReplicas{Replicas: steps.Retired})
	}
	if len(steps.Removed) > 0 {
		bodies = append(bodies, &catalog.RemoveReplicas{Replicas: steps.Removed})
	}
	if len(bodies) > 0 {
		m.busy = true
		m.w.after(m.delay(), func() {
			for _, b := range bodies {
				m.apply(b)
			}
			m.busy = false
			m.changed()
		})
	}
	if steps.Wake != 0 {
		m.w.after(int64(steps.Wake)*millisecond-m.w.now, m.soon)
	}
}

// patience is how long the coordinator waits for an answer.
const patience = 600 * millisecond

// ask carries a question to a node and its one answer back, through delays and
// losses. Where no answer came in time it calls late.
func ask[A any](m *metadata, n *node, question func(answer func(A)), take func(A), late func()) {
	w := m.w
	answered := false
	w.after(patience, func() {
		if !answered {
			answered = true
			late()
			m.soon()
		}
	})
	if m.lost() {
		return
	}
	deliver := func() {
		if !n.up || n.dead {
			return
		}
		life := n.life
		question(func(a A) {
			if !n.lives(life) || m.lost() {
				return
			}
			w.after(m.delay(), func() {
				if !answered {
					answered = true
					take(a)
					m.soon()
				}
			})
		})
		if n.dead {
			n.die()
		}
	}
	w.after(m.delay(), deliver)
	if !w.calm && w.chance(w.opts.twicePerMille) {
		w.after(m.delay()+w.between(0, second), deliver)
	}
}

func (m *metadata) fence(n *node, q catalog.FenceRequest) {
	s := m.w.streamOf(q.Stream.Incarnation)
	ask(m, n, func(answer func(replication.FenceResult)) {
		if _, open := n.repl.Replica(s.inc); !open && q.Stream.Epoch <= 1 && !q.Stream.Led() && !n.has(s.inc) {
			if c, ok := n.view.Incarnation(s.inc); ok && c.Epoch <= 1 && !c.Led() {
				n.open(s, true)
				if _, ok := n.repl.Replica(s.inc); ok && !n.dead {
					n.repl.BeginConfigure(s.inc, q.Stream.Configuration(), func(error) {})
				}
			}
		}
		if n.dead {
			return
		}
		n.repl.BeginFence(replication.FenceRequest{Stream: s.inc, Epoch: q.Stream.Epoch}, func(r replication.FenceResult) {
			if r.Err == nil {
				m.w.log("report", "%s s%d e%d tail %v commit %d start %d aside %v", n.id, s.index, r.Report.Epoch, r.Report.Tail, r.Report.Commit, r.Report.LogStart, r.Report.Aside)
				m.w.checkReport(n, s, &r.Report)
			}
			answer(r)
		})
	}, func(r replication.FenceResult) {
		if r.Err != nil {
			m.sight.FenceFailed(s.inc, q.Stream.Epoch, n.id, "refused", m.tick())
			return
		}
		m.sight.Reported(r.Report)
	}, func() { m.sight.FenceFailed(s.inc, q.Stream.Epoch, n.id, "late", m.tick()) })
}

func (m *metadata) install(n *node, i *catalog.Installation) {
	s := m.w.streamOf(i.Stream)
	ask(m, n, func(answer func(error)) {
		inheritance := i.Inheritance
		for _, pending := range inheritance.Pending {
			if len(pending) > 0 {
				m.w.reach(markInherited)
			}
		}
		n.repl.BeginAssign(i.Assignment, &inheritance, answer)
	}, func(err error) {
		var refused *replication.RefusedError
		c, ok := m.state.Incarnation(s.inc)
		switch {
		case err == nil, errors.As(err, &refused) && refused.Reason == protocol.ReasonLeads:
			m.sight.Installed(s.inc, i.Epoch)
		case ok && (errors.As(err, &refused) || errors.Is(err, replication.ErrMissing) || errors.Is(err, replication.ErrUnavailable)):
			m.sight.Over(c, i.Epoch)
		default:
			m.sight.InstallFailed(s.inc, i.Epoch, m.tick())
		}
	}, func() { m.sight.InstallFailed(s.inc, i.Epoch, m.tick()) })
}

func (m *metadata) handover(n *node, h catalog.Handover) {
	ask(m, n, func(answer func(error)) {
		n.repl.BeginHandover(h.Stream, h.To, answer)
	}, func(err error) {
		if c, ok := m.state.Incarnation(h.Stream); ok && err == nil {
			m.w.reach(markHandover)
			m.sight.HandedOver(c, h.Epoch, h.To)
			return
		}
		m.sight.HandoverFailed(h.Stream, h.Epoch, m.tick())
	}, func() { m.sight.HandoverFailed(h.Stream, h.Epoch, m.tick()) })
}

// handedOver hears that a leader that is no voter any more may go.
func (m *metadata) handedOver(inc chunk.Incarnation, e chunk.Epoch, heir protocol.NodeID) {
	m.w.after(m.delay(), func() {
		if c, ok := m.state.Incarnation(inc); ok {
			m.sight.HandedOver(c, e, heir)
			m.soon()
		}
	})
}

func (m *metadata) leaderLost(n *node, inc chunk.Incarnation) {
	m.w.after(m.delay(), func() {
		if c, ok := m.state.Incarnation(inc); ok && c.Leader.Node == n.id {
			m.sight.Over(c, c.Epoch)
			m.soon()
		}
	})
}

// nodeDown has the coordinator see, after a while, that a node is gone or came
// again.
func (m *metadata) nodeDown(n *node) {
	life := n.life
	m.w.after(m.w.between(50*millisecond, second), func() {
		if n.up {
			m.sight.See(n.id, catalog.Up)
			m.sight.Restarted(m.state, n.id)
		} else if n.life == life {
			m.sight.See(n.id, catalog.Gone)
			m.awaitUp(n)
		}
		m.soon()
	})
}

func (m *metadata) awaitUp(n *node) {
	m.w.after(50*millisecond, func() {
		if !n.up {
			m.awaitUp(n)
			return
		}
		m.sight.See(n.id, catalog.Up)
		m.sight.Restarted(m.state, n.id)
		m.soon()
	})
}

// register enters a replica anew whose node lost its disk (D1).
func (m *metadata) register(n *node, s *stream) {
	c, ok := n.view.Incarnation(s.inc)
	if !ok {
		return
	}
	entry, _ := c.Replica(n.id)
	life := n.life
	again := func() {
		m.w.after(200*millisecond, func() {
			if n.lives(life) {
				n.asked[s.inc] = false
				n.reconcile()
			}
		})
	}
	m.w.log("register", "%s s%d from %d", n.id, s.index, entry.Registration)
	again() // if the answer gets lost
	m.propose(&catalog.RegisterReplicas{Node: n.id, Streams: []catalog.Registered{{Stream: s.inc, From: entry.Registration}}},
		func(r catalog.Result) {
			if !n.lives(life) || r.Outcomes[0].Refusal != nil {
				return
			}
			m.w.reach(markRegistered)
			if _, open := n.repl.Replica(s.inc); !open && !n.has(s.inc) {
				n.join(s, r.Outcomes[0].Epoch, r.Outcomes[0].Registration)
				if n.dead {
					n.die()
				}
			}
		})
}

// wish carries a replica's proposal to the metadata, as cluster does.
func (m *metadata) wish(n *node, inc chunk.Incarnation, p protocol.Proposal) {
	s, ok := n.view.Incarnation(inc)
	if !ok {
		return
	}
	life := n.life
	switch p.Kind {
	case protocol.ProposeRegister:
		entry, ok := s.Replica(n.id)
		if !ok {
			return
		}
		answered := false
		m.w.after(patience, func() { // a registration is seen through
			if !answered && n.lives(life) {
				m.wish(n, inc, p)
			}
		})
		m.propose(&catalog.RegisterReplicas{Node: n.id, Streams: []catalog.Registered{{Stream: inc, From: entry.Registration}}},
			func(r catalog.Result) {
				answered = r.Outcomes[0].Refusal == nil
				if n.lives(life) && r.Outcomes[0].Refusal == nil {
					m.w.reach(markRegistered)
					n.repl.BeginRegistered(inc, r.Outcomes[0].Epoch, r.Outcomes[0].Registration, func(error) {})
				}
			})
	case protocol.ProposeClear:
		m.propose(&catalog.ClearReplicas{Replicas: []catalog.Cleared{{Stream: inc, Node: p.Node, Registration: p.Registration, Epoch: p.Epoch}}}, nil)
	case protocol.ProposePromote, protocol.ProposeSettled:
		at := n.settled[inc]
		if at.epoch != s.Epoch {
			return
		}
		change := catalog.VoterChange{
			Stream: inc, Epoch: at.epoch, Version: at.version, Node: p.Node, Registration: p.Registration, Voter: true,
		}
		if p.Kind == protocol.ProposeSettled {
			if change, ok = catalog.NextChange(s, n.id, at.version); !ok {
				return
			}
		}
		body := &catalog.ChangeVoters{Changes: []catalog.VoterChange{change}}
		if p.Kind == protocol.ProposeSettled {
			m.insist(n, body) // the leader says it once
		} else {
			m.propose(body, nil)
		}
	}
}

// members are the nodes with a replica of a stream.
func (m *metadata) members(s *stream) (list []protocol.NodeID) {
	c, ok := m.state.Incarnation(s.inc)
	if !ok {
		return nil
	}
	for _, r := range c.Replicas {
		list = append(list, r.Node)
	}
	return list
}

func (m *metadata) isMember(s *stream, id protocol.NodeID) bool {
	return slices.Contains(m.members(s), id)
}
