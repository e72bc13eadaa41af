package chunk

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// golden reads a commented hex file.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	return unhex(t, string(text))
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	var out []byte
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(line), " ", ""))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, b...)
	}
	return out
}

// goldens are the files of testdata and what they decode to, but for lengths
// and CRCs.
var goldens = []struct {
	name string
	want Header
}{
	{"user", Header{Type: User, LSN: 42, SyncedLSN: 40, Entries: 2, Records: 2, Timestamp: 1700000000000, Epoch: 3, BaseOffset: 1000}},
	{"sub-batch", Header{Type: User, LSN: 43, SyncedLSN: 42, Entries: 1, Records: 2, Timestamp: 1700000000005, Epoch: 3, BaseOffset: 1002}},
	{"filter-trailer", Header{Type: User, LSN: 44, SyncedLSN: 43, Entries: 2, Records: 2, Timestamp: 1700000000010, Epoch: 3, BaseOffset: 1004, FilterAlgorithm: FilterFNV}},
	{"trailer-short", Header{Type: User, LSN: 45, SyncedLSN: 44, Entries: 2, Records: 2, Timestamp: 1700000000012, Epoch: 3, BaseOffset: 1006}},
	{"delta", Header{Type: Delta, LSN: 46, SyncedLSN: 45, Timestamp: 1700000000900, Epoch: 3, BaseOffset: 1008}},
	{"barrier", Header{Type: Delta, Flags: FlagEpochStart, LSN: 47, SyncedLSN: 46, Timestamp: 1700000001500, Epoch: 4, BaseOffset: 1008}},
	{"snapshot-first", Header{Type: Snapshot, Flags: FlagSegmentStart | FlagUnitStart | FlagSnapshotFirst, LSN: 48, SyncedLSN: 47, Timestamp: 1700000060000, Epoch: 4, BaseOffset: 1008}},
	{"snapshot-last", Header{Type: Snapshot, Flags: FlagSnapshotLast, LSN: 49, SyncedLSN: 47, Timestamp: 1700000060000, Epoch: 4, BaseOffset: 1008}},
}

// TestGoldens: each file decodes to its fields, is built from them again byte
// for byte, and continues the one before in offset and digest.
func TestGoldens(t *testing.T) {
	next, digest := Offset(1000), Digest(0x1122334455667788)
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			raw := golden(t, g.name)
			n, _, err := Peek(raw)
			if err != nil {
				t.Fatal(err)
			}
			head, data := raw[:n], raw[n:]
			h, err := Verify(testIncarnation, head, data)
			if err != nil {
				t.Fatal(err)
			}
			want := g.want
			want.DigestBefore = digest
			want.DataLength, want.TrailerLength, want.FilterLength = h.DataLength, h.TrailerLength, h.FilterLength
			want.HeadCRC, want.DataCRC = h.HeadCRC, h.DataCRC
			if h != want {
				t.Fatalf("got  %+v\nwant %+v", h, want)
			}
			if h.BaseOffset != next {
				t.Fatalf("base offset %d, the chunk before ends at %d", h.BaseOffset, next)
			}
			if err := h.ValidateEntries(data); err != nil {
				t.Fatal(err)
			}
			again := rebuild(&h, head, data)
			if !bytes.Equal(again, raw) {
				t.Fatalf("built again:\n%x\n%x", again, raw)
			}
			next, digest = h.Next(), h.DigestAfter()
		})
	}
}

// rebuild makes a chunk anew from what a decoded one says.
func rebuild(h *Header, head, data []byte) []byte {
	m := Meta{
		Incarnation: testIncarnation, Flags: h.Flags, LSN: h.LSN, SyncedLSN: h.SyncedLSN,
		DigestBefore: h.DigestBefore, Timestamp: h.Timestamp, Epoch: h.Epoch, BaseOffset: h.BaseOffset,
		Trailer: h.TrailerOf(head), Filter: h.FilterOf(head),
	}
	if h.Type != User {
		out, _ := BuildControl(h.Type, &m, nil)
		return out
	}
	var b Builder
	b.Reset(nil, nil)
	b.AppendRun(data, int(h.Entries), h.Records)
	head, data, _ = b.Finish(&m)
	return append(head, data...)
}

// TestGolden_deliver: what a client gets is the chunk's last bytes, with zero
// for the lengths of what it does not get.
func TestGolden_deliver(t *testing.T) {
	raw := golden(t, "filter-trailer")
	n, d, _ := Peek(raw)
	deliver := raw[n-ClientHeaderLength:]
	h, err := DecodeClient(deliver)
	if err != nil {
		t.Fatal(err)
	}
	if len(deliver) != 48+d || h.DataLength != uint32(d) || h.BaseOffset != 1004 || h.Records != 2 || h.Epoch != 3 {
		t.Fatalf("%+v", h)
	}
	if !bytes.Equal(deliver[40:48], make([]byte, 8)) {
		t.Fatalf("lengths %x", deliver[40:48])
	}
	if err := h.ValidateEntries(deliver[48:]); err != nil {
		t.Fatal(err)
	}
}

func TestDigest_ofGoldens(t *testing.T) {
	// Computed by an independent program from the text of FORMAT.md.
	h, _ := Decode(testIncarnation, golden(t, "user"))
	if got := h.DigestAfter(); got != 0x6e603116d73f40d8 {
		t.Fatalf("digest after the user chunk %v", got)
	}
	h, _ = Decode(testIncarnation, golden(t, "delta"))
	if h.DigestAfter() != h.DigestBefore {
		t.Fatal("a control chunk moves the digest")
	}
}
