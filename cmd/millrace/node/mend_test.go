package node

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore/chunk"
)

// TestMend_compare holds boundaries against each other; logs start, roll and are
// merged at other places.
func TestMend_compare(t *testing.T) {
	all := []replication.Boundary{{LSN: 1}, {LSN: 10, Offset: 90, Digest: 7}, {LSN: 20, Offset: 190, Digest: 8}, {LSN: 30, Offset: 290, Digest: 9}}
	other := append([]replication.Boundary(nil), all...)
	other[2].Digest = 88
	for _, row := range []struct {
		name             string
		ours, theirs     []replication.Boundary
		compared, differ int
	}{
		{"the same", all, all, 4, 0},
		{"merged here", []replication.Boundary{all[0], all[3]}, all, 2, 0},
		{"retired there", all, all[2:], 2, 0},
		{"nothing in common", all[:1], all[1:], 0, 0},
		{"other messages", all, other, 4, 1},
		{"nothing", nil, all, 0, 0},
	} {
		compared, differ := compareBoundaries(row.ours, row.theirs)
		if compared != row.compared || len(differ) != row.differ || row.differ == 1 && differ[0] != all[2] {
			t.Errorf("%s: %d compared, %v differ", row.name, compared, differ)
		}
		back, err := decodeBoundaries(encodeBoundaries(row.theirs))
		if err != nil || len(back) != len(row.theirs) {
			t.Errorf("%s: came back as %v, %v", row.name, back, err)
		}
	}
	for _, bad := range [][]byte{make([]byte, 23), encodeBoundaries([]replication.Boundary{all[1], all[0]})} {
		if _, err := decodeBoundaries(bad); !errors.Is(err, errAnswer) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}

// TestMend_foundMeanwhile: damage that is found while an attempt is under way is
// mended too, behind it, whatever becomes of the attempt.
func TestMend_foundMeanwhile(t *testing.T) {
	m := newMender(nil)
	now := time.Now()
	m.found(1)
	due, _ := m.due(now)
	if len(due) != 1 {
		t.Fatalf("%d streams are due, want 1", len(due))
	}
	m.found(1)
	if again, _ := m.due(now); len(again) != 0 {
		t.Error("a stream is tried twice at a time")
	}
	m.over(1, due[1], true)
	if due, _ = m.due(now); len(due) != 1 {
		t.Error("what was found meanwhile is forgotten")
	}
	m.over(1, due[1], false)
	if due, rest := m.due(time.Now()); len(due) != 0 || rest > mendFirst || rest < mendFirst/2 {
		t.Errorf("behind an attempt that failed %d streams are due, the next in %v", len(due), rest)
	}
	due, _ = m.due(now.Add(time.Hour))
	m.over(1, due[1], true)
	if due, rest := m.due(now.Add(2 * time.Hour)); len(due) != 0 || rest != mendMost {
		t.Errorf("after the mending %d streams are due, the next in %v", len(due), rest)
	}
}

// TestMend_besideEachOther: streams whose peers do not answer keep no other one
// waiting, until so many wait that it would be too much at a time.
func TestMend_besideEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMender(nil)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		tried := map[chunk.Incarnation]int{}
		now, most := 0, 0
		m.try = func(ctx context.Context, stream chunk.Incarnation) bool {
			mu.Lock()
			tried[stream]++
			now++
			most = max(most, now)
			mu.Unlock()
			if stream < mendsMax {
				<-ctx.Done() // a peer that does not answer
			}
			time.Sleep(time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			return true
		}
		m.work.Go(func() { m.mendAll(ctx) })
		for stream := range chunk.Incarnation(20) {
			m.found(stream + 1)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		if len(tried) != 20 || most > mendsMax || now != mendsMax-1 {
			t.Errorf("%d of 20 streams were tried, %d at most at a time, %d are", len(tried), most, now)
		}
		mu.Unlock()
		cancel()
		m.work.Wait()
	})
}
