package chunk

import (
	"bytes"
	"testing"
)

func TestBuilder_limits(t *testing.T) {
	entry := AppendSimple(nil, make([]byte, 1020)) // 1 KiB
	full := bytes.Repeat(entry, 1024)
	tiny := bytes.Repeat([]byte{0, 0, 0, 0}, EntriesMax)
	tests := []struct {
		name  string
		in    func(b *Builder)
		bytes int
		count int
		fits  bool
	}{
		{"to the byte", func(b *Builder) { b.AppendRun(full[:1023<<10], 1023, 1023) }, 1 << 10, 1, true},
		{"one byte more", func(b *Builder) { b.AppendRun(full[:1023<<10], 1023, 1023) }, 1<<10 + 1, 1, false},
		{"a run above the target", nil, 1<<20 + 1, 2, false},
		{"one large entry alone", nil, 8 << 20, 1, true},
		{"an entry above every limit", nil, DataLengthMax + 1, 1, false},
		{"one large entry behind another", func(b *Builder) { b.AppendRun(entry, 1, 1) }, 8 << 20, 1, false},
		{"behind a large entry", func(b *Builder) { b.AppendRun(AppendSimple(nil, make([]byte, 2<<20)), 1, 1) }, 4, 1, false},
		{"entries to the last", func(b *Builder) { b.AppendRun(tiny[4:], EntriesMax-1, EntriesMax-1) }, 4, 1, true},
		{"too many entries", func(b *Builder) { b.AppendRun(tiny, EntriesMax, EntriesMax) }, 4, 1, false},
		{"behind a sub-batch", func(b *Builder) { b.AppendRun(AppendSubBatch(nil, CompressionNone, 1, 4, []byte{0, 0, 0, 0}), 1, 1) }, 4, 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b Builder
			b.Reset(nil, nil)
			if tt.in != nil {
				tt.in(&b)
			}
			if got := b.Fits(tt.bytes, tt.count); got != tt.fits {
				t.Fatalf("fits = %t behind %d entries, %d bytes", got, b.Entries(), b.DataLength())
			}
		})
	}
}

func TestBuilder_panicsOnABrokenInvariant(t *testing.T) {
	batch := AppendSubBatch(nil, CompressionNone, 1, 4, []byte{0, 0, 0, 0})
	simple := AppendSimple(nil, nil)
	tests := []struct {
		name string
		f    func(b *Builder)
	}{
		{"no entry", func(b *Builder) { b.AppendRun(nil, 0, 0) }},
		{"fewer bytes than headers", func(b *Builder) { b.AppendRun(simple, 2, 2) }},
		{"fewer records than entries", func(b *Builder) { b.AppendRun(append(simple, simple...), 2, 1) }},
		{"sub-batch behind an entry", func(b *Builder) { b.AppendRun(simple, 1, 1); b.AppendRun(batch, 1, 1) }},
		{"entry behind a sub-batch", func(b *Builder) { b.AppendRun(batch, 1, 1); b.AppendRun(simple, 1, 1) }},
		{"chunk of nothing", func(b *Builder) { m := userMeta(); b.Finish(&m) }},
		{"LSN 0", func(b *Builder) { b.AppendRun(simple, 1, 1); m := userMeta(); m.LSN = 0; b.Finish(&m) }},
		{"trailer above the limit", func(b *Builder) {
			b.AppendRun(simple, 1, 1)
			m := userMeta()
			m.Trailer = make([]byte, TrailerLengthMax+1)
			b.Finish(&m)
		}},
		{"filter below the limit", func(b *Builder) {
			b.AppendRun(simple, 1, 1)
			m := userMeta()
			m.Filter = make([]byte, FilterLengthMin-1)
			b.Finish(&m)
		}},
		{"control chunk with a filter", func(*Builder) {
			m := userMeta()
			m.Filter = make([]byte, FilterLengthMin)
			BuildControl(Delta, &m, nil)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b Builder
			b.Reset(nil, nil)
			defer func() {
				if recover() == nil {
					t.Fatal("no panic")
				}
			}()
			tt.f(&b)
		})
	}
}

// TestBuilder_usesTheCallersBuffers: nothing of an earlier chunk shines
// through, and buffers that are large enough are not replaced.
func TestBuilder_usesTheCallersBuffers(t *testing.T) {
	head, data := bytes.Repeat([]byte{0xee}, 4096), bytes.Repeat([]byte{0xee}, 4096)
	var b Builder
	b.Reset(head, data)
	b.AppendRun(twoMessages(), 2, 2)
	m := userMeta()
	gotHead, gotData, h := b.Finish(&m)
	if &gotHead[0] != &head[0] || &gotData[0] != &data[0] {
		t.Fatal("buffers were replaced")
	}
	if _, err := Verify(testIncarnation, gotHead, gotData); err != nil {
		t.Fatal(err)
	}
	wantHead, wantData, want := build(t, userMeta(), twoMessages(), 2, 2)
	if h != want || !bytes.Equal(gotHead, wantHead) || !bytes.Equal(gotData, wantData) {
		t.Fatal("old bytes shine through")
	}
	control, ch := BuildControl(Delta, &m, head)
	if _, err := Verify(testIncarnation, control, nil); err != nil || ch.Records != 0 || &control[0] != &head[0] {
		t.Fatalf("control chunk: %+v, %v", ch, err)
	}
}

// TestRestamp: a follower's chunk differs from the leader's in synced LSN and
// CRC and in nothing else.
func TestRestamp(t *testing.T) {
	raw := golden(t, "filter-trailer")
	n, _, _ := Peek(raw)
	head := bytes.Clone(raw[:n])
	crc := Restamp(testIncarnation, head, 17)
	h, err := Decode(testIncarnation, head)
	if err != nil || h.SyncedLSN != 17 || h.HeadCRC != crc {
		t.Fatalf("%+v, %v", h, err)
	}
	for i := range head {
		if head[i] != raw[i] && (i < 16 || i >= 24) && (i < 44 || i >= 48) {
			t.Fatalf("byte %d changed", i)
		}
	}
	if Restamp(testIncarnation, head, 43); !bytes.Equal(head, raw[:n]) {
		t.Fatal("stamping back does not restore the head")
	}
}

// TestStrip: client header and filter stay byte for byte; the trailer is gone
// and the chunk says so.
func TestStrip(t *testing.T) {
	raw := golden(t, "filter-trailer")
	n, _, _ := Peek(raw)
	h, _ := Decode(testIncarnation, raw)
	out, _ := Strip(testIncarnation, []byte("kept"), raw[:n], &h)
	head := out[4:]
	got, err := Verify(testIncarnation, head, raw[n:])
	if err != nil {
		t.Fatal(err)
	}
	if got.TrailerLength != 0 || !got.Has(FlagStripped) || got.DigestAfter() != h.DigestAfter() {
		t.Fatalf("%+v", got)
	}
	if !bytes.Equal(ClientHeaderOf(head), ClientHeaderOf(raw[:n])) || !bytes.Equal(got.FilterOf(head), h.FilterOf(raw)) {
		t.Fatal("client header or filter changed")
	}
	for _, name := range []string{"user", "delta"} {
		raw := golden(t, name)
		n, _, _ := Peek(raw)
		h, _ := Decode(testIncarnation, raw)
		if out, same := Strip(testIncarnation, nil, raw[:n], &h); same != h || !bytes.Equal(out, raw[:n]) {
			t.Fatalf("%s: not copied as it is", name)
		}
	}
}
