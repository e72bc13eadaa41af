package wire

import (
	"bytes"
	"errors"
	"reflect"
	"runtime"
	"testing"
)

func FuzzFromClient(f *testing.F) { fuzzDecode(f, true, FromClient) }
func FuzzFromServer(f *testing.F) { fuzzDecode(f, false, FromServer) }

// fuzzDecode holds one direction's decoder against two oracles: it allocates no
// more than the input justifies, and what it accepts encodes to a frame that
// decodes to the same value.
func fuzzDecode(f *testing.F, fromClient bool, decode func([]byte) (Command, error)) {
	for _, v := range readVectors(f) {
		if v.fromClient == fromClient {
			f.Add(v.frame[SizeSize:])
		}
	}
	for _, c := range samples() {
		f.Add(Append(nil, c)[SizeSize:])
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		c, err := decode(payload)
		checkAllocation(t, len(payload), func() { _, _ = decode(payload) })
		if err != nil {
			return
		}
		checkRoundTrip(t, payload, c, decode)
		if p, ok := c.(*Publish); ok {
			checkPublish(t, payload, p)
		}
	})
}

func checkRoundTrip(t *testing.T, payload []byte, c Command, decode func([]byte) (Command, error)) {
	frame := Append(nil, c)
	again, err := decode(frame[SizeSize:])
	if err != nil {
		t.Fatalf("%x decodes as %#v, which encodes to %x: %v", payload, c, frame, err)
	}
	if !reflect.DeepEqual(again, c) {
		t.Fatalf("%x decodes as %#v, encoded and decoded %#v", payload, c, again)
	}
	if !bytes.Equal(frame[SizeSize:], payload) && !lenient(c) {
		t.Fatalf("%x encodes to %x", payload, frame[SizeSize:])
	}
}

// lenient names the commands that have more than one spelling.
func lenient(c Command) bool {
	switch c := c.(type) {
	case *DeclarePublisher:
		return c.Reference == ""
	case *SaslAuthenticate:
		return c.Data == nil
	case *Subscribe:
		return c.Properties.Len() == 0
	case *ResolveOffsetSpec:
		return c.Properties.Len() == 0
	case *ConsumerUpdateResponse:
		return c.Offset.Type < OffsetAt
	}
	return false
}

func checkPublish(t *testing.T, payload []byte, p *Publish) {
	entries, n, records := p.Entries(), 0, 0
	for e, ok := entries.Next(); ok; e, ok = entries.Next() {
		if n < p.Accepted {
			records += int(e.Records)
		}
		n++
	}
	if n != p.Count || p.Accepted > p.Count || records != p.Records {
		t.Fatalf("%x: %d entries, %d records walked, %+v", payload, n, records, p)
	}
}

// checkAllocation runs f a few times, since others may allocate meanwhile.
func checkAllocation(t *testing.T, input int, f func()) {
	most := uint64(2*input + 4096)
	var got uint64
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if got = after.TotalAlloc - before.TotalAlloc; got <= most {
			return
		}
	}
	t.Fatalf("decoding %d bytes allocates %d, at most %d", input, got, most)
}

// The worst that a client can do to memory with a frame of each array.
func TestDecode_allocatesWhatTheInputJustifies(t *testing.T) {
	const n = 100_000
	empty := make([]string, 2*n)
	inputs := []Command{
		&Metadata{1, StringsOf(empty...)},
		&PeerProperties{1, PropertiesOf(empty...)},
		&Create{1, "s", PropertiesOf(empty...)},
		&CreateSuperStream{1, "s", StringsOf(empty...), StringsOf(empty...), PropertiesOf(empty...)},
		&ExchangeCommandVersions{1, CommandVersionsOf(make([]CommandVersion, n)...)},
		&MetadataResponse{1, BrokersOf(make([]Broker, n)...), StreamsMetadataOf(make([]StreamMetadata, n)...)},
		&StreamStatsResponse{1, CodeOK, StatsOf(make([]Stat, n)...)},
		&PublishConfirm{1, make([]uint64, n)},
		&PublishError{1, make([]PublishingError, n)},
	}
	for _, c := range inputs {
		frame := Append(nil, c)[SizeSize:]
		for _, decode := range decoders(c) {
			checkAllocation(t, len(frame), func() {
				if _, err := decode(frame); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// The splitter gives the same frames however the bytes arrive.
func FuzzSplitter(f *testing.F) {
	for _, v := range readVectors(f) {
		f.Add(append(Append(nil, &Heartbeat{}), v.frame...), uint16(len(v.file)), uint16(64*v.number))
	}
	f.Add([]byte("GET / HTTP/1.1\r\n"), uint16(3), uint16(8192))
	f.Fuzz(func(t *testing.T, input []byte, step, limit uint16) {
		a, b := NewSplitter(uint32(limit)), NewSplitter(uint32(limit))
		whole, errWhole := feed(a, input, 0)
		pieces, errPieces := feed(b, input, int(step))
		if !errors.Is(errWhole, errPieces) || !reflect.DeepEqual(whole, pieces) {
			t.Fatalf("at once: %d frames, %v; in pieces: %d frames, %v", len(whole), errWhole, len(pieces), errPieces)
		}
		if most := 4*len(input) + spaceFirst; len(a.buf) > most || len(b.buf) > most {
			t.Fatalf("%d bytes made buffers of %d and %d", len(input), len(a.buf), len(b.buf))
		}
	})
}
