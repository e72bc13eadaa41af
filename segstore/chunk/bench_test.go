package chunk

import (
	"bytes"
	"testing"
)

// BenchmarkBuild makes chunks of 100 runs of 100 messages of 100 B: what a turn
// does for 100 Publish frames. Nothing may be allocated.
func BenchmarkBuild(b *testing.B) {
	run := bytes.Repeat(AppendSimple(nil, make([]byte, 100)), 100)
	head, data := make([]byte, 0, 1024), make([]byte, 0, 2<<20)
	m := userMeta()
	m.Trailer = make([]byte, 12)
	var builder Builder
	b.SetBytes(int64(100 * len(run)))
	b.ReportAllocs()
	for b.Loop() {
		builder.Reset(head, data)
		for range 100 {
			if builder.Fits(len(run), 100) {
				builder.AppendRun(run, 100, 100)
			}
		}
		_, _, h := builder.Finish(&m)
		m.DigestBefore = h.DigestAfter()
	}
}

func BenchmarkVerify(b *testing.B) {
	run := bytes.Repeat(AppendSimple(nil, make([]byte, 100)), 10_000)
	head, data, _ := build(b, userMeta(), run, 10_000, 10_000)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		h, err := Verify(testIncarnation, head, data)
		if err != nil || h.ValidateEntries(data) != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFilter(b *testing.B) {
	var f Filter
	m := NewMatcher(values(0, 3), true)
	vs := values(0, 10)
	b.ReportAllocs()
	for b.Loop() {
		f.Reset(16)
		for _, v := range vs {
			f.Add(v)
		}
		if !m.Matches(FilterFNV, f.Bytes()) {
			b.Fatal("no match")
		}
	}
}

// TestBuild_allocatesNothing holds the hot path to its promise.
func TestBuild_allocatesNothing(t *testing.T) {
	run := bytes.Repeat(AppendSimple(nil, make([]byte, 100)), 100)
	head, data := make([]byte, 0, 1024), make([]byte, 0, 1<<20)
	filter := make([]byte, 16)
	m := userMeta()
	m.Filter = filter
	var b Builder
	if n := testing.AllocsPerRun(50, func() {
		b.Reset(head, data)
		for range 50 {
			b.AppendRun(run, 100, 100)
		}
		gotHead, gotData, h := b.Finish(&m)
		Restamp(testIncarnation, gotHead, 1)
		if _, err := Verify(testIncarnation, gotHead, gotData); err != nil || h.DigestAfter() == 0 {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations a chunk", n)
	}
}
