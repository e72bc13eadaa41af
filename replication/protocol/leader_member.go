package protocol

import (
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
)

// adopt counts with a newer configuration from now on (D3). Sessions of
// members that stay go on.
func (l *Leader) adopt(now Tick, c Configuration, out []Output) []Output {
	if c.Version < l.adopted.Version || c.Version == l.adopted.Version && l.adopted.Members != nil {
		return out
	}
	l.adopted, l.settled = c, false
	l.me, l.member = c.Find(l.self)
	l.count.Quorum = c.Quorum()
	l.peers = slices.DeleteFunc(l.peers, func(p Progress) bool {
		_, ok := c.Find(p.Member.Node)
		return !ok
	})
	for _, m := range c.Members {
		if m.Node == l.self {
			continue
		}
		if p := l.peer(m.Node); p != nil {
			p.Member, p.proposed = m, false
			continue
		}
		l.peers = append(l.peers, Progress{Member: m})
		out = append(out, Output{Kind: OutConnect, Peer: m.Node})
	}
	return l.recount(now, out)
}

// settle tells the metadata when the next change may come (D3), and proposes
// to count those that have caught up (D2).
func (l *Leader) settle(now Tick, out []Output) []Output {
	if !l.settled && (!l.rules.oneChange || l.ready && l.count.Held() >= l.commit) {
		l.settled = true
		out = append(out, l.proposal(ProposeSettled, Member{Node: l.self}))
		if !l.member || l.me.Learner {
			out = l.leave(now, out)
		}
	}
	for i := range l.peers {
		p := &l.peers[i]
		if p.proposed || !l.caughtUp(p) || p.registration != p.Member.Registration {
			continue
		}
		switch {
		case p.Member.Learner:
			out = append(out, l.proposal(ProposePromote, p.Member))
		case p.Member.Aside:
			out = append(out, l.proposal(ProposeClear, p.Member))
		default:
			continue
		}
		p.proposed, p.proposedAt = true, now
	}
	return out
}

func (l *Leader) proposal(k ProposalKind, m Member) Output {
	return Output{Kind: OutPropose, Proposal: Proposal{
		Kind: k, Node: m.Node, Epoch: l.epoch, Config: l.adopted.Version, Registration: m.Registration}}
}

// caughtUp: the barrier is committed, and in this session the replica's
// durable tail has reached the commit (D2).
func (l *Leader) caughtUp(p *Progress) bool {
	return p.phase == phaseStreaming && (l.ready || !l.rules.clearBarrier) &&
		(p.acked >= l.commit || !l.rules.clearCaughtUp)
}

// transfer is a handing over on its way (D4). Publishers are held only once the
// target has shown that it keeps up: by having what the leader had at first.
type transfer struct {
	on        bool
	target    NodeID
	id        uint64
	since     Tick
	had       chunk.LSN // the tail at first
	held      bool      // publishers are, since heldSince
	heldSince Tick
	flushed   bool
	told      bool
}

// handOver waits until the target keeps up, stops accepting, has tracking
// flushed, and waits for the target again.
func (l *Leader) handOver(now Tick, in *Input, out []Output) []Output {
	why := Reason(0)
	target := in.Peer
	if target == "" {
		target = l.successor()
	}
	switch p := l.peer(target); {
	case l.transfer.on || !l.ready:
		why = ReasonBusy
	case p == nil || p.phase != phaseStreaming || !l.counts(p.Member, p.aside, p.registration):
		why = ReasonTarget
	}
	if why != 0 {
		return append(out, Output{Kind: OutRefuse, ID: in.ID, Reason: why, Epoch: l.epoch})
	}
	l.transfer = transfer{on: true, target: target, id: in.ID, since: now, had: l.tail}
	return l.handing(now, out)
}

// leave hands over after this node's removal has settled; what fails is tried
// again at the next occasion.
func (l *Leader) leave(now Tick, out []Output) []Output {
	if l.transfer.on || !l.ready || l.successor() == "" {
		return out
	}
	return l.handOver(now, &Input{Kind: InTransfer}, out)
}

// successor is the counting follower that is farthest, the first among equals.
func (l *Leader) successor() NodeID {
	var best NodeID
	var far chunk.LSN
	for i := range l.peers {
		p := &l.peers[i]
		if p.phase == phaseStreaming && l.counts(p.Member, p.aside, p.registration) && (best == "" || p.acked > far) {
			best, far = p.Member.Node, p.acked
		}
	}
	return best
}

func (l *Leader) flushed(now Tick, out []Output) []Output {
	l.transfer.flushed = l.transfer.held
	return l.handing(now, out)
}

// handing says when the switch may come: everything committed, the target
// durable at the tail.
func (l *Leader) handing(now Tick, out []Output) []Output {
	t := &l.transfer
	if !t.on {
		if l.settled && (!l.member || l.me.Learner) {
			return l.leave(now, out)
		}
		return out
	}
	p := l.peer(t.target)
	if !t.held && p != nil && p.phase == phaseStreaming && p.acked >= t.had {
		t.held, t.heldSince = true, now
		out = append(out, Output{Kind: OutFlush, Peer: t.target, ID: t.id})
	}
	if t.flushed && !t.told && l.commit == l.tail && p != nil && p.phase == phaseStreaming && p.acked == l.tail {
		t.told = true
		out = append(out, Output{Kind: OutTransfer, Peer: t.target, ID: t.id, Epoch: l.epoch, LSN: l.tail})
	}
	if now-t.since >= l.limits.TransferAfter || t.held && !t.told && now-t.heldSince >= l.limits.HoldAfter {
		out = append(out, Output{Kind: OutTransferFailed, Peer: t.target, ID: t.id, Epoch: l.epoch})
		*t = transfer{}
	}
	return out
}
