package segstore

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

var rewrite = flag.Bool("rewrite", false, "write golden files anew; read the diff")

// part is a run of bytes of a golden file and what it is.
type part struct {
	n    int
	note string
}

// golden compares bytes with testdata/name.hex and with the hex block of that
// name in FORMAT.md. parts annotate the file; they must add up.
func golden(t *testing.T, name, title string, b []byte, parts []part) {
	t.Helper()
	file := "testdata/" + name + ".hex"
	if *rewrite {
		var out strings.Builder
		fmt.Fprintf(&out, "# %s\n", title)
		rest := b
		for _, p := range parts {
			if p.n == 0 {
				fmt.Fprintf(&out, "\n# %s\n", p.note)
				continue
			}
			for at := 0; at < p.n; at += 16 {
				note := ""
				if at == 0 {
					note = "# " + p.note
				}
				line := fmt.Sprintf("%-34s%s", hex.EncodeToString(rest[at:min(at+16, p.n)]), note)
				out.WriteString(strings.TrimRight(line, " ") + "\n")
			}
			rest = rest[p.n:]
		}
		if len(rest) > 0 {
			t.Fatalf("%s: %d bytes without a note", name, len(rest))
		}
		must(t, os.WriteFile(file, []byte(out.String()), 0o644))
	}
	text, err := os.ReadFile(file)
	must(t, err)
	if *rewrite {
		rewriteFormat(t, name, string(text))
	}
	if want := unhex(t, string(text)); !bytes.Equal(b, want) {
		t.Errorf("%s holds %d bytes; they are now\n%s", file, len(want), hex.Dump(b))
	}
	page, err := os.ReadFile("FORMAT.md")
	must(t, err)
	_, block, found := strings.Cut(string(page), "```hex "+name+"\n")
	if !found {
		t.Fatalf("FORMAT.md has no hex block %q", name)
	}
	block, _, _ = strings.Cut(block, "```")
	if !bytes.Equal(b, unhex(t, block)) {
		t.Errorf("the hex block %q of FORMAT.md is not %s", name, file)
	}
}

// rewriteFormat puts a golden file into its block of FORMAT.md.
func rewriteFormat(t *testing.T, name, text string) {
	t.Helper()
	page, err := os.ReadFile("FORMAT.md")
	must(t, err)
	before, rest, found := strings.Cut(string(page), "```hex "+name+"\n")
	if !found {
		t.Fatalf("FORMAT.md has no hex block %q", name)
	}
	_, after, _ := strings.Cut(rest, "```")
	_, body, _ := strings.Cut(text, "\n")
	page = []byte(before + "```hex " + name + "\n" + strings.TrimPrefix(body, "\n") + "```" + after)
	must(t, os.WriteFile("FORMAT.md", page, 0o644))
}

func unhex(t *testing.T, text string) (out []byte) {
	t.Helper()
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(line), " ", ""))
		must(t, err)
		out = append(out, b...)
	}
	return out
}

// goldenSegment is the segment of the worked example: a barrier and one message.
func goldenSegment(t testing.TB) (file []byte, sum manifest.Summary, places []indexEntry, state *tracking.State) {
	t.Helper()
	state = tracking.New(tracking.Caps{}, 1)
	add := func(head, data []byte, h *chunk.Header, before chunk.Epoch) {
		places = append(places, indexEntry{h.BaseOffset, h.LSN, h.Timestamp, sum.Size})
		sum.Add(h, before)
		sum.AddSequences(h, tracking.SequenceBytes(h, h.TrailerOf(head)))
		must(t, state.Apply(h, h.TrailerOf(head)))
		file = append(append(file, head...), data...)
	}
	m := chunk.Meta{
		Incarnation: testIncarnation, Flags: chunk.FlagSegmentStart | chunk.FlagUnitStart | chunk.FlagEpochStart,
		LSN: 1, Timestamp: testTime, Epoch: 1, Trailer: tracking.EncodeBarrier(nil, nil),
	}
	head, h := chunk.BuildControl(chunk.Delta, &m, nil)
	sum = manifest.NewSummary(testIncarnation, 0, &h)
	add(head, nil, &h, 0)
	m = chunk.Meta{
		Incarnation: testIncarnation, LSN: 2, SyncedLSN: 1, DigestBefore: h.DigestAfter(), Timestamp: testTime + 5, Epoch: 1,
		Trailer: state.EncodeTrailer(nil, false, []tracking.SequenceUpdate{{Ref: "p", Sequence: 7}}, nil),
	}
	var b chunk.Builder
	b.Reset(nil, nil)
	b.AppendRun(chunk.AppendSimple(nil, []byte("hello")), 1, 1)
	head, data, h := b.Finish(&m)
	add(head, data, &h, 1)
	return manifest.AppendFooter(file, &sum), sum, places, state
}

func summaryParts(lines int) []part {
	parts := []part{
		{4, "flags: bit 0 unit start"},
		{4, "epoch lines"}, {8, "incarnation"}, {4, "generation"}, {4, "chain of the head CRCs"},
		{8, "first LSN"}, {8, "last LSN"}, {8, "first epoch"}, {8, "last epoch"}, {8, "base offset"}, {8, "next offset"},
		{8, "digest before"}, {8, "digest after"}, {8, "first user timestamp"}, {8, "last user timestamp"},
		{8, "user chunks"}, {8, "entries"}, {8, "records"}, {8, "user bytes"}, {8, "trailer bytes"}, {8, "filter bytes"},
		{8, "delta chunks"}, {8, "delta bytes"}, {8, "snapshot chunks"}, {8, "snapshot bytes"},
		{8, "size: bytes of all chunks"}, {8, "position of the last user chunk"},
		{8, "snapshot's first part: LSN"}, {8, "and position"}, {8, "snapshot's last part: LSN"}, {8, "and position"},
		{8, "highest dropped or stripped LSN"}, {8, "trailer bytes of sequences"}, {8, "snapshot bytes of sequences"}, {8, "reserved"},
	}
	for range lines {
		parts = append(parts, part{8, "epoch line: epoch"}, part{8, "its first LSN"}, part{8, "its first offset"})
	}
	return parts
}

func TestGolden_segment(t *testing.T) {
	b, sum, _, _ := goldenSegment(t)
	first, second := 96, int(sum.Size)-96
	parts := []part{{0, "chunk 1, a barrier"}, {first, "head"}, {0, "chunk 2, one message of 5 bytes"},
		{second - 9, "head, with a trailer"}, {9, "data"}, {0, "footer"}, {4, "magic, version 1"}, {4, "length of the summary"}}
	parts = append(parts, summaryParts(1)...)
	parts = append(parts, part{4, "CRC-32C"}, part{4, "length of the footer"}, part{4, "magic"})
	golden(t, "segment", "A sealed segment; incarnation 0123456789abcdef", b, parts)
	got, err := readFooter(bytes.NewReader(b), testIncarnation, int64(len(b)))
	if err != nil || !reflect.DeepEqual(got, sum) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestGolden_manifest(t *testing.T) {
	_, sum, _, _ := goldenSegment(t)
	records := []manifest.Record{
		{Kind: manifest.KindSealed, Summary: sum},
		{Kind: manifest.KindLine, Line: manifest.EpochLine{Epoch: 2, LSN: 3, Offset: 1}},
		{Kind: manifest.KindCut, LSN: 4},
		{Kind: manifest.KindCutDone, LSN: 4},
		{Kind: manifest.KindUnit, LSN: 3},
		{Kind: manifest.KindStart, Start: manifest.Start{LSN: 3, Offset: 1, Digest: sum.DigestAfter, Line: sum.Lines[0]}},
	}
	b := manifest.Encode(testIncarnation, records)
	frame := func(title string, body ...part) []part {
		return append([]part{{0, title}, {4, "length of the body"}, {4, "CRC-32C"}, {4, "kind, reserved"}}, body...)
	}
	parts := frame("begin", part{4, "magic, version 1"}, part{8, "incarnation"})
	parts = append(parts, frame("sealed", part{288, "summary, as in the footer"})...)
	parts = append(parts, frame("epoch line", part{8, "epoch"}, part{8, "first LSN"}, part{8, "first offset"})...)
	parts = append(parts, frame("cut", part{8, "LSN"})...)
	parts = append(parts, frame("cut done", part{8, "LSN"})...)
	parts = append(parts, frame("unit start", part{8, "LSN"})...)
	parts = append(parts, frame("log start", part{8, "LSN"}, part{8, "offset"}, part{8, "digest"},
		part{8, "line of the LSN before: epoch"}, part{8, "its first LSN"}, part{8, "its first offset"})...)
	golden(t, "manifest", "A MANIFEST; incarnation 0123456789abcdef", b, parts)
	got, good, err := manifest.Decode(testIncarnation, b)
	if err != nil || good != len(b) || !reflect.DeepEqual(got, records) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestGolden_index(t *testing.T) {
	_, sum, places, _ := goldenSegment(t)
	b := encodeIndex(testIncarnation, entries(places))
	parts := []part{{4, "magic, version 1"}, {4, "entries"}, {4, "CRC-32C"}, {4, "reserved"}}
	for range places {
		parts = append(parts, part{8, "base offset"}, part{8, "LSN"}, part{8, "timestamp"}, part{8, "position"})
	}
	golden(t, "index", "An index of the example's segment, with an entry for each chunk", b, parts)
	got, err := decodeIndex(testIncarnation, b, sum.FirstLSN, sum.LastLSN, sum.Size)
	if err != nil || !reflect.DeepEqual(got, entries(places)) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestGolden_checkpoint(t *testing.T) {
	_, sum, places, state := goldenSegment(t)
	encoded, _ := state.AppendCheckpoint(nil)
	c := checkpoint{summary: sum, last: testTime + 5, lastAt: 96, lastCRC: 0x01020304, tracking: encoded}
	b := encodeCheckpoint(testIncarnation, &c, entries(places[:1]))
	parts := []part{{4, "magic, version 1"}, {4, "CRC-32C"}, {8, "length of the body"}, {8, "last chunk: timestamp"}, {8, "position"}, {4, "head CRC"},
		{4, "length of the footer"}, {4, "index entries"}, {8 + 288 + 12, "footer, as in a sealed segment"}}
	parts = append(parts, part{8, "index entry: base offset"}, part{8, "LSN"}, part{8, "timestamp"}, part{8, "position"},
		part{len(encoded), "tracking"})
	golden(t, "checkpoint", "A checkpoint of the example's segment", b, parts)
	got, err := decodeCheckpoint(testIncarnation, b)
	if err != nil || !reflect.DeepEqual(got.summary, sum) || got.lastAt != 96 || got.last != testTime+5 || !bytes.Equal(got.tracking, encoded) {
		t.Errorf("%+v, %v", got, err)
	}
	for i := range b {
		b[i] ^= 1 << (i % 8)
		if _, err := decodeCheckpoint(testIncarnation, b); err == nil {
			t.Fatalf("byte %d flipped: accepted", i)
		}
		b[i] ^= 1 << (i % 8)
	}
}

func TestGolden_journal(t *testing.T) {
	const id = 0x1122334455667788
	b := appendJournalBegin(nil, id)
	want := StreamState{Promise: 3, Commit: 40, Mark: 42, Registration: 2, Aside: AsideLearner}
	b = appendJournalState(b, id, testIncarnation, 24, &want)
	b = appendJournalGone(b, id, testIncarnation+1, 24)
	golden(t, "journal", "A node journal", b, []part{
		{0, "begin"}, {4, "length of the body"}, {4, "CRC-32C, from 0"}, {4, "kind, reserved"}, {4, "magic, version 1"}, {8, "id of the journal"},
		{0, "state"}, {4, "length of the body"}, {4, "CRC-32C, from the id"}, {4, "kind, set aside: learner, reserved"},
		{8, "incarnation"}, {8, "synced up to"}, {8, "promise"}, {8, "commit"}, {8, "durable mark"}, {8, "registration"},
		{0, "gone"}, {4, "length of the body"}, {4, "CRC-32C"}, {4, "kind, reserved"}, {8, "incarnation"}, {8, "synced up to"},
	})
	got, states, good, err := decodeJournal(b)
	if err != nil || good != len(b) || got != id || len(states) != 1 || states[testIncarnation] != want {
		t.Errorf("%s, %v, %d of %d, %v", got, states, good, len(b), err)
	}
}

// FuzzRecover: whatever a segment file and a MANIFEST hold, the log opens or
// says why not, never panics, and opening it again finds the same.
func FuzzRecover(f *testing.F) {
	segment, sum, _, _ := goldenSegment(f)
	manifestBytes := manifest.Encode(testIncarnation, []manifest.Record{{Kind: manifest.KindSealed, Summary: sum}})
	empty := manifest.Encode(testIncarnation, nil)
	f.Add(segment, empty)
	f.Add(segment, manifestBytes)
	f.Add(segment[:sum.Size], empty)
	f.Add(segment[:100], empty)
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, segment, manifestBytes []byte) {
		mem := vfs.NewMem()
		store, err := NewStore(Options{FS: mem, Dir: "data", Syncer: vfs.NewInlineSyncer()})
		must(t, err)
		must(t, store.Create(testName, testIncarnation))
		dir := "data/streams/" + dirName(testName, testIncarnation) + "/"
		must(t, mem.Edit(dir+manifestName, func([]byte) []byte { return manifestBytes }))
		file, err := mem.OpenFile(dir+segmentOf(1), os.O_CREATE|os.O_RDWR, 0o644)
		must(t, err)
		_, err = file.WriteAt(segment, 0)
		must(t, err)
		must(t, file.Close())
		type outcome struct {
			tail   chunk.Tail
			next   chunk.Offset
			digest chunk.Digest
			err    string
		}
		open := func() (o outcome) {
			l, _, err := store.Open(testIncarnation, Config{})
			if err != nil {
				return outcome{err: fmt.Sprintf("%T", err)}
			}
			if err := readAll(l); err != nil && !errors.Is(err, ErrDamaged) {
				t.Fatal(err)
			}
			o = outcome{l.Tail(), l.Next(), l.Digest(), fmt.Sprint(l.Err() != nil)}
			l.shut()
			return o
		}
		first := open()
		if second := open(); second != first {
			t.Fatalf("first %+v, then %+v", first, second)
		}
	})
}
