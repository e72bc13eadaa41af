package wire

import (
	"bytes"
	"fmt"
	"math"
	"testing"
)

func TestPublish_givesEntriesAsAChunkHoldsThem(t *testing.T) {
	var b PublishBuilder
	b.Begin(nil, 1, 5)
	b.Add(math.MaxUint64, []byte("hi"))
	b.Add(2, nil)
	b.AddSubBatch(3, 1, 2, 100, []byte("zipped"))
	frame := b.End()
	if b.Count() != 3 || b.Size() != len(frame)-SizeSize {
		t.Errorf("builder counts %d entries, %d bytes", b.Count(), b.Size())
	}
	p, err := DecodePublish(frame[SizeSize:])
	if err != nil {
		t.Fatal(err)
	}
	if p.PublisherID != 5 || p.Count != 3 || p.Accepted != 3 || p.Records != 4 {
		t.Errorf("%+v", p)
	}
	checkEntries(t, &p, []string{
		"18446744073709551615 1 \"\" 000000026869",
		"2 1 \"\" 00000000",
		"3 2 \"\" 90000200000064000000067a6970706564",
	})
}

func TestPublish_filterValues(t *testing.T) {
	var b PublishBuilder
	b.Begin([]byte("before"), 2, 5)
	b.Add(1, []byte("a"))
	b.AddFiltered(2, "eu", []byte("b"))
	b.AddFiltered(3, "", nil)
	frame := b.End()[len("before"):]
	p, err := DecodePublish(frame[SizeSize:])
	if err != nil {
		t.Fatal(err)
	}
	checkEntries(t, &p, []string{
		"1 1 \"\" 0000000161",
		"2 1 \"eu\" 0000000162",
		"3 1 \"\" 00000000",
	})
}

func checkEntries(t *testing.T, p *Publish, want []string) {
	t.Helper()
	var got []string
	entries := p.Entries()
	for e, ok := entries.Next(); ok; e, ok = entries.Next() {
		got = append(got, fmt.Sprintf("%d %d %q %x", e.PublishingID, e.Records, e.Filter, e.Raw))
		if cap(e.Raw) != len(e.Raw) {
			t.Errorf("entry %d can be grown into the next", e.PublishingID)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("entries\n%q, want\n%q", got, want)
	}
}

// A sub-batch that breaks a rule takes the rest of its frame with it, and
// nothing before it.
func TestPublish_subBatchRules(t *testing.T) {
	const tooMuch = SubBatchUncompressedMax + 1
	rows := []struct {
		name         string
		compression  uint8
		records      uint16
		uncompressed uint32
		data         []byte
		accepted     bool
	}{
		{"plain", 0, 1, 6, []byte("\x00\x00\x00\x02hi"), true},
		{"zstd, claim at the limit", 4, 1, SubBatchUncompressedMax, []byte("x"), true},
		{"claim above the limit", 4, 1, tooMuch, []byte("x"), false},
		{"claim of 4 GiB", 1, 1, math.MaxUint32, []byte("x"), false},
		{"no records", 0, 0, 6, []byte("\x00\x00\x00\x02hi"), false},
		{"records that exactly fit", 1, 65535, 65535 * 4, []byte("x"), true},
		{"more records than fit", 1, 65535, 65535*4 - 1, []byte("x"), false},
		{"65,535 records in 10 bytes", 0, 65535, 10, []byte("0123456789"), false},
		{"compression 5", 5, 1, 6, []byte("x"), false},
		{"compression 7", 7, 1, 6, []byte("x"), false},
		{"compressed to nothing", 1, 1, 6, nil, false},
		{"nothing, not compressed", 0, 1, 6, nil, true},
		{"broken gzip of consistent sizes", 1, 1, 6, []byte("not gzip"), true},
	}
	for _, r := range rows {
		var b PublishBuilder
		b.Begin(nil, 1, 0)
		b.Add(1, []byte("before"))
		b.AddSubBatch(2, r.compression, r.records, r.uncompressed, r.data)
		b.Add(3, []byte("behind"))
		p, err := DecodePublish(b.End()[SizeSize:])
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
			continue
		}
		accepted, records := 1, 1
		if r.accepted {
			accepted, records = 3, 2+int(r.records)
		}
		if p.Count != 3 || p.Accepted != accepted || p.Records != records {
			t.Errorf("%s: %d of %d accepted, %d records, want %d and %d", r.name, p.Accepted, p.Count, p.Records, accepted, records)
		}
	}
}

// Chunks keep the reserved bits zero, so an entry that sets one is not stored.
func TestPublish_reservedBitsOfASubBatch(t *testing.T) {
	for _, bit := range []byte{1, 2, 4, 8} {
		var b PublishBuilder
		b.Begin(nil, 1, 0)
		b.AddSubBatch(1, 0, 1, 6, []byte("\x00\x00\x00\x02hi"))
		payload := b.End()[SizeSize:]
		payload[HeaderSize+1+4+8] |= bit
		if p, err := DecodePublish(payload); err != nil || p.Accepted != 0 {
			t.Errorf("reserved bit %d: %d accepted, %v", bit, p.Accepted, err)
		}
	}
}

func TestPublish_longestMessage(t *testing.T) {
	var b PublishBuilder
	b.Begin(nil, 1, 0)
	b.Add(1, make([]byte, FrameMaxDefault-PublishOverhead))
	if b.End(); b.Size() != FrameMaxDefault {
		t.Errorf("frame of %d bytes, want %d", b.Size(), FrameMaxDefault)
	}
}

func TestConfirms_equalTheirValues(t *testing.T) {
	ids := []uint64{1, 2, math.MaxUint64}
	got := AppendPublishConfirm([]byte("before"), 7, ids)
	if want := Append([]byte("before"), &PublishConfirm{7, ids}); !bytes.Equal(got, want) {
		t.Errorf("confirm\n%x, want\n%x", got, want)
	}
	got = AppendPublishError(nil, 7, ids, CodePublisherDoesNotExist)
	want := &PublishError{PublisherID: 7}
	for _, id := range ids {
		want.Errors = append(want.Errors, PublishingError{id, CodePublisherDoesNotExist})
	}
	if want := Append(nil, want); !bytes.Equal(got, want) {
		t.Errorf("error\n%x, want\n%x", got, want)
	}
}

func TestConfirms_fillAFrame(t *testing.T) {
	for _, frameMax := range []uint32{1, 100, 8192, FrameMaxDefault} {
		n, m := ConfirmIDsMax(frameMax), PublishErrorIDsMax(frameMax)
		confirm := len(AppendPublishConfirm(nil, 0, make([]uint64, n))) - SizeSize
		refuse := len(AppendPublishError(nil, 0, make([]uint64, m), 0)) - SizeSize
		if n > 1 && (confirm > int(frameMax) || confirm+8 <= int(frameMax)) {
			t.Errorf("%d ids make a confirm of %d bytes, limit %d", n, confirm, frameMax)
		}
		if m > 1 && (refuse > int(frameMax) || refuse+10 <= int(frameMax)) {
			t.Errorf("%d ids make an error of %d bytes, limit %d", m, refuse, frameMax)
		}
	}
	if ConfirmIDsMax(1) != 1 || ConfirmIDsMax(0) < 1000 {
		t.Errorf("ids at limit 1: %d, without limit: %d", ConfirmIDsMax(1), ConfirmIDsMax(0))
	}
}

func publishOf(count int, size int, version uint16) []byte {
	var b PublishBuilder
	b.Begin(nil, version, 1)
	message := make([]byte, size)
	for i := range count {
		if version == 2 {
			b.AddFiltered(uint64(i), "europe", message)
		} else {
			b.Add(uint64(i), message)
		}
	}
	return b.End()
}

func TestHotPath_allocatesNothing(t *testing.T) {
	for _, version := range []uint16{1, 2} {
		payload := publishOf(100, 100, version)[SizeSize:]
		if n := testing.AllocsPerRun(100, func() { walkPublish(payload) }); n != 0 {
			t.Errorf("Publish %d: %v allocations a frame", version, n)
		}
	}
	ids := make([]uint64, 100)
	buf := AppendPublishConfirm(nil, 1, ids)
	refused := AppendPublishError(nil, 1, ids, CodeAccessRefused)
	head := make([]byte, 0, 64)
	var confirm PublishConfirm
	var errs PublishError
	credit := new(Credit)
	creditFrame := Append(nil, credit)
	deliver := &Deliver{Version: 2, Chunk: make([]byte, 100)}
	deliverFrame := Append(nil, deliver)
	checks := map[string]func(){
		"append confirm": func() { AppendPublishConfirm(buf[:0], 1, ids) },
		"append error":   func() { AppendPublishError(refused[:0], 1, ids, CodeAccessRefused) },
		"append deliver": func() { AppendDeliverV2(AppendDeliverV1(head[:0], 1, 100), 1, 5, 100) },
		"decode confirm": func() { _ = confirm.Decode(buf[SizeSize:]) },
		"decode error":   func() { _ = errs.Decode(refused[SizeSize:]) },
		"decode deliver": func() { _ = deliver.Decode(deliverFrame[SizeSize:]) },
		"decode credit":  func() { _ = credit.Decode(creditFrame[SizeSize:]) },
	}
	for name, f := range checks {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func walkPublish(payload []byte) (sum uint64, err error) {
	p, err := DecodePublish(payload)
	if err != nil {
		return 0, err
	}
	entries := p.Entries()
	for e, ok := entries.Next(); ok; e, ok = entries.Next() {
		sum += e.PublishingID + uint64(len(e.Raw)) + uint64(len(e.Filter))
	}
	return sum, nil
}

func BenchmarkPublishWalk(b *testing.B) {
	for _, version := range []uint16{1, 2} {
		b.Run(fmt.Sprintf("v%d", version), func(b *testing.B) {
			payload := publishOf(100, 100, version)[SizeSize:]
			b.SetBytes(int64(len(payload)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := walkPublish(payload); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/message")
		})
	}
}

func BenchmarkPublishBuild(b *testing.B) {
	message := make([]byte, 100)
	var p PublishBuilder
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		p.Begin(buf[:0], 1, 1)
		for id := range uint64(100) {
			p.Add(id, message)
		}
		buf = p.End()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/message")
}

func BenchmarkPublishConfirm(b *testing.B) {
	ids := make([]uint64, 100)
	buf := AppendPublishConfirm(nil, 1, ids)
	var confirm PublishConfirm
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendPublishConfirm(buf[:0], 1, ids)
		if err := confirm.Decode(buf[SizeSize:]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/id")
}
