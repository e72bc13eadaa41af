package chunk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"testing"
)

func TestEntries_mismatch(t *testing.T) {
	batch := AppendSubBatch(nil, CompressionGzip, 3, 100, []byte("packed"))
	tests := []struct {
		name    string
		data    []byte
		entries uint16
		records uint32
		ok      bool
	}{
		{"two simple", twoMessages(), 2, 2, true},
		{"empty messages", make([]byte, 12), 3, 3, true},
		{"sub-batch", batch, 1, 3, true},
		{"sub-batch behind a simple", append(twoMessages(), batch...), 3, 5, true},
		{"entry too many", twoMessages(), 1, 1, false},
		{"entry missing", twoMessages(), 3, 3, false},
		{"records too many", twoMessages(), 2, 3, false},
		{"records too few", batch, 1, 2, false},
		{"body cut", twoMessages()[:20], 2, 2, false},
		{"header cut", twoMessages()[:13], 2, 2, false},
		{"bytes left over", append(twoMessages(), 0), 2, 2, false},
		{"sub-batch's header cut", batch[:10], 1, 3, false},
		{"sub-batch's body cut", batch[:len(batch)-1], 1, 3, false},
		{"sub-batch of no records", AppendSubBatch(nil, CompressionNone, 0, 0, nil), 1, 1, false},
		{"reserved bits in a sub-batch", append([]byte{batch[0] | 1}, batch[1:]...), 1, 3, false},
		{"length near 2^31", []byte{0x7f, 0xff, 0xff, 0xff, 0}, 1, 1, false},
		{"sub-batch's length near 2^32", []byte{0x80, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0}, 1, 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := Header{Type: User, Entries: tt.entries, Records: tt.records}
			err := h.ValidateEntries(tt.data)
			if tt.ok && err != nil || !tt.ok && !errors.Is(err, ErrEntries) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// TestEntries_random: what goes in comes out, with dense offsets.
func TestEntries_random(t *testing.T) {
	for seed := range int64(50) {
		r := rand.New(rand.NewSource(seed))
		var data []byte
		var want []string
		h := Header{Type: User, BaseOffset: Offset(r.Uint64() >> 1)}
		for range 1 + r.Intn(40) {
			body := make([]byte, r.Intn(50))
			r.Read(body)
			records := uint32(1)
			if r.Intn(3) == 0 {
				records = 1 + uint32(r.Intn(1000))
				c := Compression(r.Intn(5))
				unpacked := r.Uint32()
				data = AppendSubBatch(data, c, uint16(records), unpacked, body)
				want = append(want, fmt.Sprint(h.BaseOffset+Offset(h.Records), records, c, unpacked, body))
			} else {
				data = AppendSimple(data, body)
				want = append(want, fmt.Sprint(h.BaseOffset+Offset(h.Records), body))
			}
			h.Entries++
			h.Records += records
		}
		var got []string
		var raw []byte
		it := h.EntriesIn(data)
		for it.Next() {
			e := it.Entry()
			raw = append(raw, e.Raw...)
			if e.SubBatch {
				got = append(got, fmt.Sprint(e.Offset, e.Records, e.Compression, e.Uncompressed, e.Body))
			} else {
				got = append(got, fmt.Sprint(e.Offset, e.Body))
			}
		}
		if it.Err() != nil || fmt.Sprint(got) != fmt.Sprint(want) || !bytes.Equal(raw, data) {
			t.Fatalf("seed %d: %v\ngot  %v\nwant %v", seed, it.Err(), got, want)
		}
	}
}

func TestMessages(t *testing.T) {
	e, err := ParseEntry(golden(t, "sub-batch")[HeadLengthMin:])
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	collect := func(m []byte) { got = append(got, string(m[5:])) }
	if err := Messages(e.Body, e.Records, collect); err != nil || fmt.Sprint(got) != "[hi bye]" {
		t.Fatalf("%v, %v", got, err)
	}
	for name, err := range map[string]error{
		"a message missing":   Messages(e.Body, 3, collect),
		"a message too many":  Messages(e.Body, 1, collect),
		"a batch in a batch":  Messages(e.Raw, 1, collect),
		"cut inside the last": Messages(e.Body[:len(e.Body)-1], 2, collect),
	} {
		if !errors.Is(err, ErrEntries) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
