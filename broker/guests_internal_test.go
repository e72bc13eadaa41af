package broker

import (
	"testing"
	"time"

	"github.com/millrace/millrace/replication"
)

// TestGuestQueue_givesUpInTime: what the other node has given up makes room, as
// its credit has; an alarm that lasts does not fill the memory.
func TestGuestQueue_givesUpInTime(t *testing.T) {
	held := func() bool { return true }
	start := time.Now()
	var q guestQueue
	var answers []Status
	p := new(localPublisher)
	for second := range 600 {
		now := start.Add(time.Duration(second) * time.Second)
		q.add(guestBatch{
			publisher: p, batch: new(replication.Batch), until: now.Add(publishPatience),
			reply: func(s Status, _ []byte) { answers = append(answers, s) },
		}, now, held)
	}
	if n, most := len(q.batches), int(publishPatience/time.Second)+1; n != most {
		t.Errorf("%d batches wait, want %d", n, most)
	}
	if len(answers)+len(q.batches) != 600 {
		t.Errorf("%d answers to 600 batches of which %d wait", len(answers), len(q.batches))
	}
	for _, s := range answers {
		if s != statusPublisher {
			t.Fatalf("a batch that was given up is answered %d", s)
		}
	}
}

// takingReplica takes every batch, and never answers.
type takingReplica struct {
	Replica
	taken [][]uint64
}

func (r *takingReplica) Publish(b *replication.Batch) { r.taken = append(r.taken, b.IDs) }

// TestGuestQueue_givesUpWhatIsBehind: where a batch was given up and a later one of
// the publisher stored, the first would count as a duplicate when it is sent again.
func TestGuestQueue_givesUpWhatIsBehind(t *testing.T) {
	alarm := true
	held := func() bool { return alarm }
	start := time.Now()
	replica := new(takingReplica)
	p, other := &localPublisher{replica: replica}, &localPublisher{replica: replica}
	var q guestQueue
	answers := map[uint64]Status{}
	add := func(p *localPublisher, id uint64, after time.Duration) {
		now := start.Add(after)
		q.add(guestBatch{
			publisher: p, batch: &replication.Batch{IDs: []uint64{id}}, until: now.Add(publishPatience),
			reply: func(s Status, _ []byte) { answers[id] = s },
		}, now, held)
	}
	add(p, 1, 0)
	add(p, 2, publishPatience/2)
	add(other, 3, publishPatience/2)
	alarm = false
	q.publish(start.Add(publishPatience+time.Second), held)
	add(p, 4, publishPatience+2*time.Second)
	if len(replica.taken) != 1 || replica.taken[0][0] != 3 {
		t.Errorf("taken %v, want 3 alone", replica.taken)
	}
	for _, id := range []uint64{1, 2, 4} {
		if answers[id] != statusPublisher {
			t.Errorf("batch %d is answered %d", id, answers[id])
		}
	}
}
