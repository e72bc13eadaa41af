package sim

import (
	"errors"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// metaReign is the coordinator beside one leader of the metadata: the loop of
// cluster's, with the same decisions by the same functions, on what this node has
// applied. One whose leader was deposed goes on until it hears of it, so two may
// be at work.
type metaReign struct {
	m      *metadata
	n      *node
	life   int
	over   bool
	start  int64
	sight  *catalog.Sight
	agenda *catalog.Agenda
	busy   bool // commands of a round are on their way
	due    bool // a round is to come
}

// sweepInterval is cluster's.
const sweepInterval = 10 * second

// begin starts the reign of a new leader, maybe before the last one has heard.
func (m *metadata) begin(n *node) {
	if old := m.reign; old != nil && old.lives() {
		m.w.reach(markTwoCoordinators)
		if old.n == n {
			old.over = true
		}
	}
	r := &metaReign{m: m, n: n, life: n.life, start: m.w.now, sight: catalog.NewSight(), agenda: catalog.NewAgenda()}
	m.reign = r
	for _, other := range m.w.nodes {
		if n.gone[other.id] {
			r.sight.See(other.id, catalog.Gone)
		}
	}
	r.sweep()
	r.departed()
}

func (r *metaReign) lives() bool { return !r.over && r.n.lives(r.life) && r.m.w.failure == nil }

func (r *metaReign) tick() protocol.Tick { return protocol.Tick((r.m.w.now-r.start)/millisecond) + 1 }

// sweep has all streams looked at, now and again.
func (r *metaReign) sweep() {
	if !r.lives() {
		return
	}
	r.touchAll()
	r.m.w.after(sweepInterval, r.sweep)
}

func (r *metaReign) touchAll() {
	for s := range r.n.view.Streams() {
		r.agenda.Touch(s.Incarnation)
	}
	r.soon()
}

// changed hears of changes in this node's view.
func (r *metaReign) changed(changes []catalog.Change) {
	if r.lives() && r.agenda.Changed(r.n.view, changes) {
		r.soon()
	}
}

// soon has a round come.
func (r *metaReign) soon() {
	if r.due || !r.lives() {
		return
	}
	r.due = true
	r.m.w.after(r.m.w.between(100*microsecond, 2*millisecond), r.round)
}

// post takes the outcome of something and has its stream looked at.
func (r *metaReign) post(i chunk.Incarnation, event func(view *catalog.State)) {
	if !r.lives() {
		return
	}
	event(r.n.view)
	r.agenda.Touch(i)
	r.soon()
}

// round looks once at all that has changed.
func (r *metaReign) round() {
	r.due = false
	if r.busy || !r.lives() {
		return // its end brings another
	}
	w := r.m.w
	steps := catalog.NextSteps(r.n.view, r.sight, r.agenda.Take(r.tick()), r.tick())
	for _, f := range steps.Fences {
		for _, q := range f.Requests {
			r.fence(w.node(f.Node), q)
		}
	}
	for _, i := range steps.Installs {
		for k := range i.Assignments {
			r.install(w.node(i.Node), &i.Assignments[k])
		}
	}
	for _, h := range steps.Handovers {
		r.handover(w.node(h.From), h)
	}
	r.agenda.Keep(&steps)
	if wake := r.agenda.Wake(); wake != 0 {
		w.after(max(r.start+int64(wake-1)*millisecond-w.now, 0)+millisecond, r.soon)
	}
	r.command(&steps)
}

// command proposes what a round decided, one kind after the other.
func (r *metaReign) command(steps *catalog.Steps) {
	w := r.m.w
	var todo []func(then func())
	propose := func(body catalog.Body, count int, stream func(i int) chunk.Incarnation) {
		if count == 0 {
			return
		}
		if count > 1 {
			w.reach(markMetaBatch)
		}
		todo = append(todo, func(then func()) {
			r.m.call(r.n, body, r.lives, func(result catalog.Result) {
				for i, o := range result.Outcomes {
					if o.Refusal != nil {
						w.reach(markMetaStale)
						r.agenda.Touch(stream(i))
					}
				}
				then()
			})
		})
	}
	propose(&catalog.GrantEpochs{Streams: steps.Grants}, len(steps.Grants), func(i int) chunk.Incarnation { return steps.Grants[i].Stream })
	propose(&catalog.AssignLeaders{Leaders: steps.Elected}, len(steps.Elected), func(i int) chunk.Incarnation { return steps.Elected[i].Stream })
	propose(&catalog.AddReplicas{Replicas: steps.Added}, len(steps.Added), func(i int) chunk.Incarnation { return steps.Added[i].Stream })
	propose(&catalog.RetireReplicas{Replicas: steps.Retired}, len(steps.Retired), func(i int) chunk.Incarnation { return steps.Retired[i].Stream })
	propose(&catalog.RemoveReplicas{Replicas: steps.Removed}, len(steps.Removed), func(i int) chunk.Incarnation { return steps.Removed[i].Stream })
	var next func()
	next = func() {
		if len(todo) == 0 {
			r.busy = false
			r.soon()
			return
		}
		do := todo[0]
		todo = todo[1:]
		do(next)
	}
	if len(todo) > 0 {
		r.busy = true
		next()
	}
}

// patience is how long an answer is waited for.
const patience = 600 * millisecond

// ask carries a question to a node and its one answer back, through delays and
// losses. Where no answer came in time it calls late. A question does not outlive
// the connection, but may come twice.
func ask[A any](r *metaReign, n *node, question func(answer func(A)), take func(A), late func(why string)) {
	w := r.m.w
	answered := false
	fail := func(after int64, why string) {
		w.after(after, func() {
			if !answered && r.lives() {
				answered = true
				late(why)
			}
		})
	}
	if !w.reaches(r.n, n) {
		fail(r.m.delay(), "no link")
		return
	}
	fail(patience, "late")
	if r.m.lost() {
		w.reach(markFenceLost)
		return
	}
	life := n.life
	deliver := func() {
		if !n.lives(life) || n != r.n && !w.reaches(r.n, n) {
			return
		}
		question(func(a A) {
			if !n.lives(life) {
				return
			}
			if r.m.lost() {
				w.reach(markFenceLost)
				return
			}
			w.after(r.m.delay(), func() {
				if !answered && r.lives() {
					answered = true
					take(a)
				}
			})
		})
		if n.dead {
			n.die()
		}
	}
	w.after(r.m.delay(), deliver)
	if !w.calm && w.chance(w.opts.twicePerMille) {
		w.after(r.m.delay()+w.between(0, second), deliver)
	}
}

func (r *metaReign) fence(n *node, q catalog.FenceRequest) {
	s := r.m.w.streamOf(q.Stream.Incarnation)
	ask(r, n, func(answer func(replication.FenceResult)) {
		if err := n.openFor(s, q.Stream); err != nil {
			answer(replication.FenceResult{Err: err})
			return
		}
		if n.dead {
			return
		}
		n.repl.BeginFence(replication.FenceRequest{Stream: s.inc, Epoch: q.Stream.Epoch}, func(f replication.FenceResult) {
			if f.Err == nil {
				r.m.w.log("report", "%s s%d e%d tail %v commit %d start %d aside %v", n.id, s.index, f.Report.Epoch, f.Report.Tail, f.Report.Commit, f.Report.LogStart, f.Report.Aside)
				r.m.w.checkReport(n, s, &f.Report)
			}
			answer(f)
		})
	}, func(f replication.FenceResult) {
		r.post(s.inc, func(*catalog.State) {
			if f.Err != nil {
				r.sight.FenceFailed(s.inc, q.Stream.Epoch, n.id, "refused", r.tick())
				return
			}
			r.sight.Reported(f.Report)
		})
	}, func(why string) {
		r.post(s.inc, func(*catalog.State) { r.sight.FenceFailed(s.inc, q.Stream.Epoch, n.id, why, r.tick()) })
	})
}

func (r *metaReign) install(n *node, i *catalog.Installation) {
	s := r.m.w.streamOf(i.Stream)
	ask(r, n, func(answer func(error)) {
		inheritance := i.Inheritance
		for _, pending := range inheritance.Pending {
			if len(pending) > 0 {
				r.m.w.reach(markInherited)
			}
		}
		n.repl.BeginAssign(i.Assignment, &inheritance, func(err error) {
			var refused *replication.RefusedError
			if errors.As(err, &refused) && refused.Reason == protocol.ReasonLeads && n.leadsEpoch(s.inc, i.Epoch) {
				err = nil
			}
			answer(err)
		})
	}, func(err error) {
		r.post(s.inc, func(view *catalog.State) {
			var refused *replication.RefusedError
			c, ok := view.Incarnation(s.inc)
			switch {
			case err == nil:
				r.sight.Installed(s.inc, i.Epoch)
			case ok && (errors.As(err, &refused) || errors.Is(err, replication.ErrMissing) || errors.Is(err, replication.ErrUnavailable)):
				r.m.w.log("over", "s%d e%d: %s says %v", s.index, i.Epoch, n.id, err)
				r.sight.Over(c, i.Epoch)
			default:
				r.sight.InstallFailed(s.inc, i.Epoch, r.tick())
			}
		})
	}, func(string) {
		r.post(s.inc, func(*catalog.State) { r.sight.InstallFailed(s.inc, i.Epoch, r.tick()) })
	})
}

func (n *node) leadsEpoch(i chunk.Incarnation, e chunk.Epoch) bool {
	replica, ok := n.repl.Replica(i)
	return ok && replica.Standing().Leads == e
}

func (r *metaReign) handover(n *node, h catalog.Handover) {
	ask(r, n, func(answer func(error)) {
		if !n.leadsEpoch(h.Stream, h.Epoch) {
			answer(replication.ErrNotLeader)
			return
		}
		n.repl.BeginHandover(h.Stream, h.To, answer)
	}, func(err error) {
		r.post(h.Stream, func(view *catalog.State) {
			if c, ok := view.Incarnation(h.Stream); ok && err == nil {
				r.m.w.reach(markHandover)
				r.sight.HandedOver(c, h.Epoch, h.To)
				return
			}
			r.sight.HandoverFailed(h.Stream, h.Epoch, r.tick())
		})
	}, func(string) {
		r.post(h.Stream, func(*catalog.State) { r.sight.HandoverFailed(h.Stream, h.Epoch, r.tick()) })
	})
}

// departed ends memberships of nodes that hold nothing any more, beside the
// coordinator.
func (r *metaReign) departed() {
	if !r.lives() {
		return
	}
	again := func() { r.m.w.after(r.m.w.between(100*millisecond, second), r.departed) }
	nodes := catalog.Departed(r.n.view)
	switch {
	case len(nodes) == 0:
		again()
	case nodes[0] == r.n.id:
		if r.m.w.raft.leads(r.n) { // the next leader removes it
			r.m.w.raft.depose("it is to go")
		}
		again()
	default:
		r.m.call(r.n, &catalog.RemoveNode{ID: nodes[0]}, r.lives, func(catalog.Result) { again() })
	}
}

// see notes whether a node is there, as far as another one can tell. It is a hint.
func (n *node) see(node protocol.NodeID, p catalog.Presence) {
	if node == n.id || n.gone[node] == (p == catalog.Gone) {
		return
	}
	n.gone[node] = p == catalog.Gone
	n.w.log("sees", "%s: %s is %s", n.id, node, p)
	if r := n.w.meta.reign; r != nil && r.n == n && r.lives() {
		if p == catalog.Gone && n.w.reaches(n, n.w.node(node)) {
			n.w.reach(markSeenWrongly)
		}
		r.sight.See(node, p)
		r.agenda.Touch(n.view.Held(node)...)
		r.soon()
	}
}

// seesUp is what a node takes for running.
func (n *node) seesUp(node protocol.NodeID) bool { return !n.gone[node] }

// reached is what a node can count on now; seesUp has patience with a node whose
// link has only just broken.
func (n *node) reached(node protocol.NodeID) bool { return n.seesUp(node) && !n.broken[node] }

const (
	gonePatience  = 300 * millisecond // cluster's
	firstPatience = 2 * second
)

// unlinked has a node see, after a while, that another one is gone.
func (n *node) unlinked(l *link, peer *node, patience int64) {
	life, number := n.life, l.number
	n.w.after(patience+n.w.between(0, 200*millisecond), func() {
		if n.lives(life) && !l.up && l.number == number {
			n.see(peer.id, catalog.Gone)
		}
	})
}
