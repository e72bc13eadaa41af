package manifest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"
)

// sampleRecords are one of each kind, in an order that folds.
func sampleRecords() []Record {
	l := newLog()
	a, b := l.sealed(2), l.sealed(3)
	l.elect(&b)
	c := l.sealed(1)
	merged := a
	merged.Generation, merged.LastLSN, merged.LastEpoch = 1, b.LastLSN, b.LastEpoch
	merged.NextOffset, merged.DigestAfter, merged.LastTimestamp = b.NextOffset, b.DigestAfter, b.LastTimestamp
	merged.UserChunks, merged.Entries, merged.Records, merged.UserBytes = 5, 10, 10, a.UserBytes+b.UserBytes
	merged.TrailerBytes, merged.DeltaBytes, merged.DeltaChunks = 0, 0, 0
	merged.Size, merged.LastUser, merged.DroppedLSN = merged.UserBytes+5*48, 4*196, b.LastLSN
	merged.Lines = append(append([]EpochLine(nil), a.Lines...), b.Lines...)
	return []Record{
		sealedRecord(a), sealedRecord(b), sealedRecord(c),
		{Kind: KindReplaced, Old: []Name{a.Name(), b.Name()}, Summary: merged},
		{Kind: KindStart, Start: startAt(&c, b.Lines[0])},
		{Kind: KindCut, LSN: c.LastLSN},
		{Kind: KindCutDone, LSN: c.LastLSN},
		{Kind: KindLine, Line: EpochLine{Epoch: 9, LSN: c.LastLSN + 1, Offset: c.NextOffset}},
		{Kind: KindUnit, LSN: c.FirstLSN},
	}
}

func TestDecode_roundTrip(t *testing.T) {
	records := sampleRecords()
	file := Encode(testIncarnation, records)
	got, good, err := Decode(testIncarnation, file)
	if err != nil || good != len(file) {
		t.Fatalf("good %d of %d: %v", good, len(file), err)
	}
	if !reflect.DeepEqual(got, records) {
		t.Errorf("\n got %+v\nwant %+v", got, records)
	}
	if again := Encode(testIncarnation, got); !bytes.Equal(again, file) {
		t.Error("encoding again gives other bytes")
	}
}

// Cut anywhere, a MANIFEST gives the records that are whole, and the rest is a
// torn append.
func TestDecode_tornAnywhere(t *testing.T) {
	records := sampleRecords()
	file := Encode(testIncarnation, records)
	ends := frameEnds(file)
	whole := 0
	for n := range len(file) {
		for whole < len(ends) && ends[whole] <= n {
			whole++
		}
		got, good, err := Decode(testIncarnation, file[:n])
		if err != nil {
			t.Fatalf("cut to %d: %v", n, err)
		}
		if want := max(whole-1, 0); len(got) != want {
			t.Fatalf("cut to %d: %d records, want %d", n, len(got), want)
		}
		if want := append([]int{0}, ends...)[whole]; good != want {
			t.Fatalf("cut to %d: %d good bytes, want %d", n, good, want)
		}
	}
}

func frameEnds(file []byte) (ends []int) {
	for at := 0; at < len(file); {
		at += frameHeaderLength + int(binary.BigEndian.Uint32(file[at:]))
		ends = append(ends, at)
	}
	return ends
}

// A torn last record may keep its length and end in zeros or other bytes.
func TestDecode_tornToZerosOrGarbage(t *testing.T) {
	records := sampleRecords()
	file := Encode(testIncarnation, records)
	ends := frameEnds(file)
	last := ends[len(ends)-2]
	for name, fill := range map[string]byte{"zeros": 0, "garbage": 0xa5} {
		for n := last + 1; n < len(file)-1; n++ {
			torn := append([]byte(nil), file...)
			for i := n; i < len(torn); i++ {
				torn[i] = fill
			}
			if bytes.Equal(torn, file) || differByOneBit(torn, file) {
				continue
			}
			got, good, err := Decode(testIncarnation, torn)
			if err != nil || good != last || len(got) != len(records)-1 {
				t.Fatalf("%s from %d: %d records, good %d, %v", name, n, len(got), good, err)
			}
		}
	}
}

// A write that was torn between sectors may leave zeros in the place of an end
// that holds a single set bit. That is no rot, wherever the border falls.
func TestFrames_tornToOneBit(t *testing.T) {
	noBody := func([]byte) int { return -1 }
	for behind := 1; behind < 40; behind++ { // bytes of the record behind the border
		body := bytes.Repeat([]byte{0xa5}, 100)
		clear(body[len(body)-behind:])
		body[len(body)-1-behind/2] = 8
		first := AppendFrame(nil, testIncarnation, bytes.Repeat([]byte{1}, sectorLength+behind-100-2*frameHeaderLength))
		file := AppendFrame(bytes.Clone(first), testIncarnation, body)
		clear(file[sectorLength:])
		if _, good, err := Frames(testIncarnation, file, 0, noBody, AllBefore); err != nil || good != len(first) {
			t.Fatalf("%d bytes behind the border: %d good, %v", behind, good, err)
		}
		// The same bit in a record that no border crosses was written and is rot.
		lone := AppendFrame(nil, testIncarnation, body)
		lone[len(lone)-1-behind/2] = 0
		if _, _, err := Frames(testIncarnation, lone, 0, noBody, AllBefore); !errors.Is(err, ErrDamaged) {
			t.Fatalf("%d bytes behind the border: rot is %v", behind, err)
		}
	}
}

func differByOneBit(a, b []byte) bool {
	bits := 0
	for i := range a {
		for d := a[i] ^ b[i]; d != 0; d &= d - 1 {
			bits++
		}
	}
	return bits == 1
}

// Any flipped bit is damage, also in the last record: a torn write does not
// look like that.
func TestDecode_everyFlippedBitIsDamage(t *testing.T) {
	records := sampleRecords()
	file := Encode(testIncarnation, records)
	for i := range 8 * len(file) {
		file[i/8] ^= 1 << (i % 8)
		if _, _, err := Decode(testIncarnation, file); !errors.Is(err, ErrDamaged) {
			t.Fatalf("bit %d of byte %d flipped: %v", i%8, i/8, err)
		}
		file[i/8] ^= 1 << (i % 8)
	}
}

func TestDecode_refuses(t *testing.T) {
	a := newLog().sealed(2)
	good := Encode(testIncarnation, []Record{sealedRecord(a)})
	begin := AppendRecord(nil, testIncarnation, &Record{Kind: KindBegin})
	newer := bytes.Clone(begin[frameHeaderLength:])
	newer[7]++
	foreign := AppendFooter(nil, &a)
	for name, c := range map[string]struct {
		file []byte
		want error
	}{
		"another incarnation":    {Encode(testIncarnation+1, []Record{sealedRecord(a)}), nil},
		"newer version":          {AppendFrame(nil, testIncarnation, newer), ErrVersion},
		"kind of a later one":    {AppendFrame(bytes.Clone(begin), testIncarnation, []byte{200, 0, 0, 0, 0, 0, 0, 0}), ErrVersion},
		"begins with the middle": {good[len(begin):], ErrContradiction},
		"begins twice":           {append(bytes.Clone(begin), begin...), ErrContradiction},
		"not a record at all":    {AppendFrame(nil, testIncarnation, foreign), ErrContradiction},
		"empty body":             {AppendFrame(nil, testIncarnation, nil), ErrContradiction},
	} {
		t.Run(name, func(t *testing.T) {
			records, n, err := Decode(testIncarnation, c.file)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if c.want == nil && (n != 0 || len(records) != 0) {
				t.Errorf("%d records and %d bytes believed", len(records), n)
			}
		})
	}
}

func TestWorthRewriting(t *testing.T) {
	for _, c := range []struct {
		size, live int64
		want       bool
	}{{0, 0, false}, {60_000, 100, false}, {70_000, 100, true}, {200_000, 100_000, false}, {200_001, 100_000, true}} {
		if got := WorthRewriting(c.size, c.live); got != c.want {
			t.Errorf("size %d, live %d: %v", c.size, c.live, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(testIncarnation, sampleRecords()))
	f.Add(Encode(testIncarnation, nil))
	f.Add([]byte{})
	a := newLog().sealed(1)
	f.Add(AppendFooter(nil, &a))
	f.Fuzz(func(t *testing.T, file []byte) {
		records, good, err := Decode(testIncarnation, file)
		if good > len(file) {
			t.Fatalf("%d good bytes of %d", good, len(file))
		}
		if s, foldErr := Fold(testIncarnation, records); foldErr == nil && err == nil {
			again, foldErr := Fold(testIncarnation, s.Records())
			if foldErr != nil || !sameState(&s, &again) {
				t.Fatalf("the live records fold to another state: %v", foldErr)
			}
		}
		if err == nil && good > 0 {
			if b := Encode(testIncarnation, records); !bytes.Equal(b, file[:good]) {
				t.Fatal("encoding the records gives other bytes")
			}
		}
		if n := FooterLength(file); n > 0 && n <= len(file) {
			_, _ = DecodeFooter(testIncarnation, file[len(file)-n:])
		}
	})
}
