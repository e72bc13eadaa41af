package chunk

import (
	"bytes"
	"errors"
	"testing"
)

const testIncarnation Incarnation = 0x0123456789abcdef

// userMeta is a plausible place in a log, with nothing beside the entries.
func userMeta() Meta {
	return Meta{
		Incarnation: testIncarnation, LSN: 42, SyncedLSN: 40, DigestBefore: 0x1122334455667788,
		Timestamp: 1700000000000, Epoch: 3, BaseOffset: 1000,
	}
}

func build(t testing.TB, m Meta, entries []byte, count int, records uint32) (head, data []byte, h Header) {
	t.Helper()
	var b Builder
	b.Reset(nil, nil)
	b.AppendRun(entries, count, records)
	return b.Finish(&m)
}

func twoMessages() []byte {
	e := AppendSimple(nil, []byte("\x00\x53\x75\xa0\x02hi"))
	return AppendSimple(e, []byte("\x00\x53\x75\xa0\x03bye"))
}

func TestBuilder_roundTrip(t *testing.T) {
	m := userMeta()
	m.Trailer = []byte("some trailer")
	m.Filter = bytes.Repeat([]byte{0x81}, 16)
	head, data, built := build(t, m, twoMessages(), 2, 2)

	h, err := Verify(testIncarnation, head, data)
	if err != nil {
		t.Fatal(err)
	}
	if h != built {
		t.Fatalf("decoded %+v\nbuilt   %+v", h, built)
	}
	if !bytes.Equal(h.TrailerOf(head), m.Trailer) || !bytes.Equal(h.FilterOf(head), m.Filter) {
		t.Fatal("trailer or filter changed")
	}
	if h.Length() != len(head)+len(data) || h.Next() != 1002 || !h.Contains(1001) || h.Contains(1002) {
		t.Fatalf("length %d, next %d", h.Length(), h.Next())
	}
	it := h.EntriesIn(data)
	var got []string
	for it.Next() {
		got = append(got, it.Entry().Offset.String()+string(it.Entry().Body[5:]))
	}
	if it.Err() != nil || len(got) != 2 || got[0] != "1000hi" || got[1] != "1001bye" {
		t.Fatalf("%q, %v", got, it.Err())
	}
}

func TestDecode_otherIncarnation(t *testing.T) {
	head, _, _ := build(t, userMeta(), twoMessages(), 2, 2)
	if _, err := Decode(testIncarnation+1, head); !errors.Is(err, ErrHeadCRC) {
		t.Fatalf("got %v", err)
	}
}

func TestBuilder_moveKeepsWhatIsIn(t *testing.T) {
	var b Builder
	b.Reset(nil, make([]byte, 0, 8))
	first, second := AppendSimple(nil, []byte("abcd")), AppendSimple(nil, []byte("efgh"))
	small := make([]byte, 0, 8)
	b.Reset(nil, small)
	b.AppendRun(first, 1, 1)
	large := make([]byte, 5, 100)
	before := b.Move(large)
	if &before[0] != &small[:1][0] {
		t.Fatal("the buffer given back is not the one before")
	}
	b.AppendRun(second, 1, 1)
	_, data, h := b.Finish(&Meta{Incarnation: 1, LSN: 1, Epoch: 1})
	if string(data) != string(first)+string(second) || h.Entries != 2 {
		t.Fatalf("data %q, header %+v", data, h)
	}
	if &data[0] != &large[0] {
		t.Fatal("the chunk did not go on in the new buffer")
	}
}
