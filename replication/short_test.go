package replication

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// shortDisks are three nodes on disks of 8 MiB with their floor at 1 MiB, and
// what each believes of the others.
type shortDisks struct {
	*cluster
	disks      map[protocol.NodeID]*vfs.Mem
	neighbours map[protocol.NodeID]*atomic.Uint32 // Neighbour
}

func newShortDisks(t *testing.T) *shortDisks {
	t.Helper()
	s := &shortDisks{disks: map[protocol.NodeID]*vfs.Mem{}, neighbours: map[protocol.NodeID]*atomic.Uint32{}}
	for _, id := range []protocol.NodeID{"n1", "n2", "n3"} {
		s.disks[id], s.neighbours[id] = vfs.NewMem(), &atomic.Uint32{}
		s.disks[id].Limit(8 << 20)
	}
	s.cluster = newClusterOn(t, s.disks, func(f *fixture) {
		f.config.Disk = DiskConfig{Rule: segstore.DiskRule{FreeMin: 2 << 20, LowPercent: 150, FloorPercent: 50}, Every: 10 * time.Millisecond}
		f.config.Neighbour = func(n protocol.NodeID) Neighbour { return Neighbour(s.neighbours[n].Load()) }
	})
	return s
}

// leave lets a ballast leave so many bytes of a node's disk free.
func (s *shortDisks) leave(id protocol.NodeID, bytes int64) {
	s.t.Helper()
	disk := s.disks[id]
	file, err := disk.OpenFile("/ballast", os.O_RDWR|os.O_CREATE, 0o644)
	if err == nil {
		size, _ := file.Size()
		free, _ := disk.FreeSpace("/")
		err = errors.Join(file.Truncate(size+int64(free)-bytes), file.Close())
	}
	if err != nil {
		s.t.Fatal(err)
	}
	full := bytes < 1<<20
	until(s.t, "the disk is measured", func() bool { return s.nodes[id].node.disk.full() == full })
}

// TestShort_followerOnAFullDisk: it takes nothing below its floor, the others go
// on without it, the leader knows how far it is behind; with room it catches up
// in the same session.
func TestShort_followerOnAFullDisk(t *testing.T) {
	s := newShortDisks(t)
	leader := s.lead(1, "n1", "n2", "n3")
	s.agree(leader, "n1", "n2", "n3")
	full := protocol.NodeID("n3")
	if leader == s.nodes[full] {
		full = "n2"
	}
	s.leave(full, 1<<20-1)
	p := leader.declare("")
	for i := range uint64(20) {
		leader.publish(p, numbered(10*i+1, 10, 1000)...)
	}
	free, _ := s.disks[full].FreeSpace("/")
	if free != 1<<20-1 {
		t.Errorf("%d bytes of its disk are free, it was to take nothing of %d", free, 1<<20-1)
	}
	until(t, "the leader knows how far it is behind", func() bool {
		for _, f := range leader.replica.Stats().Followers {
			if f.Node == full && f.Linked && f.Behind >= 20 {
				return true
			}
		}
		return false
	})
	s.leave(full, 4<<20)
	s.agree(leader, "n1", "n2", "n3")
	until(t, "nobody is behind", func() bool {
		for _, f := range leader.replica.Stats().Followers {
			if !f.Linked || f.Behind > 0 {
				return false
			}
		}
		return true
	})
	if n := s.nodes[full].node.parked.Load(); n != 0 {
		t.Errorf("%d bytes are parked still", n)
	}
	if runs := s.nodes[full].replica.Stats().Runs; runs != 1 {
		t.Errorf("the follower began %d runs, want one", runs)
	}
}

// TestShort_barrierOnAFullDisk: one that has all that was committed makes a
// majority for a new leader.
func TestShort_barrierOnAFullDisk(t *testing.T) {
	s := newShortDisks(t)
	leader := s.lead(1, "n1", "n2", "n3")
	leader.publish(leader.declare(""), numbered(1, 10, 1000)...)
	s.agree(leader, "n1", "n2", "n3")
	var others []protocol.NodeID
	for _, id := range []protocol.NodeID{"n1", "n2", "n3"} {
		if s.nodes[id] != leader {
			others = append(others, id)
		}
	}
	s.leave(others[0], 1<<20-1)
	s.link(leader.config.ID, false)
	if got := len(s.lead(2, others[1], others[0]).records()); got != 10 {
		t.Errorf("%d records, want 10", got)
	}
}

// TestShort_oneGoneOneFull: the leader is gone, one follower's disk is at its floor
// and lacks chunks, or takes not a byte. There is no majority with room: who leads
// has publishers wait and newcomers refused, readers go on, and with room all goes
// on by itself.
func TestShort_oneGoneOneFull(t *testing.T) {
	for name, free := range map[string]int64{"at its floor": 1<<20 - 1, "not a byte": 0} {
		t.Run(name, func(t *testing.T) {
			s := newShortDisks(t)
			old := s.lead(1, "n1", "n2", "n3")
			p := old.declare("p")
			old.publish(p, numbered(1, 10, 1000)...)
			s.agree(old, "n1", "n2", "n3")
			s.leave("n3", free)
			old.publish(p, numbered(11, 10, 1000)...) // n2 is a majority with it
			s.agree(old, "n2")
			s.link("n1", false)
			s.neighbours["n1"].Store(uint32(NeighbourGone))
			s.neighbours["n3"].Store(uint32(NeighbourLow))
			n2 := s.nodes["n2"]
			elect := func(epoch chunk.Epoch) bool {
				reports := []protocol.Report{n2.fence(epoch)}
				full := s.nodes["n3"].node.Fence(n2.context(), []FenceRequest{{streamUnderTest, epoch}})[0]
				if full.Err != nil {
					return false
				}
				d := protocol.SelectLeader(epoch, append(reports, full.Report), s.config)
				if d.Kind != protocol.Elected || d.Node != "n2" {
					t.Fatalf("election of epoch %d: %+v", epoch, d)
				}
				n2.must(n2.node.Assign(n2.context(), protocol.Assignment{
					Stream: streamUnderTest, Epoch: epoch, Node: "n2", Run: d.Run, Replicas: s.config,
				}, &d.Inheritance))
				return true
			}
			epoch := chunk.Epoch(2)
			elected := elect(epoch)
			if free > 0 != elected {
				t.Fatalf("n3 took part in the election: %v", elected)
			}
			if elected {
				until(t, "newcomers are refused", func() bool { _, err := n2.replica.Declare("late"); return errors.Is(err, ErrStarved) })
			} else if _, err := n2.replica.Declare("late"); !errors.Is(err, ErrNotLeader) {
				t.Errorf("without a leader a newcomer hears %v", err)
			}
			if st := n2.replica.Stats(); elected && st.Role != RoleElected {
				t.Errorf("%v leads without a majority", st.Role)
			}
			if got := len(n2.records()); got != 20 {
				t.Errorf("readers get %d records, want 20", got)
			}
			s.leave("n3", 4<<20)
			s.neighbours["n3"].Store(uint32(NeighbourWell))
			n2.node.DisksChanged()
			until(t, "it leads", func() bool { // as a coordinator that asks again
				if !elected {
					epoch++
					elected = elect(epoch)
				}
				return elected && n2.replica.Stats().Role == RoleLeading
			})
			until(t, "newcomers are taken", func() bool { _, err := n2.replica.Declare("late"); return err == nil })
			n2.publish(n2.declare("p"), numbered(21, 10, 1000)...)
			s.agree(n2, "n3")
		})
	}
}

// TestShort_publishersAreTold: where no majority has room, newcomers are
// refused and what is sent waits; with room it goes on.
func TestShort_publishersAreTold(t *testing.T) {
	s := newShortDisks(t)
	leader := s.lead(1, "n1", "n2", "n3")
	p := leader.declare("")
	for id, n := range s.neighbours {
		if id != leader.config.ID {
			n.Store(uint32(NeighbourLow))
		}
	}
	leader.node.DisksChanged()
	until(t, "newcomers are refused", func() bool { _, err := leader.replica.Declare("late"); return errors.Is(err, ErrStarved) })
	if !leader.replica.Stats().Starved {
		t.Error("the figures don't tell")
	}
	before := leader.replica.Stats().Published
	published := make(chan struct{})
	go func() {
		defer close(published)
		leader.publish(p, numbered(1, 10, 100)...)
	}()
	until(t, "what was published waits", func() bool { return leader.replica.Stats().QueuedBytes > 0 })
	if n := leader.replica.Stats().Published; n != before {
		t.Errorf("%d entries were stored meanwhile", n-before)
	}
	for _, n := range s.neighbours {
		n.Store(uint32(NeighbourWell))
	}
	leader.node.DisksChanged()
	<-published
	leader.declare("late")
}

func TestShort_decision(t *testing.T) {
	members := func(n int) (list []protocol.Member) {
		for i := range n {
			list = append(list, protocol.Member{Node: protocol.NodeID(rune('a' + i))})
		}
		return list
	}
	for _, c := range []struct {
		name    string
		members []protocol.Member
		others  string // of each but a: w, l or g
		want    bool
	}{
		{"alone", members(1), "", false},
		{"three, all well", members(3), "ww", false},
		{"one of three low", members(3), "wl", false},
		{"two of three low", members(3), "ll", true},
		{"one of three low, one gone", members(3), "lg", true},
		{"two of three gone", members(3), "gg", false}, // B7's case
		{"two of five low", members(5), "wwll", false},
		{"three of five low", members(5), "wlll", true},
		{"one of two low", members(2), "l", true},
		{"a low learner", append(members(3), protocol.Member{Node: "d", Learner: true}), "wwl", false},
	} {
		is := func(n protocol.NodeID) Neighbour {
			return map[byte]Neighbour{'w': NeighbourWell, 'l': NeighbourLow, 'g': NeighbourGone}[c.others[n[0]-'b']]
		}
		if got := short(c.members, "a", is); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
