package cluster

import (
	"slices"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// passage is one leader's making way for another, as the coordinator sees it: it
// is told to the log with what each stage took, since publishers wait through all
// of them.
//
//	handover  the heir keeps up; the old leader stops accepting, commits and has
//	          the heir hold all (D4)
//	grant     the next epoch is in the metadata
//	reports   the voters have promised it and reported
//	assign    the new leader is in the metadata, where clients find it
//	install   it says that it leads
type passage struct {
	from  protocol.NodeID
	epoch chunk.Epoch // the next one
	// ends are of the stages that are over.
	ends  [passageStages]time.Time
	begun time.Time
	over  int
}

// The stages of a passage, in order.
const (
	stageHandover = iota
	stageGrant
	stageReports
	stageAssign
	stageInstall
	passageStages
)

var passageNames = [passageStages]string{"handover", "grant", "reports", "assign", "install"}

// reached notes that a stage is over, if those before it are.
func (p *passage) reached(stage int, now time.Time) {
	if p.over == stage {
		p.ends[stage] = now
		p.over++
	}
}

// passing notes how far the handings over among the streams have come.
func (r *reign) passing(view *catalog.State, streams []chunk.Incarnation, steps *catalog.Steps) {
	if len(r.passages) == 0 {
		return
	}
	now := time.Now()
	for _, i := range streams {
		p := r.passages[i]
		if p == nil {
			continue
		}
		s, ok := view.Incarnation(i)
		switch {
		case !ok, s.Epoch > p.epoch: // another election came between
			delete(r.passages, i)
			continue
		case s.Epoch == p.epoch:
			p.reached(stageGrant, now)
		}
		if slices.ContainsFunc(steps.Elected, func(e catalog.Assign) bool { return e.Stream == i }) {
			p.reached(stageReports, now)
		}
		if s.Epoch == p.epoch && s.Led() {
			p.reached(stageAssign, now)
		}
		if r.sight.IsInstalled(i, p.epoch) {
			p.reached(stageInstall, now)
			r.tell(s, p)
			delete(r.passages, i)
		}
	}
}

// tell logs a passage that is over.
func (r *reign) tell(s *catalog.Stream, p *passage) {
	if p.over < passageStages {
		return
	}
	pairs := []any{"stream", s.Name, "vhost", s.VHost, "from", p.from, "to", s.Leader.Node, "epoch", s.Epoch}
	last := p.begun
	for n, end := range p.ends {
		pairs = append(pairs, passageNames[n], end.Sub(last).Round(100*time.Microsecond))
		last = end
	}
	r.c.log.Info("a stream's leader has moved", pairs...)
}
