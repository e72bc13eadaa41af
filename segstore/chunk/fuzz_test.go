package chunk

import (
	"bytes"
	"testing"
)

// FuzzVerify: any bytes give a verdict without a panic, and what is accepted is
// rebuilt byte for byte from its fields.
func FuzzVerify(f *testing.F) {
	for _, g := range goldens {
		f.Add(golden(f, g.name), false)
		f.Add(golden(f, g.name), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, restamp bool) {
		n, d, err := Peek(raw)
		if err != nil {
			return
		}
		if restamp && len(raw) >= n {
			raw = bytes.Clone(raw)
			stamp(raw[:n])
		}
		h, err := Decode(testIncarnation, raw)
		if err != nil {
			return
		}
		if h.HeadLength() != n || int(h.DataLength) != d {
			t.Fatalf("Peek says %d + %d, the header %d + %d", n, d, h.HeadLength(), h.DataLength)
		}
		if len(raw) < n+d {
			return
		}
		if h.VerifyData(raw[n:n+d]) != nil || h.ValidateEntries(raw[n:n+d]) != nil {
			return
		}
		if h.FilterAlgorithm > FilterFNV || h.Has(FlagStripped) || h.Entries > 1 && h.DataLength > DataLengthTarget {
			return // no Builder here makes these
		}
		if h.Type == User && raw[n]&subBatchBit != 0 && h.Entries > 1 {
			return
		}
		if again := rebuild(&h, raw[:n], raw[n:n+d]); !bytes.Equal(again, raw[:n+d]) {
			t.Fatalf("rebuilt\n%x\nfrom\n%x", again, raw[:n+d])
		}
	})
}

// FuzzEntries: a walk ends, and what it calls valid is covered to the last byte.
func FuzzEntries(f *testing.F) {
	f.Add(twoMessages(), uint16(2), uint32(2))
	f.Add(AppendSubBatch(nil, CompressionZstd, 5, 50, []byte("packed")), uint16(1), uint32(5))
	f.Add([]byte{0x80}, uint16(1), uint32(1))
	f.Fuzz(func(t *testing.T, data []byte, entries uint16, records uint32) {
		h := Header{Type: User, Entries: entries, Records: records}
		it := h.EntriesIn(data)
		sum, length, n := uint64(0), 0, 0
		for it.Next() {
			e := it.Entry()
			if uint64(e.Offset) != sum {
				t.Fatalf("offset %d after %d records", e.Offset, sum)
			}
			sum += uint64(e.Records)
			length += len(e.Raw)
			n++
		}
		if it.Err() == nil && (sum != uint64(records) || length != len(data) || n != int(entries)) {
			t.Fatalf("accepted %d records in %d entries, %d bytes", sum, n, length)
		}
	})
}
