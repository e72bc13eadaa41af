package tracking

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

func unhex(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		b, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatalf("%s: %q: %v", path, line, err)
		}
		out = append(out, b...)
	}
	return out
}

// goldenChunk reads one of the chunk room's golden files.
func goldenChunk(t testing.TB, name string) record {
	t.Helper()
	raw := unhex(t, filepath.Join("..", "segstore", "chunk", "testdata", name+".hex"))
	h, err := chunk.Decode(0x0123456789abcdef, raw)
	if err != nil {
		t.Fatal(err)
	}
	return record{h, h.TrailerOf(raw)}
}

// goldenLog is a state before LSN 42, in a segment that began at LSN 1.
func goldenLog(t testing.TB) *State {
	t.Helper()
	s := New(Caps{}, 1)
	for lsn := chunk.LSN(1); lsn < 42; lsn++ {
		if err := s.Apply(&chunk.Header{LSN: lsn, Epoch: 3}, nil); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestGoldens folds the golden chunks one after the other, and encodes each
// payload again from what it is to say.
func TestGoldens(t *testing.T) {
	s := goldenLog(t)
	steps := []struct {
		name   string
		encode func() []byte
		want   string
	}{
		{"user", func() []byte { return s.EncodeTrailer(nil, false, nil, nil) }, ""},
		{"sub-batch", func() []byte { return nil }, ""},
		{"filter-trailer", func() []byte {
			return s.EncodeTrailer(nil, false,
				[]SequenceUpdate{{Ref: "p", Sequence: 3}, {Ref: "orders-import-7", Sequence: 1001}},
				[]Update{{Ref: "app", Offset: 900, Epoch: 3, Version: 5}})
		}, "app=900 v3.5 | orders-import-7=1001@44 p=3@44"},
		{"trailer-short", func() []byte {
			return s.EncodeTrailer(nil, false, []SequenceUpdate{{Ref: "orders-import-7", Sequence: 1003}}, nil)
		}, "app=900 v3.5 | p=3@44 orders-import-7=1003@45"},
		{"delta", func() []byte {
			return EncodeDelta(nil, []Update{
				{Ref: "old", Forget: true, Epoch: 3, Version: 8},
				{Ref: "billing", Offset: 998, Epoch: 3, Version: 7},
				{Ref: "app", Offset: 1001, Epoch: 3, Version: 6},
			})
		}, "app=1001 v3.6 billing=998 v3.7 | p=3@44 orders-import-7=1003@45"},
		{"barrier", func() []byte {
			return EncodeBarrier(nil, []Update{{Ref: "app", Offset: 1005, Epoch: 3, Version: 9}})
		}, "billing=998 v3.7 app=1005 v4.0 | p=3@44 orders-import-7=1003@45"},
		{"snapshot-first", nil, "billing=998 v3.7 app=1005 v4.0 | p=3@44 orders-import-7=1003@45"},
		{"snapshot-last", nil, "billing=998 v3.7 app=1005 v4.0 | p=3@44 orders-import-7=1003@45"},
	}
	for _, step := range steps {
		r := goldenChunk(t, step.name)
		if step.encode != nil {
			if got := step.encode(); string(got) != string(r.payload) {
				t.Fatalf("%s: encoded\n%x, the file has\n%x", step.name, got, r.payload)
			}
		}
		if err := s.Apply(&r.h, r.payload); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := show(s); step.want != "" && got != step.want {
			t.Fatalf("after %s:\n%s\nwant\n%s", step.name, got, step.want)
		}
	}
	if !s.Known() || s.Assembling() {
		t.Fatal("the snapshot's last part does not complete it")
	}
	if v, _ := s.Offset([]byte("billing")); v.Time != 1700000060000-59100 {
		t.Fatalf("age: time %d", v.Time)
	}
}

// TestGolden_snapshotParts encodes the two golden parts from the state they
// were made of.
func TestGolden_snapshotParts(t *testing.T) {
	s := goldenLog(t)
	for _, name := range []string{"user", "sub-batch", "filter-trailer", "trailer-short", "delta", "barrier"} {
		r := goldenChunk(t, name)
		if err := s.Apply(&r.h, r.payload); err != nil {
			t.Fatal(err)
		}
	}
	p := NewPending(Caps{})
	p.Lead(4)
	p.Store(s, []byte("x"), 1, 0)
	p.Store(s, []byte("y"), 1, 0)
	p.Take(nil, 1000)
	s.setOffset([]byte("gone"), 4, 3, stored{forgotten: true})
	parts := s.EncodeSnapshot(SnapshotOptions{Now: 1700000060000, Epoch: 4, PartBytesMax: 49}, nil)
	if len(parts) != 2 {
		t.Fatalf("%d parts", len(parts))
	}
	for i, name := range []string{"snapshot-first", "snapshot-last"} {
		if r := goldenChunk(t, name); string(parts[i]) != string(r.payload) {
			t.Errorf("%s: encoded\n%x, the file has\n%x", name, parts[i], r.payload)
		}
	}
}

func show(s *State) string {
	var out []string
	for ref, v := range s.Offsets() {
		out = append(out, fmt.Sprintf("%s=%d v%d.%d", ref, v.Offset, v.Epoch, v.Version))
	}
	out = append(out, "|")
	for ref, v := range s.Publishers() {
		out = append(out, fmt.Sprintf("%s=%d@%d", ref, v.Last, v.LSN))
	}
	return strings.Join(out, " ")
}

// TestGolden_checkpoint ties the checkpoint's bytes to a file.
func TestGolden_checkpoint(t *testing.T) {
	s := goldenLog(t)
	for _, name := range []string{"user", "sub-batch", "filter-trailer", "trailer-short", "delta"} {
		r := goldenChunk(t, name)
		if err := s.Apply(&r.h, r.payload); err != nil {
			t.Fatal(err)
		}
	}
	want := unhex(t, filepath.Join("testdata", "checkpoint.hex"))
	got, ok := s.AppendCheckpoint(nil)
	if !ok || string(got) != string(want) {
		t.Fatalf("encoded\n%x, the file has\n%x", got, want)
	}
	back, err := DecodeCheckpoint(Caps{}, want)
	if err != nil || show(back) != show(s) || back.Last() != s.Last() {
		t.Fatalf("%v, %v", back, err)
	}
}

// TestGolden_forget ties the bytes of deletions to a file: of publishers, one of
// them with a short id, and of stored offsets between stores.
func TestGolden_forget(t *testing.T) {
	l := newTestLog(t, Caps{})
	l.store("a", 1)
	l.store("b", 2)
	l.user(l.take(), SequenceUpdate{Ref: "p", Sequence: 3}, SequenceUpdate{Ref: "q", Sequence: 4}, SequenceUpdate{Ref: "orders-import-7", Sequence: 5})
	l.pending.Forget(l.state, []byte("a"), l.now)
	l.store("c", 1001)
	l.pending.Forget(l.state, []byte("b"), l.now)
	got := l.state.EncodeTrailer(nil, false,
		[]SequenceUpdate{{Ref: "p", Forget: true}, {Ref: "orders-import-7", Forget: true}}, l.take())
	want := unhex(t, filepath.Join("testdata", "forget.hex"))
	if string(got) != string(want) {
		t.Fatalf("encoded\n%x, the file has\n%x", got, want)
	}
	l.write(chunk.Delta, 0, want)
	if got, want := show(l.state), "c=1001 v1.4 | q=4@2"; got != want {
		t.Fatalf("after it:\n%s\nwant\n%s", got, want)
	}
	l.snapshot(0, 0, 0)
	if got, want := show(l.state), "c=1001 v1.4 | q=4@2"; got != want {
		t.Fatalf("after a snapshot:\n%s\nwant\n%s", got, want)
	}
}
