package protocol

import "github.com/millrace/millrace/segstore/chunk"

// fenced promises an epoch; the report follows once the promise is synced.
func (r *Replica) fenced(in *Input, out []Output) []Output {
	e := in.Epoch
	switch {
	case e < r.journal.Promise:
		return append(out, Output{Kind: OutRefuse, ID: in.ID, Reason: ReasonPromised, Epoch: r.journal.Promise})
	case r.role == Leading && r.leader.epoch == e:
		return append(out, Output{Kind: OutRefuse, ID: in.ID, Reason: ReasonLeads, Epoch: e})
	}
	if r.fence.open && r.fence.id != in.ID {
		out = append(out, Output{Kind: OutRefuse, ID: r.fence.id, Reason: ReasonPromised, Epoch: e})
	}
	r.fence = fence{true, e, in.ID}
	if e > r.journal.Promise {
		out = r.promise(e, r.stepDown(out))
		out = r.follower.leave(ReasonPromised, out)
	}
	return r.report(out)
}

// report answers the fence when nothing is in its way.
func (r *Replica) report(out []Output) []Output {
	if !r.fence.open || r.busy || r.synced.Promise < r.fence.epoch {
		return out
	}
	r.fence.open = false
	r.reported = Report{
		Stream: r.stream, Epoch: r.fence.epoch, Node: r.self, Run: r.run, Registration: r.journal.Registration,
		Tail: r.tailOf(r.reach()), Commit: r.commit, LogStart: r.start.LSN,
		Aside: r.journal.Aside, Damaged: r.journal.Mark != chunk.Tail{}, Mark: r.journal.Mark,
	}
	rep := r.reported
	return append(out, Output{Kind: OutReport, ID: r.fence.id, Epoch: rep.Epoch, Report: &rep})
}

// assigned starts to lead if this replica still is what it reported (A5).
func (r *Replica) assigned(now Tick, in *Input, out []Output) []Output {
	a := in.Assignment
	if why := r.startCheck(a); why != 0 {
		return append(out, Output{Kind: OutRefuse, ID: in.ID, Reason: why, Epoch: r.journal.Promise})
	}
	if f := &r.follower; f.epoch == a.Epoch && f.leader != "" {
		return r.stop(ReasonTwoLeaders, out)
	}
	if !in.Known {
		return r.stop(ReasonTrackingUnknown, out)
	}
	if r.journal.Aside { // a sole voter, taken back
		m, _ := a.Replicas.Find(r.self)
		r.journal.Aside, r.journal.Registration = false, m.Registration
		out = r.persist(out)
	}
	r.reported = Report{}
	r.config = a.Replicas
	r.role = Leading
	var left Inheritance
	if in.Inheritance != nil {
		left = *in.Inheritance
	}
	return r.roleStep(now, in, r.leader.begin(now, a, left, out))
}

func (r *Replica) startCheck(a *Assignment) Reason {
	switch {
	case a.Stream != r.stream:
		return ReasonStream
	case a.Node != r.self:
		return ReasonOtherRun
	case a.Epoch < r.journal.Promise:
		return ReasonPromised
	case r.role == Leading:
		return ReasonLeads
	case r.busy:
		return ReasonBusy
	case r.table.Last() >= a.Epoch: // it has led this epoch before
		if r.rules.noResume {
			return ReasonNoReport
		}
		return 0
	case !r.rules.startCheck:
		return 0
	case r.reported.Epoch != a.Epoch:
		return ReasonNoReport
	case a.Run != r.run:
		return ReasonOtherRun
	case a.Replicas.Version < r.config.Version:
		return ReasonStaleConfig
	case r.journal.Mark != chunk.Tail{}, r.journal.Aside && a.Replicas.Voters() != 1:
		return ReasonAside
	case r.tailOf(r.durable).Compare(r.reported.Tail) < 0:
		return ReasonLostTail
	}
	return 0
}

// configured takes the newest configuration. What it says of this replica's
// own entry clears the local mark, but only of that very entry (D2).
func (r *Replica) configured(c *Configuration, out []Output) []Output {
	if c.Version < r.config.Version {
		return out
	}
	r.config = *c
	m, ok := c.Find(r.self)
	switch {
	case !ok:
	case r.journal.Registration == Unregistered:
		out = r.askRegistration(out)
	case r.journal.Aside && m.Counts() && m.Registration == r.journal.Registration:
		r.journal.Aside, r.journal.Mark = false, chunk.Tail{}
		out = r.persist(out)
	}
	return out
}

func (r *Replica) askRegistration(out []Output) []Output {
	return append(out, Output{Kind: OutPropose, Proposal: Proposal{
		Kind: ProposeRegister, Node: r.self, Epoch: r.journal.Promise, Config: r.config.Version}})
}

// registered: the metadata has entered this replica anew. What it promised
// before may be forgotten, so it promises the epoch that the metadata is at,
// before anything else (D1).
func (r *Replica) registered(in *Input, out []Output) []Output {
	r.journal.Registration, r.journal.Aside = in.Registration, true
	if in.Epoch > r.journal.Promise && r.rules.joinPromise {
		r.journal.Promise = in.Epoch
		out = r.follower.leave(ReasonPromised, r.stepDown(out))
	}
	return r.persist(out)
}

// damaged sets the replica aside and has it entered anew.
func (r *Replica) damaged(mark chunk.Tail, out []Output) []Output {
	out = r.follower.leave(ReasonAside, r.stepDown(out))
	r.setAside(mark)
	return r.askRegistration(r.persist(out))
}

func (r *Replica) setAside(mark chunk.Tail) {
	r.journal.Aside, r.journal.Registration = true, Unregistered
	if mark.Compare(r.journal.Mark) > 0 {
		r.journal.Mark = mark
	}
	r.reported = Report{}
}
