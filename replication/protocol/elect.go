package protocol

import (
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
)

// DecisionKind says what an election came to.
type DecisionKind uint8

const (
	// Wait: too few voters have reported; ask again when more have.
	Wait DecisionKind = iota
	// Elected: Node leads, if it still is what it reported.
	Elected
	// Lost: every voter has reported and it is not enough; an operator decides.
	Lost
)

func (k DecisionKind) String() string { return [...]string{"wait", "elected", "lost"}[k] }

// Decision is what SelectLeader makes of a set of reports.
type Decision struct {
	Kind DecisionKind
	// Elected:
	Node        NodeID
	Run         RunID
	Tail        chunk.Tail // the winner's durable tail
	Inheritance Inheritance
	// Wait: voters that have not reported, in the configuration's order.
	Missing []NodeID
	// Wait or Lost: a damaged replica held chunks durably up to Mark, above
	// what the clean reports hold. Tail is then the best clean one.
	Mark chunk.Tail
}

// SelectLeader chooses the leader of an epoch from the fence reports of that
// epoch (A4, A7). Reports of other epochs, of learners and of nodes outside
// the configuration are ignored; a second report of a node replaces the first.
// Among equal tails the first of prefer wins, then the first in the
// configuration's order.
//
// Set-aside voters neither win nor help to a majority, but the majority is
// one of all voters.
func SelectLeader(epoch chunk.Epoch, reports []Report, c Configuration, prefer ...NodeID) Decision {
	return selectLeader(epoch, reports, c, prefer, allRules())
}

func selectLeader(epoch chunk.Epoch, reports []Report, c Configuration, prefer []NodeID, rules rules) Decision {
	var d Decision
	var best *Report
	clean := 0
	for _, m := range c.Members {
		if m.Learner {
			continue
		}
		r := reportOf(reports, m.Node, epoch)
		if r == nil {
			d.Missing = append(d.Missing, m.Node)
			continue
		}
		d.Inheritance.LogStart = max(d.Inheritance.LogStart, r.LogStart)
		if len(r.Pending) > 0 {
			d.Inheritance.Pending = append(d.Inheritance.Pending, r.Pending)
		}
		if r.Damaged && r.Mark.Compare(d.Mark) > 0 {
			d.Mark = r.Mark
		}
		if rules.emptiedAside && !counts(r, m, c) {
			continue
		}
		clean++
		if best == nil || better(r, best, prefer, rules) {
			best = r
		}
	}
	if best != nil {
		d.Tail = best.Tail
	}
	enough := clean >= c.Quorum()
	covered := d.Tail.Compare(d.Mark) >= 0
	switch {
	case enough && covered:
		d.Kind, d.Node, d.Run = Elected, best.Node, best.Run
		d.Mark = chunk.Tail{}
	case len(d.Missing) > 0:
		d.Kind = Wait
	default:
		d.Kind = Lost
	}
	return d
}

// counts: neither the replica nor the metadata sets it aside. A sole voter
// that lost its journal but not its log is taken back, as nobody else could
// (design 3.7); one whose log is gone or damaged is not.
func counts(r *Report, m Member, c Configuration) bool {
	if r.Damaged {
		return false
	}
	if c.Voters() == 1 {
		return !r.Aside || r.Tail.LSN > 0
	}
	return !r.Aside && m.Counts() && r.Registration == m.Registration
}

// reportOf is the last report of a node for an epoch.
func reportOf(reports []Report, n NodeID, e chunk.Epoch) *Report {
	for i := len(reports) - 1; i >= 0; i-- {
		if reports[i].Node == n && reports[i].Epoch == e {
			return &reports[i]
		}
	}
	return nil
}

// better: a higher durable tail, epoch first; then the preferred node. Equal
// in both, the earlier in the configuration stays.
func better(r, best *Report, prefer []NodeID, rules rules) bool {
	c := r.Tail.Compare(best.Tail)
	if !rules.epochFirst {
		a := chunk.Tail{Epoch: chunk.Epoch(r.Tail.LSN), LSN: chunk.LSN(r.Tail.Epoch)}
		b := chunk.Tail{Epoch: chunk.Epoch(best.Tail.LSN), LSN: chunk.LSN(best.Tail.Epoch)}
		c = a.Compare(b)
	}
	if c != 0 {
		return c > 0
	}
	return rank(prefer, r.Node) < rank(prefer, best.Node)
}

func rank(prefer []NodeID, n NodeID) int {
	if i := slices.Index(prefer, n); i >= 0 {
		return i
	}
	return len(prefer)
}
