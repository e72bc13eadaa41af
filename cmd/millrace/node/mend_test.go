package node

import (
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace/replication"
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
// mended too, whatever becomes of the attempt.
func TestMend_foundMeanwhile(t *testing.T) {
	m := newMender(nil)
	now := time.Now()
	m.found(1)
	due, _ := m.due(now)
	if len(due) != 1 {
		t.Fatalf("%d streams are due, want 1", len(due))
	}
	if again, rest := m.due(now); len(again) != 0 || rest != mendFirst {
		t.Errorf("%d streams are due at once again, the next in %v", len(again), rest)
	}
	m.found(1)
	m.over(1, due[1])
	if due, _ = m.due(now); len(due) != 1 {
		t.Error("what was found meanwhile is forgotten")
	}
	m.over(1, due[1])
	if due, rest := m.due(now.Add(time.Hour)); len(due) != 0 || rest != mendMost {
		t.Errorf("after the mending %d streams are due, the next in %v", len(due), rest)
	}
}
