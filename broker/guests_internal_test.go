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
	for second := range 600 {
		now := start.Add(time.Duration(second) * time.Second)
		q.add(guestBatch{
			batch: new(replication.Batch), until: now.Add(publishPatience),
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
		if s != statusUnavailable {
			t.Fatalf("a batch that was given up is answered %d", s)
		}
	}
}
