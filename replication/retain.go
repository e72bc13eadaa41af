package replication

import (
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// retain gives up what retention allows, after a roll, from time to time, when
// settings have changed and when the disk is low. The leader decides; where the
// log starts then is told to the protocol, for the followers, whose logs go
// there when E3 lets them.
func (r *Replica) retain() {
	t := &r.turns
	asked := t.asked
	t.asked = nil
	if t.run == nil || t.failed != nil {
		t.retainWant, t.startWant = false, 0
		for _, q := range asked {
			q.answer(nil, ErrUnavailable)
		}
		return
	}
	for i := range asked {
		asked[i].look(r)
	}
	want := t.retainWant && t.epoch != 0 // a follower goes where its leader is
	if t.retainWant {
		t.run.log.RetryRemovals()
	}
	t.retainWant = false
	if want || t.startWant != 0 {
		r.giveUp()
	}
	for i := range asked {
		asked[i].settle(r)
	}
}

// giveUp moves the log start and tells the protocol.
func (r *Replica) giveUp() {
	moved, err := r.moveStart()
	if err != nil {
		r.counters.fail(err)
	}
	if moved {
		r.counters.retained.Add(1)
		start := logStart(r.turns.run.log)
		r.step(protocol.Input{Kind: protocol.InLogStart, Start: &start})
	}
}

// moveStart moves the log start to where the protocol or retention wants it, as
// far as E3 allows.
func (r *Replica) moveStart() (moved bool, err error) {
	t := &r.turns
	log, s := t.run.log, &r.stream.Settings
	before := log.LogStart().LSN
	if t.startWant != 0 {
		err = log.RaiseLogStart(t.startWant)
		t.startWant = 0 // the protocol asks again when a snapshot is committed
	}
	if err == nil && s.retains() && t.epoch != 0 {
		now, _ := r.node.ageNow(t.now)
		_, err = log.Retention(s.policy(), now)
	}
	return log.LogStart().LSN != before, err
}

func (s *Settings) policy() segstore.Policy {
	return segstore.Policy{BytesMax: s.RetainBytes, AgeMax: s.RetainAge.Milliseconds()}
}

// RetentionQuery asks what retention makes of a stream.
type RetentionQuery struct {
	// Bytes and Age, if not nil, are asked about in place of the stream's own
	// bounds; 0 is no bound.
	Bytes *int64
	Age   *time.Duration
	// Run has retention look now. It goes by the stream's own bounds.
	Run bool
}

// RetentionReport is the answer.
type RetentionReport struct {
	Leads bool // this replica leads: retention is its own
	Bytes int64
	Age   time.Duration
	// Units as they were before a run; First is the log's first offset after it.
	Units []segstore.Unit
	First chunk.Offset
	// Now is the time by which ages are judged. Doubted: the machine's clock has
	// jumped, and is not believed yet.
	Now     time.Time
	Doubted bool
	// Next is when retention will look by itself at the latest.
	Next time.Time
}

// Retention answers, from a turn, what retention makes of the log.
//
// Errors: ErrNotLeader for a Run, ErrUnavailable, ErrClosed.
func (r *Replica) Retention(q RetentionQuery, answer func(*RetentionReport, error)) {
	e := event{kind: eventOperate, operate: func(err error) {
		t := &r.turns
		if err != nil {
			answer(nil, err)
			return
		}
		t.asked = append(t.asked, retentionAsk{query: q, answer: answer})
		if q.Run && t.epoch != 0 {
			t.retainWant, t.ageWant = true, true
		}
	}}
	if !r.post(e) {
		answer(nil, ErrClosed)
	}
}

// retentionAsk is a query in its turn.
type retentionAsk struct {
	query  RetentionQuery
	answer func(*RetentionReport, error)
	report RetentionReport
}

// look notes how things are before this turn gives up anything.
func (q *retentionAsk) look(r *Replica) {
	t, s := &r.turns, r.stream.Settings
	if q.query.Bytes != nil {
		s.RetainBytes = *q.query.Bytes
	}
	if q.query.Age != nil {
		s.RetainAge = *q.query.Age
	}
	now, doubted := r.node.ageNow(t.now)
	q.report = RetentionReport{
		Leads: t.epoch != 0, Bytes: s.RetainBytes, Age: s.RetainAge, Units: t.run.log.Units(s.policy(), now),
		Now: time.UnixMilli(int64(now)), Doubted: doubted, Next: r.node.nextSweep(),
	}
}

func (q *retentionAsk) settle(r *Replica) {
	if q.query.Run && r.turns.epoch == 0 {
		q.answer(nil, ErrNotLeader)
		return
	}
	q.report.First = r.turns.run.log.First()
	q.answer(&q.report, nil)
}
