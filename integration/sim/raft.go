package sim

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// raft is the log of catalog commands as hashicorp/raft promises to keep it: one
// order, one leader at a time, nothing committed is lost. How it keeps that is
// not simulated, but for what it does to those who use it: a leader without a
// majority commits nothing and is followed by another one; what waits in its log
// then is committed by the next leader, or lost, and whoever proposed it is not
// told which; followers apply later; a node begins with its last snapshot.
type raft struct {
	w      *World
	log    []entry
	term   int
	leader *node // nil: there is none
	life   int   // of the leader
	taken  []*offer
	// alone is since when the leader reaches no majority.
	alone int64
	// electAt is when a leader may be elected, while there is none.
	electAt int64
	// answers are those that each request got first.
	answers map[string]catalog.Result
	// truth is the state behind the last entry.
	truth *catalog.State
}

// entry is one committed command and what each node must come to with it.
type entry struct {
	command []byte
	hash    uint64
}

// offer is a command that the leader has taken and not yet committed.
type offer struct {
	command []byte
	// answer is told the entry's index, or 0 where the outcome stays unknown.
	answer func(index int, result catalog.Result)
}

const (
	raftTick  = 50 * millisecond
	raftLease = 300 * millisecond
)

// server is a node's part in raft, in one of its lives.
type server struct {
	state   *catalog.State
	applied int // entries
}

// metaDisk is what raft keeps on a node's disk. The log itself is not here: what
// is committed, some majority has.
type metaDisk struct {
	snapshot []byte // of the catalog; nil: none yet
	index    int    // behind its last entry
	name     string // drawn when the disk was empty
	emptied  bool   // its vote went with the disk before
	fresh    bool   // no life has entered with it yet
}

func newRaft(w *World) *raft {
	return &raft{w: w, truth: catalog.New(), answers: map[string]catalog.Result{}}
}

// leads tells whether a node leads, in the life that it has.
func (r *raft) leads(n *node) bool { return r.leader == n && n.lives(r.life) }

// knocks tells whether a node can reach another one without being linked to it.
func (w *World) knocks(a, b *node) bool {
	if !a.up || !b.up || a.dead || b.dead {
		return false
	}
	l := w.link(a, b)
	return l == nil || !l.cut[0] && !l.cut[1]
}

// reaches tells whether two nodes are linked, or one and the same.
func (w *World) reaches(a, b *node) bool {
	return w.knocks(a, b) && (a == b || w.link(a, b).up)
}

// majority tells whether a node reaches a majority of those that vote.
func (r *raft) majority(n *node) bool {
	voters, reached := 0, 0
	for m := range r.truth.Nodes() {
		voters++
		if other := r.w.node(m.ID); !other.meta.emptied && r.w.reaches(n, other) {
			reached++
		}
	}
	return 2*reached > voters
}

// tick looks at who leads, and feeds who is behind.
func (r *raft) tick() {
	r.w.after(raftTick, r.tick)
	switch l := r.leader; {
	case l == nil:
		r.elect()
	case !r.leads(l):
		r.depose("it is down")
	case r.majority(l):
		r.alone = r.w.now
	case r.w.now-r.alone > raftLease:
		r.depose("it is alone")
	}
	for _, n := range r.w.nodes {
		r.feed(n)
	}
}

// depose ends a reign. What the leader has taken, the next one may have too.
func (r *raft) depose(why string) {
	r.w.log("meta", "%s leads no more: %s", r.leader.id, why)
	if len(r.taken) > 0 {
		r.w.reach(markMetaMidway)
	}
	r.leader = nil
	if old := r.w.meta.reign; old != nil {
		r.w.after(r.w.between(0, raftLease), func() { old.over = true }) // it hears of it
	}
	r.electAt = r.w.now + r.w.between(20*millisecond, 500*millisecond)
	if r.w.calm {
		r.electAt = r.w.now
	}
}

// elect finds the next leader, and what of the last one's log it has.
func (r *raft) elect() {
	if r.w.now < r.electAt {
		return
	}
	var able []*node
	for m := range r.truth.Nodes() {
		if n := r.w.node(m.ID); !n.meta.emptied && n.server != nil && n.up && !n.dead && r.majority(n) {
			able = append(able, n)
		}
	}
	if len(able) == 0 {
		return
	}
	n := able[r.w.rng.IntN(len(able))]
	r.term++
	r.leader, r.life, r.alone = n, n.life, r.w.now
	r.w.stats.MetaLeaders++
	r.w.log("meta", "%s leads in term %d", n.id, r.term)
	taken := r.taken
	r.taken = nil
	kept := 0
	if len(taken) > 0 {
		kept = r.w.rng.IntN(len(taken) + 1)
	}
	n.applyUpTo(len(r.log))
	for i, o := range taken {
		if i < kept && !n.dead {
			r.w.reach(markMetaUnheard)
			r.commit(o.command)
		}
		o.answer(0, catalog.Result{}) // its leader is over: nobody knows
	}
	r.w.meta.begin(n)
}

// offer hands a command to the leader's log. It is committed once a majority has
// it.
func (r *raft) offer(command []byte, answer func(int, catalog.Result)) {
	o := &offer{command, answer}
	r.taken = append(r.taken, o)
	term := r.term
	r.w.after(r.w.meta.delay(), func() { r.settle(term, o) })
	if !r.w.calm && r.w.chance(r.w.opts.midwayPerMille) {
		r.w.after(r.w.between(0, r.w.opts.metaMax), func() {
			if r.term == term && r.leader != nil {
				r.depose("something is under way")
			}
		})
	}
}

func (r *raft) settle(term int, o *offer) {
	at := slices.Index(r.taken, o)
	switch {
	case term != r.term || at < 0:
		return
	case r.leader == nil || !r.leads(r.leader):
		return // the next leader sees to it
	case !r.majority(r.leader):
		r.w.after(raftTick, func() { r.settle(term, o) })
		return
	}
	// What was taken before is committed before.
	for _, x := range r.taken[:at+1] {
		r.taken = r.taken[1:]
		result := r.commit(x.command)
		x.answer(len(r.log), result)
	}
}

// commit appends an entry; the leader applies it at once.
func (r *raft) commit(command []byte) catalog.Result {
	before := r.truth
	next, result, changes, err := before.Apply(command)
	if err != nil {
		r.w.violate("catalog", "a command does not apply: %v", err)
		return result
	}
	r.log = append(r.log, entry{command, hashOf(next)})
	r.truth = next
	r.w.stats.Commands++
	r.w.checkCommand(r, command, before, next, result, changes)
	if n := r.leader; n != nil && n.server != nil {
		n.applyUpTo(len(r.log))
	}
	for _, n := range r.w.nodes {
		if n != r.leader {
			r.w.after(r.w.meta.delay(), func() { r.feed(n) })
		}
	}
	return result
}

// feed tells a node of what is committed, if the leader reaches it.
func (r *raft) feed(n *node) {
	if r.leader == nil || n == r.leader || n.server == nil || n.server.applied == len(r.log) ||
		!r.leads(r.leader) || !r.w.reaches(r.leader, n) {
		return
	}
	if r.w.chance(r.w.opts.lagPerMille) && !r.w.calm {
		r.w.reach(markMetaLag)
		return // the next tick
	}
	from := r.leader.meta
	if n.server.applied < from.index && r.w.chance(500) {
		// Its leader's log does not reach back so far any more.
		r.w.reach(markMetaSnapshot)
		n.restore(from.snapshot, from.index)
	}
	n.applyUpTo(len(r.log))
}

func hashOf(s *catalog.State) uint64 {
	h := fnv.New64a()
	h.Write(s.Encode())
	return h.Sum64()
}

// openServer begins with what is on the disk.
func (n *node) openServer() {
	n.server = &server{state: catalog.New()}
	if n.meta.snapshot != nil {
		n.w.reach(markMetaRestored)
		n.load(n.meta.snapshot, n.meta.index)
	}
	n.view = n.server.state
}

func (n *node) load(snapshot []byte, index int) {
	state, err := catalog.Restore(snapshot)
	if err != nil {
		n.w.violate("catalog", "%s does not restore a snapshot: %v", n.id, err)
		return
	}
	n.server.state, n.server.applied = state, index
	n.w.checkState(n)
}

// restore takes a leader's snapshot in place of entries.
func (n *node) restore(snapshot []byte, index int) {
	before := n.server.state
	n.load(snapshot, index)
	n.meta.snapshot, n.meta.index = snapshot, index
	n.view = n.server.state
	n.changed(catalog.Diff(before, n.view))
}

// applyUpTo carries out what is committed.
func (n *node) applyUpTo(index int) {
	var all []catalog.Change
	for n.server.applied < index && n.w.failure == nil {
		next, _, changes, err := n.server.state.Apply(n.w.raft.log[n.server.applied].command)
		if err != nil {
			n.w.violate("catalog", "%s can't apply entry %d: %v", n.id, n.server.applied+1, err)
			return
		}
		n.server.state = next
		n.server.applied++
		n.w.checkState(n)
		all = append(all, changes...)
	}
	n.view = n.server.state
	if n.server.applied-n.meta.index >= n.w.opts.snapshotEvery {
		n.meta.snapshot, n.meta.index = n.server.state.Encode(), n.server.applied
	}
	n.changed(all)
}

// checkState: equal index, equal state, on every node and by every way.
func (w *World) checkState(n *node) {
	at := n.server.applied
	if at == 0 || w.failure != nil {
		return
	}
	if got, want := hashOf(n.server.state), w.raft.log[at-1].hash; got != want {
		w.violate("catalog", "%s has another catalog behind entry %d: %x, not %x\n%s", n.id, at, got, want, n.server.state.Encode())
	}
}

// checkCommand holds what a command did against the rules for it.
func (w *World) checkCommand(r *raft, command []byte, before, after *catalog.State, result catalog.Result, changes []catalog.Change) {
	c, err := catalog.Decode(command)
	if err != nil {
		w.violate("catalog", "%v", err)
		return
	}
	w.log("commit", "%d %T %s", len(r.log), c.Body, refusals(result))
	if first, again := r.answers[c.Request]; again {
		w.reach(markMetaRepeated)
		if after != before || !equalResults(first, result) {
			w.violate("catalog", "request %s is carried out twice, as %+v and as %+v", c.Request, first, result)
		}
		return
	}
	r.answers[c.Request] = result
	for _, x := range changes {
		if x.Kind == catalog.StreamChanged {
			w.checkChange(c.Body, x.Before, x.Stream)
		}
	}
	w.markCommand(c.Body, result)
	w.tally(c.Body, result, before, after)
}

func refusals(r catalog.Result) string {
	var b bytes.Buffer
	for _, o := range r.Outcomes {
		if o.Refusal != nil {
			fmt.Fprintf(&b, "refused: %v; ", o.Refusal)
		}
	}
	return b.String()
}

func equalResults(a, b catalog.Result) bool {
	return slices.EqualFunc(a.Outcomes, b.Outcomes, func(x, y catalog.Outcome) bool {
		return (x.Refusal == nil) == (y.Refusal == nil) && x.Incarnation == y.Incarnation && x.Epoch == y.Epoch && x.Registration == y.Registration
	})
}

// checkChange: epochs grow and have one leader each, that may lead (A1, A4); the
// voters change by one, under a leader that stays (D3); a version names one
// configuration.
func (w *World) checkChange(body catalog.Body, was, is *catalog.Stream) {
	if was == nil || is == nil {
		return
	}
	voted, votes := was.Voters(), is.Voters()
	changed := !slices.EqualFunc(was.Replicas, is.Replicas, func(a, b catalog.Replica) bool {
		a.Leaving, b.Leaving = false, false
		return a == b
	})
	moved := 0
	for _, id := range slices.Concat(voted, votes) {
		if slices.Contains(voted, id) != slices.Contains(votes, id) {
			moved++
		}
	}
	switch {
	case is.Epoch < was.Epoch:
		w.violate("I1", "epochs of %q go from %d to %d", is.Name, was.Epoch, is.Epoch)
	case is.Epoch > was.Epoch+1:
		w.violate("A1", "%T takes %q from epoch %d to %d", body, is.Name, was.Epoch, is.Epoch)
	case is.Epoch == was.Epoch && was.Led() && is.Leader != was.Leader:
		w.violate("A1", "epoch %d of %q has its leader on %s, and then on %s", is.Epoch, is.Name, was.Leader.Node, is.Leader.Node)
	case changed != (is.ConfigVersion != was.ConfigVersion), is.ConfigVersion != was.ConfigVersion && is.ConfigVersion != was.ConfigVersion+1:
		w.violate("D3", "%T takes %q from version %d to %d: %+v, %+v", body, is.Name, was.ConfigVersion, is.ConfigVersion, was.Replicas, is.Replicas)
	case moved > 1:
		w.violate("D3", "%T changes the voters of %q from %v to %v", body, is.Name, voted, votes)
	case moved > 0 && (!was.Led() || is.Leader != was.Leader):
		w.violate("D3", "%T changes the voters of %q during an election", body, is.Name)
	case len(votes) == 0:
		w.violate("D3", "%T leaves %q without a voter", body, is.Name)
	}
	if is.Led() && !was.Led() {
		w.stats.Elections++
		if w.calm {
			w.reach(markCalmElection)
		}
		r, ok := is.Replica(is.Leader.Node)
		if !ok || !r.Voter || r.Aside && len(votes) > 1 || is.Leader.ConfigVersion != is.ConfigVersion {
			w.violate("A4", "%s is elected for %q by version %d, though it is %+v in version %d", is.Leader.Node, is.Name, is.Leader.ConfigVersion, r, is.ConfigVersion)
		}
	}
}

// members are the nodes with a replica of a stream.
func (m *metadata) members(s *stream) (list []protocol.NodeID) {
	c, ok := m.w.raft.truth.Incarnation(s.inc)
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

// at is the clock of a node that proposes something.
func (w *World) at() chunk.Timestamp { return chunk.Timestamp(epochOfTime.UnixMilli() + w.now/1000) }
