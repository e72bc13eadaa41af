package protocol

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var (
	walks    = flag.Int("walks", 400, "random walks to take")
	walkFrom = flag.Uint64("walk-from", 1, "seed of the first")
	walkLen  = flag.Int("walk-length", 250, "steps of each")
)

// TestWalk takes random walks through the scripted world. Each is a script: a
// walk that fails is printed as one, to be cut down and kept. With -off RULE it
// tells how soon the walks miss a rule.
func TestWalk(t *testing.T) {
	reached := map[string]int{}
	for seed := *walkFrom; seed < *walkFrom+uint64(*walks); seed++ {
		r, wr, _ := withoutRule(*off)
		k := &walker{first: 1, rng: rand.New(rand.NewPCG(seed, 1)), w: newWorld(r, wr)}
		why := k.walk(*walkLen)
		for _, s := range []string{"cut to", "reset to", "gap to", "log start", "hand over", "counts again", "is a voter", "removes", "answers", "is a duplicate"} {
			reached[s] += strings.Count(k.trace.String(), s)
		}
		if seed-*walkFrom < 20 { // the same again, step by step (I31)
			again := &walker{first: 1, rng: rand.New(rand.NewPCG(seed, 1)), w: newWorld(r, wr)}
			again.walk(*walkLen)
			if again.trace.String() != k.trace.String() {
				t.Errorf("seed %d: two walks differ", seed)
			}
		}
		if why != "" {
			t.Fatalf("seed %d: %s\n%s", seed, why, k.trace.String())
		}
	}
	for s, n := range reached {
		if n == 0 {
			t.Errorf("no walk came to %q", s)
		}
	}
	t.Logf("%d walks: %v", *walks, reached)
}

// walker draws commands. What it does stays within what the design survives:
// so many emptied disks at a time as a majority can spare.
type walker struct {
	rng   *rand.Rand
	w     *world
	trace strings.Builder
	old   []string

	// The publisher: it sends messages in order, each life's first with the
	// sequence after the one that the query answered.
	own   string // whom it talks to, by leader and epoch
	next  int    // its next message there
	first int    // of this life
	base  int    // sequence before that
	sent  int    // the highest ever
	asked uint64 // it died, and asks where it stood
}

func (k *walker) walk(steps int) (why string) {
	defer func() {
		if e := recover(); e != nil {
			why = fmt.Sprint("panic: ", e)
			k.trace.WriteString(k.w.log.String())
		}
	}()
	voters, others := "abc", "de"
	if k.rng.IntN(3) == 0 {
		voters, others = "abcde", "f"
	}
	sync := "manual"
	if k.rng.IntN(3) == 0 {
		sync = "auto"
	}
	k.do("new voters=%s others=%s sync=%s", voters, others, sync)
	for range steps {
		if k.step(); len(k.w.fails) > 0 {
			return k.w.fails[0]
		}
	}
	return k.calm()
}

func (k *walker) do(f string, a ...any) {
	line := fmt.Sprintf(f, a...)
	k.w.log.Reset()
	fmt.Fprintf(&k.trace, "\n%s\n", line)
	k.w.command(strings.Fields(line))
	k.w.check()
	k.trace.WriteString(k.w.log.String())
	for _, p := range k.w.nodes {
		fmt.Fprintf(&k.trace, "  %s %s\n", p.id, k.w.state(p))
	}
}

func (k *walker) any() *peer { return k.w.nodes[k.rng.IntN(len(k.w.nodes))] }

// leader is some node that leads, deposed or not; nil if none does.
func (k *walker) leader() *peer {
	var all []*peer
	for _, p := range k.w.nodes {
		if p.r.Role() == Leading {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil
	}
	if k.rng.IntN(4) > 0 { // mostly the newest
		return slices.MaxFunc(all, func(a, b *peer) int { return int(a.r.leader.epoch) - int(b.r.leader.epoch) })
	}
	return all[k.rng.IntN(len(all))]
}

func (k *walker) step() {
	for _, p := range k.w.nodes {
		if p.answered > 0 && p.answered == k.asked {
			k.reborn(p)
		}
		p.answered = 0
	}
	switch n := k.rng.IntN(100); {
	case n < 36:
		p, q := k.any(), k.any()
		if len(k.w.wires[[2]NodeID{p.id, q.id}]) > 0 {
			k.do("deliver %s %s n=%d", p.id, q.id, 1+k.rng.IntN(4))
		} else if l := k.leader(); l != nil && l != p {
			k.do("talk %s %s chunks=%d", l.id, p.id, k.rng.IntN(3))
		}
	case n < 44:
		if p := k.any(); p.syncs {
			k.do("sync %s", p.id)
		}
	case n < 50:
		k.do("meta")
	case n < 75:
		if l := k.leader(); l != nil {
			k.lead(l)
		}
	case n < 82:
		k.elect()
	default:
		k.trouble()
	}
}

// lead is something that a leader does.
func (k *walker) lead(l *peer) {
	switch k.rng.IntN(14) {
	case 0, 1, 2, 3:
		k.publish(l)
	case 4, 5:
		k.do("store %s", l.id)
	case 6:
		if l.pend.off != 0 {
			k.do("flush %s", l.id)
		}
	case 7, 8:
		k.do("roll %s %s", l.id, []string{"", "parts"}[k.rng.IntN(2)])
	case 9, 10:
		k.do("compact %s", k.any().id)
	case 11:
		if n := l.d.tail(); n > l.d.start.LSN {
			k.do("retain %s %d", l.id, l.d.start.LSN+1+uniform(k.rng, n-l.d.start.LSN))
		}
	case 12:
		if k.sent >= k.first {
			k.ask(l)
		}
	case 13:
		k.do("transfer %s", l.id)
	}
}

func uniform[T ~uint64](r *rand.Rand, n T) T { return T(r.Uint64N(uint64(n))) }

// publish sends the publisher's next message; at a new leader it begins again
// with the first that is not confirmed.
func (k *walker) publish(l *peer) {
	lead, _ := l.r.Leading()
	switch {
	case k.asked != 0 && k.rng.IntN(8) == 0:
		k.ask(l)
		return
	case k.asked != 0 || lead.Accept() != Take:
		return
	}
	if at := fmt.Sprint(l.id, lead.Epoch()); at != k.own {
		k.own, k.next = at, k.first
		for k.w.confirmed[k.next] {
			k.next++
		}
	}
	k.do("publish %s m=%d seq=%d", l.id, k.next, k.base+k.next-k.first+1)
	k.sent = max(k.sent, k.next)
	k.next++
}

func (k *walker) ask(l *peer) {
	k.asked = uint64(len(k.w.asked) + 1)
	k.do("query %s", l.id)
}

// reborn: the publisher restarted, and has asked where it stands (F3). It does
// not know what became of the messages of its life before.
func (k *walker) reborn(p *peer) {
	k.first, k.base, k.own, k.asked = k.sent+1, p.answer, "", 0
}

func (k *walker) elect() {
	var who string
	for _, m := range k.w.config.Members {
		if !m.Learner && k.rng.IntN(5) > 0 {
			who += string(m.Node)
		}
	}
	if who == "" {
		return
	}
	k.do("elect %s prefer=%s", who, k.any().id)
	if k.rng.IntN(6) > 0 {
		k.do("start")
	}
}

// trouble is what befalls a cluster, and what operators do to it.
func (k *walker) trouble() {
	p, q := k.any(), k.any()
	switch k.rng.IntN(14) {
	case 0:
		k.do("crash %s", p.id)
	case 1, 2:
		k.do("powerloss %s", p.id)
	case 3:
		if k.spare() {
			k.do("wipe %s", p.id)
		}
	case 4:
		if p != q {
			k.do("%s %s %s", []string{"cut", "heal", "heal"}[k.rng.IntN(3)], p.id, q.id)
		}
	case 5:
		k.do("tick %d", []int{20, 1000, 5000}[k.rng.IntN(3)])
	case 6, 7:
		k.do("meta")
	case 8:
		k.member(p)
	case 9:
		name := fmt.Sprint("old", len(k.old))
		if p != q && len(k.w.wires[[2]NodeID{p.id, q.id}]) > 0 {
			k.do("keep %s %s %s", p.id, q.id, name) // lost with its connection, and late
			k.old = append(k.old, name+" "+string(p.id)+" "+string(q.id))
			k.do("cut %s %s", p.id, q.id)
			k.do("heal %s %s", p.id, q.id)
		}
	case 10:
		if len(k.old) > 0 {
			k.do("replay %s", k.old[k.rng.IntN(len(k.old))])
		}
	case 11:
		k.do("journal %s", p.id)
	case 12: // a late message, or an assignment that comes again
		if k.w.chosen != nil {
			k.do("resume %s", k.w.chosen.Node)
		}
	case 13:
		if l := k.leader(); l != nil && l != p && l.d.tail() >= l.d.start.LSN {
			n := l.d.start.LSN + uniform(k.rng, l.d.tail()-l.d.start.LSN+1)
			if l.d.at(n).hole || k.rng.IntN(2) == 0 {
				n = 0
			}
			k.do("inject %s %s chunk=%d", l.id, p.id, n)
		}
	}
}

// spare tells whether one more replica may lose its disk: those that count
// must hold a majority.
func (k *walker) spare() bool { return k.counting("") > k.w.config.Quorum() }

// counting is the number of voters that count, one left out.
func (k *walker) counting(but NodeID) int {
	n := 0
	for _, p := range k.w.nodes {
		if m, ok := k.w.config.Find(p.id); ok && p.id != but && m.Counts() && !p.r.Aside() {
			n++
		}
	}
	return n
}

func (k *walker) member(p *peer) {
	m, ok := k.w.config.Find(p.id)
	switch {
	case !ok && p.r.Role() != Leading && !k.w.wasMember(p):
		k.do("change add=%s", p.id)
	case ok && !m.Learner && k.w.config.Voters() > 2 && k.counting(p.id) > (k.w.config.Voters()-1)/2:
		k.do("change remove=%s", p.id)
	}
}

// wasMember: here nobody comes back before he has heard that he was removed.
func (w *world) wasMember(p *peer) bool {
	_, ok := p.r.config.Find(p.id)
	return ok
}

// calm heals all, elects, and waits until all hold the same.
func (k *walker) calm() string {
	for _, p := range k.w.nodes {
		for _, q := range k.w.nodes {
			if p.id < q.id {
				k.do("heal %s %s", p.id, q.id)
			}
		}
	}
	who := ""
	for _, m := range k.w.config.Members {
		if !m.Learner {
			who += string(m.Node)
		}
	}
	k.do("elect %s", who)
	k.do("start")
	for range 6 {
		k.do("run")
		k.do("meta")
		k.do("tick 1000")
	}
	k.do("run")
	k.do("same")
	if len(k.w.fails) > 0 {
		return k.w.fails[0]
	}
	return ""
}
