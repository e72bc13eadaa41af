package broker

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/wire"
)

// goldenRequests are bodies that other versions of the program must understand.
func goldenRequests() map[string][]byte {
	var frame wire.PublishBuilder
	frame.Begin(nil, 1, 7)
	frame.Add(42, []byte("abc"))
	d := declaration{stream: 0x0102030405060708, epoch: 9, publisher: 10, reference: "writer"}
	q := question{stream: 0x0102030405060708, epoch: 9, reference: "reader"}
	at := place{stream: 0x0102030405060708, spec: segstore.Spec{Kind: segstore.AtOffset, Offset: 14}}
	since := place{stream: 0x0102030405060708, spec: segstore.Spec{Kind: segstore.AtTimestamp, Timestamp: 15}}
	s := stored{stream: 0x0102030405060708, epoch: 9, since: 20, offset: 11, reference: "reader"}
	taken := placed{stream: 0x0102030405060708, epoch: 9, place: 21}
	return map[string][]byte{
		"declare":  d.append(nil),
		"publish":  appendPublish(nil, 10, 1, frame.End()[wire.SizeSize:]),
		"close":    appendClosed(nil, []uint64{10, 12}),
		"question": q.append(nil),
		"store":    s.append(s.append(nil)),
		"stored":   taken.append(nil),
		"known":    appendKnown(nil, 13, true),
		"unknown":  appendKnown(nil, 13, false),
		"extent":   appendStream(nil, 0x0102030405060708),
		"extended": extent{16, 17, 18}.append(nil),
		"empty":    extent{-1, -1, 0}.append(nil),
		"offset":   at.append(nil),
		"time":     since.append(nil),
		"place":    appendOffset(nil, 19),
	}
}

func TestRequests_golden(t *testing.T) {
	text, err := os.ReadFile("testdata/requests.hex")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, bytes, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = bytes
	}
	for name, body := range goldenRequests() {
		if got := hex.EncodeToString(body); got != want[name] {
			t.Errorf("%s %s, want %s", name, got, want[name])
		}
	}
}

// FuzzRequests: what can be read is written again as it was, and nothing else is
// taken.
func FuzzRequests(f *testing.F) {
	for _, body := range goldenRequests() {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		same := func(what string, err error, again []byte) {
			if err == nil && !bytes.Equal(again, body) {
				t.Errorf("%s: %x became %x", what, body, again)
			}
		}
		d, err := decodeDeclaration(body)
		same("declare", err, d.append(nil))
		q, err := decodeQuestion(body)
		same("question", err, q.append(nil))
		value, known, err := decodeKnown(body)
		same("known", err, appendKnown(nil, value, known))
		publisher, entries, frame, err := decodePublish(body)
		same("publish", err, appendPublish(nil, publisher, entries, frame))
		closed, err := decodeClosed(body)
		same("close", err, appendClosed(nil, closed))
		stream, err := decodeStream(body)
		same("extent", err, appendStream(nil, stream))
		e, err := decodeExtent(body)
		same("extended", err, e.append(nil))
		p, err := decodePlace(body)
		same("place", err, p.append(nil))
		offset, err := decodeOffset(body)
		same("offset", err, appendOffset(nil, offset))
		list, err := decodeStored(body)
		var again []byte
		for _, s := range list {
			again = s.append(again)
		}
		same("store", err, again)
		taken, err := decodePlaced(body)
		again = nil
		for _, p := range taken {
			again = p.append(again)
		}
		same("stored", err, again)
	})
}

// TestStatuses: each error of replicas is the same on both sides.
func TestStatuses(t *testing.T) {
	for _, row := range statuses {
		if got := statusOf(errorOf(row.status)); got != row.status {
			t.Errorf("status %d comes back as %d", row.status, got)
		}
	}
	if errorOf(0xfe00) == nil {
		t.Error("an unknown status is no error")
	}
}
