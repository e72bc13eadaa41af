package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
)

const (
	// starvedSeconds is how long each way of starving goes on by default.
	starvedSeconds = 60
	// movesMax is how often the leader of any one stream may move meanwhile.
	movesMax = 2
	// lookInterval is the time between two looks at all leaders.
	lookInterval = 200 * time.Millisecond
)

// moves counts how often the leader of each stream is another, as a node says.
type moves struct {
	c      *thousandTest
	count  map[string]int
	last   map[string]string
	cancel chan struct{}
	ended  chan error
}

func (c *thousandTest) watch(by *harness.Node) *moves {
	c.t.Helper()
	m := &moves{c: c, count: map[string]int{}, last: map[string]string{}, cancel: make(chan struct{}), ended: make(chan error, 1)}
	conn := c.dial(by)
	go func() {
		defer conn.Abort()
		look := time.NewTicker(lookInterval)
		defer look.Stop()
		for {
			led, err := c.ask(conn)
			if err != nil {
				m.ended <- err
				return
			}
			for name, leader := range led {
				if before := m.last[name]; leader != "" && before != "" && leader != before {
					m.count[name]++
				}
				if leader != "" {
					m.last[name] = leader
				}
			}
			select {
			case <-look.C:
			case <-m.cancel:
				m.ended <- nil
				return
			}
		}
	}()
	return m
}

// end returns how many streams have moved, and how often the one did that has
// moved most.
func (m *moves) end() (moved, most int) {
	m.c.t.Helper()
	close(m.cancel)
	if err := <-m.ended; err != nil {
		m.c.t.Fatal(err)
	}
	for _, n := range m.count {
		moved, most = moved+1, max(most, n)
	}
	return moved, most
}

// TestThousand_starved leaves one node, the metadata's leader at first, hardly any
// processor time: it is slow, then it hangs and comes back over and over. No
// stream's leader may wander, and publishers go on (EL-10).
func TestThousand_starved(t *testing.T) {
	c, streams := newThousandTest(t)
	c.create(streams)
	traffic := &clusterTest{t: t, cluster: c.cluster}
	by := c.ledBy()
	for _, n := range c.cluster.Nodes { // one that it leads
		i := slices.IndexFunc(c.names, func(name string) bool { return by[name] == n.Name })
		name := c.names[i]
		traffic.streams = append(traffic.streams, &clusterStream{name: name, ledger: harness.NewLedger()})
	}
	traffic.start()
	long := time.Duration(number(t, "STARVED", starvedSeconds)) * time.Second
	for _, way := range []struct {
		name       string
		runs, hang time.Duration
	}{
		{"has 5 % of a processor", 5 * time.Millisecond, 95 * time.Millisecond},
		{"hangs for 2 s and runs for 2 s in turn", 2 * time.Second, 2 * time.Second},
	} {
		victim := c.cluster.MetaLeader()
		led := c.leaders()[victim.Name]
		watched := c.watch(c.cluster.Others(victim)[0])
		traffic.gap()
		for end := time.Now().Add(long); time.Now().Before(end); {
			for _, s := range traffic.streams { // it may answer before it hears that it leads no more
				s.traffic.Cut(time.Now())
			}
			victim.Pause()
			time.Sleep(way.hang)
			victim.Continue()
			time.Sleep(way.runs)
		}
		moved, most := watched.end()
		gap := traffic.gap()
		t.Logf("FIGURE thousand: a node that led %d of %d streams and the metadata %s for %v: the leaders of %d streams moved, each %d times at most, goal %d", led, streams, way.name, long, moved, most, movesMax)
		c.goal("longest time without a confirm meanwhile", gap, gapMax)
		if most > movesMax {
			t.Errorf("a leader moved %d times while a node %s", most, way.name)
		}
		traffic.flows()
		c.until("all replicas count again", time.Minute, func() bool {
			now := c.status()
			return now.Seen && now.UnderReplicated == 0 && now.WithoutLeader == 0
		})
		for _, s := range traffic.streams {
			s.traffic.Healed()
		}
	}
	traffic.stop()
	if err := c.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}
