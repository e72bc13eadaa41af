package harness

import (
	"strings"
	"testing"
)

// TestLedger_findsEachFault builds a stream that is right, then one for each
// way to be wrong. A ledger that finds nothing would pass every kill test.
func TestLedger_findsEachFault(t *testing.T) {
	message := func(counter uint64) []byte { return AppendMessage(nil, 7, counter, 40) }
	one, two, three, four := message(1), message(2), message(3), message(4)
	forged := append([]byte(nil), one...)
	forged[20] ^= 1
	rows := []struct {
		name    string
		offsets []uint64
		bodies  [][]byte
		says    string // "" is a good stream
	}{
		{"all there", []uint64{0, 1, 2}, [][]byte{one, two, three}, ""},
		{"not confirmed and not there", []uint64{0, 1}, [][]byte{one, two}, ""},
		{"confirmed and gone", []uint64{0, 1}, [][]byte{one, three}, "K1: 1 confirmed messages of producer 7 are gone, the first is 2"},
		{"twice", []uint64{0, 1, 2}, [][]byte{one, two, two}, "K1: message 2 of producer 7 stands twice"},
		{"a hole in the offsets", []uint64{0, 2}, [][]byte{one, two}, "K2: offset 2 where 1 is due"},
		{"out of order", []uint64{0, 1, 2}, [][]byte{one, three, two}, "order: message 2"},
		{"never sent", []uint64{0, 1, 2}, [][]byte{one, two, four}, "K6: offset 2 holds message 4 of producer 7"},
		{"of an unknown producer", []uint64{0, 1, 2}, [][]byte{one, two, AppendMessage(nil, 8, 1, 40)}, "K6: offset 2"},
		{"damaged bytes", []uint64{0, 1, 2}, [][]byte{one, two, forged}, "K6: offset 2: not a message"},
	}
	for _, row := range rows {
		l := NewLedger()
		for counter := uint64(1); counter <= 3; counter++ {
			l.Sent(7, counter)
		}
		l.Confirmed(7, 1)
		l.Confirmed(7, 2)
		r := l.Read()
		for i, body := range row.bodies {
			r.Record(row.offsets[i], body)
		}
		err := r.End()
		if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: the ledger says %v, want %q", row.name, err, row.says)
		}
	}
}

func TestLedger_readingsMustAgree(t *testing.T) {
	rows := []struct {
		name   string
		bodies func(one, two []byte) [][]byte
		says   string
	}{
		{"the same", func(one, two []byte) [][]byte { return [][]byte{one, two} }, ""},
		{"grown", func(one, two []byte) [][]byte { return [][]byte{one, two, AppendMessage(nil, 1, 3, 30)} }, ""},
		{"other bytes", func(one, _ []byte) [][]byte { return [][]byte{one, AppendMessage(nil, 1, 2, 30)} }, "K3: offset 1"},
		{"shorter", func(one, _ []byte) [][]byte { return [][]byte{one} }, "K4: the stream ended at 2 and now ends at 1"},
	}
	for _, row := range rows {
		l := NewLedger()
		l.Sent(1, 3)
		one, two := AppendMessage(nil, 1, 1, 30), AppendMessage(nil, 1, 2, 30)
		first := l.Read()
		first.Record(0, one)
		first.Record(1, two)
		if err := first.End(); err != nil {
			t.Fatal(err)
		}
		second := l.Read()
		for i, body := range row.bodies(one, two) {
			second.Record(uint64(i), body)
		}
		err := second.End()
		if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v, want %q", row.name, err, row.says)
		}
	}
}

func TestLedger_boundsNeverStepBack(t *testing.T) {
	l := NewLedger()
	for _, row := range []struct {
		first, next uint64
		ok          bool
	}{{0, 10, true}, {5, 10, true}, {5, 9, false}, {4, 12, false}, {5, 12, true}} {
		if err := l.Bounds(row.first, row.next); (err == nil) != row.ok {
			t.Errorf("first %d, next %d: %v", row.first, row.next, err)
		}
	}
}
