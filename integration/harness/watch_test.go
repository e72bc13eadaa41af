package harness

import (
	"hash/maphash"
	"strings"
	"testing"
)

func TestWatcher_seesWhatVanishesAndChanges(t *testing.T) {
	seed := maphash.MakeSeed()
	watch := func(bodies ...string) *Watcher {
		w := &Watcher{seed: seed}
		for i, b := range bodies {
			w.Record(uint64(i), []byte(b))
		}
		return w
	}
	again := watch("a", "b")
	again.Record(1, []byte("c"))
	gap := watch("a")
	gap.Record(2, []byte("c"))
	for _, row := range []struct {
		what, says string
		w          *Watcher
	}{
		{"the same", "", watch("a", "b")},
		{"not all yet", "", watch("a")},
		{"vanished", "saw 3 records, and 2 are there", watch("a", "b", "c")},
		{"changed", "saw something else at offset 1", watch("a", "x")},
		{"changed under its eyes", "offset 1 holds something else than before", again},
		{"skipped", "offset 2 where 1 is due", gap},
	} {
		err := row.w.Against(watch("a", "b"))
		switch {
		case row.says == "" && err != nil:
			t.Errorf("%s: %v", row.what, err)
		case row.says != "" && (err == nil || !strings.Contains(err.Error(), row.says)):
			t.Errorf("%s: %v, want it to say %q", row.what, err, row.says)
		}
	}
}
