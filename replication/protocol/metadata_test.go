package protocol

import (
	"slices"
)

// member changes one member of a new configuration.
func (w *world) member(n NodeID, f func(*Member)) {
	w.config.Version++
	w.config.Members = slices.Clone(w.config.Members)
	for i := range w.config.Members {
		if w.config.Members[i].Node == n {
			f(&w.config.Members[i])
		}
	}
}

// register enters an emptied, damaged or new replica anew (D1).
func (w *world) register(p *peer) {
	if p.r.journal.Registration != Unregistered {
		return
	}
	var reg Registration
	w.member(p.id, func(m *Member) {
		m.Registration++
		m.Aside = !m.Learner
		reg = m.Registration
	})
	w.say("meta: %s registers as %d at epoch %d", p.id, reg, w.epoch)
	w.step(p, Input{Kind: InRegistered, Registration: reg, Epoch: w.epoch}, packet{})
}

// meta applies what was proposed, and tells the named nodes, or all.
func (w *world) meta(a args) {
	for _, x := range w.proposals {
		w.propose(x)
	}
	w.proposals = nil
	to := a.kv["to"]
	for _, p := range w.nodes {
		if _, named := a.kv["to"]; !named || slices.Contains([]byte(to), p.id[0]) {
			w.step(p, Input{Kind: InConfig, Config: ptr(w.config)}, packet{})
		}
	}
}

func (w *world) propose(x Proposal) {
	m, ok := w.config.Find(x.Node)
	current := x.Epoch == w.epoch && x.Config == w.config.Version
	switch x.Kind {
	case ProposeRegister:
		w.register(w.node(string(x.Node)))
		return
	case ProposeSettled:
		if current {
			w.settled = true
			w.say("meta: version %d settled in epoch %d", x.Config, x.Epoch)
			return
		}
	case ProposeClear:
		if (current || w.lenient) && ok && m.Aside && m.Registration == x.Registration {
			w.member(x.Node, func(m *Member) { m.Aside = false })
			w.say("meta: %s counts again", x.Node)
			return
		}
	case ProposePromote:
		if current && ok && m.Learner && m.Registration == x.Registration && w.settled {
			w.settled = false
			w.member(x.Node, func(m *Member) { m.Learner, m.Aside = false, false })
			w.say("meta: %s is a voter, version %d", x.Node, w.config.Version)
			return
		}
	}
	w.say("meta: refuses to take %v of %s", x.Kind, x.Node)
}

// change is an operator's change of the replicas.
func (w *world) change(a args) {
	if id, ok := a.kv["add"]; ok {
		p := w.node(id)
		w.config.Version++
		w.config.Members = append(slices.Clone(w.config.Members), Member{Node: NodeID(id), Learner: true})
		w.say("meta: %s is a learner, version %d", id, w.config.Version)
		w.register(p)
		return
	}
	id := NodeID(a.kv["remove"])
	if !w.settled {
		w.say("meta: refuses to remove %s, version %d is not settled", id, w.config.Version)
		return
	}
	w.settled = false
	w.config.Version++
	w.config.Members = slices.DeleteFunc(slices.Clone(w.config.Members), func(m Member) bool { return m.Node == id })
	w.say("meta: removes %s, version %d", id, w.config.Version)
}
