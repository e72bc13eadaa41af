package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// stage is a world with a coordinator's sight and a clock.
type stage struct {
	*world
	sight *Sight
	tick  protocol.Tick
}

func newStage(t *testing.T, nodes ...protocol.NodeID) *stage {
	return &stage{world: newWorld(t, nodes...), sight: NewSight(), tick: 1}
}

// next asks for the steps of one stream and writes them as one line.
func (g *stage) next(name string) string {
	g.t.Helper()
	s := g.get(name)
	steps := NextSteps(g.state, g.sight, []chunk.Incarnation{s.Incarnation}, g.tick)
	return line(&steps)
}

func line(steps *Steps) string {
	var words []string
	for _, x := range steps.Grants {
		words = append(words, fmt.Sprintf("grant %d", x.Epoch))
	}
	for _, f := range steps.Fences {
		words = append(words, fmt.Sprintf("fence %s", f.Node))
	}
	for _, e := range steps.Elected {
		words = append(words, fmt.Sprintf("elect %s", e.Node))
	}
	for _, i := range steps.Installs {
		words = append(words, fmt.Sprintf("install %s", i.Node))
	}
	for _, h := range steps.Handovers {
		words = append(words, fmt.Sprintf("%s hands over to %s", h.From, h.To))
	}
	for _, x := range steps.Added {
		words = append(words, strings.TrimSuffix(fmt.Sprintf("add %s for %s", x.Node, x.Instead), " for "))
	}
	for _, x := range steps.Retired {
		words = append(words, fmt.Sprintf("retire %s", x.Node))
	}
	for _, x := range steps.Removed {
		words = append(words, fmt.Sprintf("remove %s", x.Node))
	}
	for _, s := range steps.Stuck {
		words = append(words, "stuck "+s.Reason)
	}
	if steps.Wake != 0 {
		words = append(words, fmt.Sprintf("wake %d", steps.Wake))
	}
	return strings.Join(words, ", ")
}

func (g *stage) expect(name, want string) {
	g.t.Helper()
	if got := g.next(name); got != want {
		g.t.Errorf("at %d the steps for %s (%s) are %q, want %q", g.tick, name, shape(g.get(name)), got, want)
	}
}

// report answers a fence with a durable tail.
func (g *stage) report(name string, node protocol.NodeID, e chunk.Epoch, l chunk.LSN) {
	s := g.get(name)
	r, _ := s.Replica(node)
	g.sight.Reported(protocol.Report{
		Stream: s.Incarnation, Epoch: s.Epoch, Node: node, Run: 1, Registration: r.Registration, Tail: chunk.Tail{Epoch: e, LSN: l},
	})
}

func (g *stage) fail(name string, node protocol.NodeID) {
	s := g.get(name)
	g.sight.FenceFailed(s.Incarnation, s.Epoch, node, "no route", g.tick)
}

// settle brings a new stream to an installed leader.
func (g *stage) settle(name string, nodes ...protocol.NodeID) {
	g.t.Helper()
	g.led(name, nodes...)
	g.expect(name, "install "+string(nodes[0]))
	g.sight.Installed(g.get(name).Incarnation, 1)
	g.expect(name, "")
}

func TestNextSteps_newStream(t *testing.T) {
	g := newStage(t, "n1")
	g.stream("s", "n1")
	g.expect("s", "fence n1")
	g.expect("s", "") // asked already
	g.report("s", "n1", 0, 0)
	g.expect("s", "elect n1")
	g.expect("s", "elect n1") // until it is recorded
	g.elect(g.get("s"), "n1")
	g.expect("s", "install n1")
	g.expect("s", "") // being told
	g.sight.Installed(g.get("s").Incarnation, 1)
	g.expect("s", "")
	if !g.sight.IsInstalled(g.get("s").Incarnation, 1) || g.sight.IsInstalled(g.get("s").Incarnation, 2) {
		t.Error("the wrong epoch is known to be led")
	}
}

func TestNextSteps_waitsForVotersThatAreUp(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.stream("s", "n1", "n2", "n3")
	g.expect("s", "fence n1, fence n2, fence n3")
	g.report("s", "n1", 1, 5)
	g.report("s", "n2", 1, 6)
	g.expect("s", "wake 101") // n3 may hold more
	g.report("s", "n3", 1, 7)
	g.expect("s", "elect n3")
}

func TestNextSteps_doesNotWaitForEver(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.stream("s", "n1", "n2", "n3")
	g.next("s")
	g.report("s", "n1", 1, 5)
	g.report("s", "n2", 1, 6)
	g.tick = 101
	g.expect("s", "elect n2")
}

// A new stream waits longer for the place that was chosen for it, but not for
// ever, nor for one that can't be asked, nor when somebody may miss a leader.
func TestNextSteps_newStreamWaitsForItsPlace(t *testing.T) {
	for _, row := range []struct {
		name string
		then func(g *stage)
		want string
	}{
		{"it is slow", func(*stage) {}, "wake 1001"},
		{"it answers", func(g *stage) { g.report("s", "n3", 0, 0) }, "elect n3"},
		{"it does not answer", func(g *stage) { g.tick = 1001 }, "elect n2"},
		{"it can't be asked", func(g *stage) { g.fail("s", "n3") }, "elect n2"},
	} {
		g := newStage(t, "n1", "n2", "n3")
		chosen := newStream("s", "n1", "n2", "n3")
		chosen.Preferred, chosen.Incarnation = "n3", 4 // else the tie is n2's
		g.ok(&CreateStreams{Streams: []NewStream{chosen}})
		g.next("s")
		g.report("s", "n1", 0, 0)
		g.report("s", "n2", 0, 0)
		g.tick = 500
		row.then(g)
		if got := g.next("s"); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
	g := newStage(t, "n1", "n2", "n3")
	chosen := newStream("s", "n1", "n2", "n3")
	chosen.Preferred = "n3"
	g.ok(&CreateStreams{Streams: []NewStream{chosen}})
	g.ok(&GrantEpochs{Streams: []Grant{{Stream: g.get("s").Incarnation, Epoch: 2, Prefer: "n3"}}})
	g.next("s")
	g.report("s", "n1", 1, 5)
	g.report("s", "n2", 1, 6)
	g.expect("s", "wake 101")
}

// Slow answers are awaited as long as the calls are: that is not stuck.
func TestNextSteps_slowIsNotStuck(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.stream("s", "n1", "n2", "n3")
	g.next("s")
	g.tick = 5_000
	g.expect("s", "")
	g.report("s", "n1", 1, 5)
	g.fail("s", "n2")
	g.expect("s", "wake 5050")
	g.tick = 5_050
	g.expect("s", "fence n2")
	g.report("s", "n3", 1, 6) // late itself, but n2 was just asked
	g.expect("s", "wake 5150")
	g.tick = 5_150
	g.expect("s", "elect n3")
}

func TestNextSteps_doesNotAskWhoIsGone(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.sight.See("n3", Gone)
	g.stream("s", "n1", "n2", "n3")
	g.expect("s", "fence n1, fence n2")
	g.report("s", "n1", 0, 0)
	g.report("s", "n2", 0, 0)
	g.expect("s", "elect n1") // the preferred one
}

func TestNextSteps_asksAgainAfterAFailure(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.stream("s", "n1", "n2", "n3")
	g.next("s")
	g.report("s", "n1", 0, 0)
	g.fail("s", "n2")
	g.fail("s", "n3")
	g.expect("s", "stuck no report from [n2 n3]; n2: no route; n3: no route, wake 51")
	g.tick = 51
	g.expect("s", "fence n2, fence n3")
	g.fail("s", "n2")
	g.fail("s", "n3")
	g.expect("s", "stuck no report from [n2 n3]; n2: no route; n3: no route, wake 151")
	for range 10 { // the pause grows up to its bound
		g.tick = g.sight.of(g.get("s")).retry
		g.next("s")
		g.fail("s", "n2")
		g.fail("s", "n3")
	}
	if pause := g.sight.of(g.get("s")).retry - g.tick; pause != retryMost {
		t.Errorf("the pause has grown to %d", pause)
	}
	g.report("s", "n2", 0, 0) // an answer that was taken for lost
	g.expect("s", "elect n1")
}

func TestNextSteps_leaderIsGone(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.settle("s", "n1", "n2", "n3")
	g.sight.See("n1", Gone)
	g.expect("s", "grant 2")
	g.ok(grant(g.get("s"), 2))
	g.expect("s", "fence n2, fence n3")
	g.report("s", "n2", 1, 5)
	g.report("s", "n3", 1, 6)
	g.expect("s", "elect n3")
}

// Without a majority in sight, a new epoch would only stop a leader that may
// still have one.
func TestNextSteps_keepsALeaderWithoutAMajority(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.settle("s", "n1", "n2", "n3")
	g.sight.See("n1", Gone)
	g.sight.See("n2", Gone)
	g.expect("s", "")
	g.sight.See("n2", Up)
	g.expect("s", "grant 2")
}

func TestNextSteps_setAsideVoterIsNoMajority(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.settle("s", "n1", "n2", "n3")
	g.ok(register(g.get("s"), "n2"))
	g.sight.See("n1", Gone)
	g.expect("s", "")
}

func TestNextSteps_leaderSaysItIsOver(t *testing.T) {
	g := newStage(t, "n1")
	g.settle("s", "n1")
	g.sight.Over(g.get("s"), 1)
	g.expect("s", "grant 2")
	g.ok(grant(g.get("s"), 2))
	g.sight.Over(g.get("s"), 1) // late news of an older epoch
	g.expect("s", "fence n1")
}

// A coordinator that starts asks who leads; one that restarted says no.
func TestNextSteps_newCoordinatorAsks(t *testing.T) {
	g := newStage(t, "n1", "n2")
	g.led("a", "n1", "n2")
	g.led("b", "n2", "n1")
	streams := []chunk.Incarnation{g.get("a").Incarnation, g.get("b").Incarnation}
	steps := NextSteps(g.state, g.sight, streams, g.tick)
	if got := line(&steps); got != "install n1, install n2" {
		t.Errorf("steps %q", got)
	}
	g.sight.Installed(g.get("a").Incarnation, 1)
	g.sight.Over(g.get("b"), 1)
	g.expect("a", "")
	g.expect("b", "grant 2")
}

func TestNextSteps_installIsRetried(t *testing.T) {
	g := newStage(t, "n1")
	g.led("s", "n1")
	g.expect("s", "install n1")
	g.sight.InstallFailed(g.get("s").Incarnation, 1, g.tick)
	g.expect("s", "wake 51")
	g.tick = 51
	g.expect("s", "install n1")
}

func TestNextSteps_restartedNodeIsAskedAgain(t *testing.T) {
	g := newStage(t, "n1", "n2")
	g.settle("a", "n1", "n2")
	g.settle("b", "n2", "n1")
	if got := g.sight.Restarted(g.state, "n1"); !slices.Equal(got, []chunk.Incarnation{g.get("a").Incarnation}) {
		t.Errorf("restart concerns %v", got)
	}
	g.expect("a", "install n1")
	g.expect("b", "")
}

// The winner is told what the reports left to it.
func TestNextSteps_inheritance(t *testing.T) {
	g := newStage(t, "n1", "n2")
	s := g.stream("s", "n1", "n2")
	g.next("s")
	g.report("s", "n1", 1, 5)
	g.sight.Reported(protocol.Report{Stream: s.Incarnation, Epoch: 1, Node: "n2", Run: 1, LogStart: 3, Pending: []byte("app")})
	g.expect("s", "elect n1")
	g.elect(s, "n1")
	steps := NextSteps(g.state, g.sight, []chunk.Incarnation{s.Incarnation}, g.tick)
	if got := steps.Installs[0].Assignments[0]; got.Epoch != 1 || got.Run != 1 || got.Inheritance.LogStart != 3 || len(got.Inheritance.Pending) != 1 {
		t.Errorf("installation %+v", got)
	}
}

func TestNextSteps_drainingNodeLosesTies(t *testing.T) {
	g := newStage(t, "n1", "n2")
	g.ok(&MarkNode{ID: "n1", Draining: true})
	g.stream("s", "n1", "n2")
	g.next("s")
	g.report("s", "n1", 1, 5)
	g.report("s", "n2", 1, 5)
	g.expect("s", "elect n2")
	g.report("s", "n1", 1, 6) // but a higher tail wins always
	g.expect("s", "elect n1")
}

// A voter set aside since its report can't win by it.
func TestNextSteps_changedConfigurationIsDecidedAnew(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.stream("s", "n1", "n2", "n3")
	g.next("s")
	g.report("s", "n1", 1, 9)
	g.report("s", "n2", 1, 5)
	g.report("s", "n3", 1, 6)
	g.expect("s", "elect n1")
	g.ok(register(g.get("s"), "n1"))
	g.expect("s", "elect n3")
}

func TestNextSteps_damageAboveTheRestIsNamed(t *testing.T) {
	g := newStage(t, "n1", "n2")
	s := g.stream("s", "n1", "n2")
	g.next("s")
	g.report("s", "n2", 1, 5)
	g.sight.Reported(protocol.Report{Stream: s.Incarnation, Epoch: 1, Node: "n1", Run: 1, Damaged: true, Mark: chunk.Tail{Epoch: 1, LSN: 9}})
	if got := g.next("s"); !strings.HasPrefix(got, "stuck a damaged replica held chunks up to 1/9, the best undamaged one has 1/5; all voters") {
		t.Errorf("steps %q", got)
	}
}

// Ten thousand streams are one grant, one fence, one command of leaders, one
// installation.
func TestNextSteps_manyAtOnce(t *testing.T) {
	const many = 10_000
	g := newStage(t, "n1")
	c := &CreateStreams{}
	for i := range many {
		c.Streams = append(c.Streams, newStream(fmt.Sprintf("s%d", i), "n1"))
	}
	g.ok(c)
	var all []chunk.Incarnation
	for s := range g.state.Streams() {
		all = append(all, s.Incarnation)
	}
	steps := NextSteps(g.state, g.sight, all, g.tick)
	if len(steps.Fences) != 1 || len(steps.Fences[0].Requests) != many {
		t.Fatalf("%d fences", len(steps.Fences))
	}
	for _, f := range steps.Fences[0].Requests {
		g.sight.Reported(protocol.Report{Stream: f.Stream.Incarnation, Epoch: f.Stream.Epoch, Node: "n1", Run: 3})
	}
	steps = NextSteps(g.state, g.sight, all, g.tick)
	if len(steps.Elected) != many {
		t.Fatalf("%d elected", len(steps.Elected))
	}
	g.ok(&AssignLeaders{Leaders: steps.Elected})
	steps = NextSteps(g.state, g.sight, all, g.tick)
	if len(steps.Installs) != 1 || len(steps.Installs[0].Assignments) != many {
		t.Fatalf("%d installations", len(steps.Installs))
	}
	g.ok(&DeleteStreams{Streams: []OldStream{{"/", "s0", g.get("s0").Incarnation}}})
	steps = NextSteps(g.state, g.sight, all, g.tick)
	if !steps.Empty() || len(g.sight.streams) != many-1 {
		t.Errorf("a deleted stream is remembered: %d", len(g.sight.streams))
	}
}
