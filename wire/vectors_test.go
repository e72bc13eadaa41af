package wire

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// captured is one frame of testdata/vectors, its size bytes included.
type captured struct {
	file       string
	number     int
	fromClient bool
	frame      []byte
}

func (f captured) decode() (Command, error) {
	if f.fromClient {
		return FromClient(f.frame[SizeSize:])
	}
	return FromServer(f.frame[SizeSize:])
}

// readVectors returns the captured frames, file by file, in order.
func readVectors(t testing.TB) []captured {
	t.Helper()
	files, err := filepath.Glob("testdata/vectors/*.hex")
	if err != nil {
		t.Fatal(err)
	}
	var all []captured
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parseVector(t, filepath.Base(file), string(text))...)
	}
	return all
}

func parseVector(t testing.TB, file, text string) []captured {
	t.Helper()
	var frames []captured
	var digits strings.Builder
	finish := func() {
		if len(frames) == 0 {
			return
		}
		frame, err := hex.DecodeString(digits.String())
		if err != nil {
			t.Fatalf("%s: frame %d: %v", file, len(frames), err)
		}
		frames[len(frames)-1].frame = frame
		digits.Reset()
	}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(line) {
			if word == ">" || word == "<" {
				finish()
				frames = append(frames, captured{file: file, number: len(frames) + 1, fromClient: word == ">"})
				continue
			}
			digits.WriteString(word)
		}
	}
	finish()
	return frames
}

// unknownVectors are the frames that are no command of the protocol, by file
// and number.
var unknownVectors = map[string]int{"close-by-server-unknown-command.hex": 1}

func TestVectors_reencodeToTheSameBytes(t *testing.T) {
	files := map[string]bool{}
	seen := map[Key]bool{}
	for _, f := range readVectors(t) {
		files[f.file] = true
		c, err := f.decode()
		if unknownVectors[f.file] == f.number {
			if err == nil {
				t.Errorf("%s: frame %d decodes as %s, want an unknown command", f.file, f.number, c.Key())
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: frame %d: %v", f.file, f.number, err)
			continue
		}
		seen[c.Key()] = true
		if got := Append(nil, c); !bytes.Equal(got, f.frame) {
			t.Errorf("%s: frame %d: %s encodes to\n%x, captured\n%x", f.file, f.number, c.Key(), got, f.frame)
		}
		if p, ok := c.(*Publish); ok {
			if got := rebuild(p); !bytes.Equal(got, f.frame) {
				t.Errorf("%s: frame %d: rebuilt entry by entry\n%x, captured\n%x", f.file, f.number, got, f.frame)
			}
		}
	}
	if len(files) != 73 {
		t.Errorf("%d files of vectors, want 73", len(files))
	}
	if missing := unseen(seen); len(missing) != 0 {
		t.Errorf("no vector shows %v", missing)
	}
}

// unseen returns the keys of which no frame was seen, but for those that the
// captured broker did not have.
func unseen(seen map[Key]bool) []Key {
	var missing []Key
	for id := KeyDeclarePublisher; id < KeyResolveOffsetSpec; id++ {
		for _, key := range []Key{id, id.Answer()} {
			if (clientCommand(key) != nil || serverCommand(key) != nil) && !seen[key] {
				missing = append(missing, key)
			}
		}
	}
	return missing
}

// rebuild makes p's frame again with the builder that clients use.
func rebuild(p *Publish) []byte {
	var b PublishBuilder
	b.Begin(nil, p.Version, p.PublisherID)
	entries := p.Entries()
	for e, ok := entries.Next(); ok; e, ok = entries.Next() {
		switch {
		case e.SubBatch():
			b.AddSubBatch(e.PublishingID, e.Raw[0]>>4&7, uint16(e.Records), be32(e.Raw[3:]), e.Raw[11:])
		case len(e.Filter) > 0:
			b.AddFiltered(e.PublishingID, string(e.Filter), e.Raw[4:])
		default:
			b.Add(e.PublishingID, e.Raw[4:])
		}
	}
	return b.End()
}

func be32(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func TestVectors_fieldsOfAFew(t *testing.T) {
	first := func(file string, number int) Command {
		for _, f := range readVectors(t) {
			if f.file == file && f.number == number {
				c, err := f.decode()
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
		}
		t.Fatalf("no frame %d in %s", number, file)
		return nil
	}

	m := first("metadata.hex", 2).(*MetadataResponse)
	if got := m.Brokers.Slice(); !slices.Equal(got, []Broker{{0, "localhost", 5552}}) {
		t.Errorf("brokers %v", got)
	}
	streams := m.Streams.Slice()
	if len(streams) != 2 || streams[0].Stream != "orders" || streams[0].Code != CodeOK || streams[0].Leader != 0 ||
		streams[1].Stream != "missing" || streams[1].Code != CodeStreamDoesNotExist || streams[1].Leader != NoLeader {
		t.Errorf("streams %+v", streams)
	}

	s := first("create-super-stream-ok.hex", 1).(*CreateSuperStream)
	if got := s.Partitions.Slice(); !slices.Equal(got, []string{"invoices-0", "invoices-1", "invoices-2"}) {
		t.Errorf("partitions %q", got)
	}
	if got := s.BindingKeys.Slice(); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("binding keys %q", got)
	}
	if age, ok := s.Arguments.Get("max-age"); !ok || age != "3600s" || s.Arguments.Len() != 1 {
		t.Errorf("arguments %v", s.Arguments.Map())
	}

	d := first("deliver-v2-two-messages.hex", 3).(*Deliver)
	if d.Version != 2 || len(d.Chunk) != ChunkHeaderSize+23 || d.Chunk[0] != 0x50 {
		t.Errorf("deliver %+v", d)
	}
	head := AppendDeliverV2(nil, d.SubscriptionID, d.CommittedChunkID, len(d.Chunk))
	if whole := Append(nil, d); len(head) != DeliverV2HeadSize || !bytes.HasPrefix(whole, head) {
		t.Errorf("head of deliver v2 %x", head)
	}

	d = first("deliver-v1-two-messages.hex", 3).(*Deliver)
	head = AppendDeliverV1(nil, d.SubscriptionID, len(d.Chunk))
	if whole := Append(nil, d); len(head) != DeliverV1HeadSize || !bytes.HasPrefix(whole, head) {
		t.Errorf("head of deliver v1 %x", head)
	}

	p := first("publish-sub-batch.hex", 1).(*Publish)
	if p.Version != 1 || p.Count != 1 || p.Accepted != 1 || p.Records != 2 {
		t.Errorf("publish %+v", p)
	}
	v := first("exchange-versions-empty.hex", 2).(*ExchangeCommandVersionsResponse)
	if got, want := v.Versions.Slice(), ServerVersions.Slice(); !slices.Equal(got, want[:len(got)]) || len(got) != len(want)-1 {
		t.Errorf("the captured broker announces\n%v, we\n%v", got, want)
	}
}
