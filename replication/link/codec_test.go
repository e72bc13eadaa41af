package link

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// samples has a frame of each kind, fields all different.
func samples() map[string]*Frame {
	base := func(m protocol.Message) *Frame {
		m.Epoch, m.Session = 0x0102, 0x0304
		return &Frame{Stream: 0x0123456789abcdef, Message: m}
	}
	gap := &protocol.Gap{
		Lines:    []protocol.EpochLine{{Epoch: 2, LSN: 30, Offset: 300}, {Epoch: 3, LSN: 40, Offset: 400}},
		Segments: []protocol.SegmentMark{{LSN: 31}, {LSN: 41, Unit: true}},
	}
	first := protocol.Message{Kind: protocol.MsgChunk, Commit: 7, First: true, Tail: chunk.Tail{Epoch: 1, LSN: 6}}
	gapped := first
	gapped.Gap = gap
	frames := map[string]*Frame{
		"hello": base(protocol.Message{Kind: protocol.MsgHello, Stream: 0x0123456789abcdef, Config: 5}),
		"found": base(protocol.Message{Kind: protocol.MsgFound, Tail: chunk.Tail{Epoch: 4, LSN: 44}, Start: protocol.LogStart{
			LSN: 10, Offset: 100, Line: protocol.EpochLine{Epoch: 1, LSN: 2, Offset: 3}, Digest: 0xd1}}),
		"chunk":       base(protocol.Message{Kind: protocol.MsgChunk, Commit: 7}),
		"chunk-first": base(first),
		"chunk-gap":   base(gapped),
		"pending":     base(protocol.Message{Kind: protocol.MsgPending, First: true, ID: 9}),
		"commit":      base(protocol.Message{Kind: protocol.MsgCommit, Commit: 8, Start: protocol.LogStart{LSN: 3}}),
		"check":       base(protocol.Message{Kind: protocol.MsgCheck, ID: 11}),
		"welcome":     base(protocol.Message{Kind: protocol.MsgWelcome, Run: 12, Registration: 13, Aside: true}),
		"find":        base(protocol.Message{Kind: protocol.MsgFind, Tail: chunk.Tail{Epoch: 5, LSN: 55}}),
		"joined":      base(protocol.Message{Kind: protocol.MsgJoined, LSN: 56}),
		"ack":         base(protocol.Message{Kind: protocol.MsgAck, LSN: 57}),
		"checked":     base(protocol.Message{Kind: protocol.MsgChecked, ID: 58}),
		"refuse":      base(protocol.Message{Kind: protocol.MsgRefuse, Promised: 59, Reason: protocol.ReasonOrder}),
	}
	for name, f := range frames {
		if f.Message.Kind == protocol.MsgChunk {
			f.Head = bytes.Repeat([]byte{0xaa}, chunk.HeadLengthMin)
			f.Data = []byte("data of " + name)
		}
	}
	frames["pending"].Pending = []byte("updates")
	return frames
}

func controls() map[string]*control {
	return map[string]*control{
		"heartbeat": {kind: kindHeartbeat},
		"credit":    {kind: kindCredit, stream: 0x0123456789abcdef, bytes: 4096},
		"request":   {kind: kindRequest, id: 21, method: 22, timeout: 5000, body: 4},
		"response":  {kind: kindResponse, id: 21, method: 0, body: 2},
	}
}

func encoded(t testing.TB, f *Frame) []byte {
	t.Helper()
	p, err := appendFrame(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCodec_golden ties PROTOCOL.md's layouts to bytes: fields only, what rides
// beside follows as it is.
func TestCodec_golden(t *testing.T) {
	all := map[string][]byte{}
	for name, f := range samples() {
		all[name] = encoded(t, f)
	}
	for name, c := range controls() {
		all[name] = appendControl(nil, c)
	}
	h := hello{purpose: PurposeLink, min: 1, max: 1, slot: 1, slots: 3, bundle: 0x0506, cluster: "c1", from: "n1", to: "n2"}
	for i := range h.nonce {
		h.nonce[i] = byte(i)
	}
	all["handshake-hello"] = h.append(nil)
	a := answer{version: 1}
	for i := range a.value {
		a.value[i] = byte(0x80 + i)
	}
	all["handshake-challenge"] = a.append(nil)
	third := proof(secretOf('k'), labelDialer, all["handshake-hello"], all["handshake-challenge"], nil)
	all["handshake-proof"] = third[:]
	bound := proof(secretOf('k'), labelDialer, all["handshake-hello"], all["handshake-challenge"], bytes2(bindingBytes, 0xbd))
	all["handshake-proof-bound"] = bound[:]
	wel := answer{version: 1, bundle: 0x0506}
	wel.value = proof(secretOf('k'), labelAcceptor, all["handshake-hello"], all["handshake-challenge"], third[:], wel.append(nil)[:10], nil)
	all["handshake-welcome"] = wel.append(nil)
	for name, p := range all {
		if *rewrite {
			writeHex(t, name, p)
		}
		if want := hexFile(t, name); !bytes.Equal(p, want) {
			t.Errorf("%s:\n got %x\nwant %x", name, p, want)
		}
	}
	files, err := filepath.Glob("testdata/*.hex")
	if err != nil || len(files) != len(all) {
		t.Errorf("%d golden files for %d frames, %v", len(files), len(all), err)
	}
	text, err := os.ReadFile("../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range samples() {
		if row := fmt.Sprintf("| `%02x` | %v |", wireKinds[f.Message.Kind], f.Message.Kind); !strings.Contains(string(text), row) {
			t.Errorf("PROTOCOL.md lacks %q, of %s", row, name)
		}
	}
	for name, c := range controls() {
		if row := fmt.Sprintf("| `%02x` | %s |", c.kind, name); !strings.Contains(string(text), row) {
			t.Errorf("PROTOCOL.md lacks %q", row)
		}
	}
}

func writeHex(t *testing.T, name string, p []byte) {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s, %d bytes\n", name, len(p))
	for i := 0; i < len(p); i += 16 {
		fmt.Fprintf(&b, "%-34s# %d\n", hex.EncodeToString(p[i:min(i+16, len(p))]), i)
	}
	if err := os.WriteFile(filepath.Join("testdata", name+".hex"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCodec_roundTrip(t *testing.T) {
	kinds := map[protocol.MessageKind]bool{}
	for name, f := range samples() {
		kinds[f.Message.Kind] = true
		p := encoded(t, f)
		var got Frame
		b, err := decodeFrame(p[lengthBytes:], &got)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if b != (beside{len(f.Head), len(f.Data), len(f.Pending)}) {
			t.Errorf("%s: beside %+v", name, b)
		}
		got.Head, got.Data, got.Pending = f.Head, f.Data, f.Pending
		if !reflect.DeepEqual(&got, f) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, *f)
		}
		if FromLeader(f.Message.Kind) != (p[lengthBytes] < 0x10) {
			t.Errorf("%s: direction", name)
		}
	}
	for k := protocol.MsgHello; k <= protocol.MsgRefuse; k++ {
		if !kinds[k] {
			t.Errorf("no sample of %v", k)
		}
	}
	for name, c := range controls() {
		got, err := decodeControl(appendControl(nil, c)[lengthBytes:])
		if err != nil || got != *c {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
}

// TestCodec_strict: a byte less, a byte more, an unknown flag, kind or bound.
func TestCodec_strict(t *testing.T) {
	refused := func(name string, p []byte) {
		t.Helper()
		var f Frame
		var err error
		if len(p) > 0 && messageKinds[p[0]] != 0 {
			_, err = decodeFrame(p, &f)
		} else {
			_, err = decodeControl(p)
		}
		if !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
	all := map[string][]byte{}
	for name, f := range samples() {
		all[name] = encoded(t, f)[lengthBytes:]
	}
	for name, c := range controls() {
		all[name] = appendControl(nil, c)[lengthBytes:]
	}
	for name, p := range all {
		for n := range p {
			refused(fmt.Sprintf("%s cut to %d", name, n), p[:n])
		}
		refused(name+" and a byte", append(bytes.Clone(p), 0))
		for bit := 3; bit < 8; bit++ {
			q := bytes.Clone(p)
			q[1] |= 1 << bit
			refused(fmt.Sprintf("%s with flag %d", name, bit), q)
		}
		q := bytes.Clone(p)
		q[0] = 0x77
		refused(name+" of unknown kind", q)
	}
	put := func(name string, at int, v uint32) []byte {
		q := bytes.Clone(all[name])
		binary.BigEndian.PutUint32(q[at:], v)
		return q
	}
	refused("head too long", put("chunk", 34, chunk.HeadLengthMax+1))
	refused("head too short", put("chunk", 34, chunk.HeadLengthMin-1))
	refused("data too long", put("chunk", 38, chunk.DataLengthMax+1))
	refused("data negative", put("chunk", 38, 1<<31))
	refused("lines 2^32-1", put("chunk-gap", 58, 1<<32-1))
	refused("segments 2^31", put("chunk-gap", 62, 1<<31))
	refused("updates too long", put("pending", 34, pendingMax+1))
	refused("body too long", put("request", 16, bodyMax+1))
	refused("credit of nothing", put("credit", 10, 0))
	reason := bytes.Clone(all["refuse"])
	reason[len(reason)-1] = 200
	refused("reason unknown", reason)
}

func TestCodec_tooLargeToSend(t *testing.T) {
	f := samples()["chunk-gap"]
	f.Message.Gap.Lines = make([]protocol.EpochLine, fieldsMax/lineBytes)
	if _, err := appendFrame(nil, f); !errors.Is(err, ErrTooLarge) {
		t.Errorf("gap: %v", err)
	}
	f = samples()["pending"]
	f.Pending = make([]byte, pendingMax+1)
	if _, err := appendFrame(nil, f); !errors.Is(err, ErrTooLarge) {
		t.Errorf("pending: %v", err)
	}
}

// TestCodec_allocation: what comes in costs at most twice its size and 4 KiB,
// whatever it claims.
func TestCodec_allocation(t *testing.T) {
	gap := encoded(t, samples()["chunk-gap"])[lengthBytes:]
	rows := map[string][]byte{"as it is": gap, "message of text": bytes.Repeat([]byte("{"), 5000)}
	for _, n := range []uint32{1 << 31, 1<<32 - 1, 1 << 20, 3} {
		for _, at := range []int{34, 38, 58, 62} {
			q := bytes.Clone(gap)
			binary.BigEndian.PutUint32(q[at:], n)
			rows[fmt.Sprintf("%d at %d", n, at)] = q
		}
	}
	for name, p := range rows {
		least := uint64(1 << 63) // other goroutines may allocate meanwhile
		for range 10 {
			var before, after runtime.MemStats
			var f Frame
			runtime.ReadMemStats(&before)
			_, _ = decodeFrame(p, &f)
			runtime.ReadMemStats(&after)
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		if least > uint64(2*len(p)+4096) {
			t.Errorf("%s: %d bytes allocated for %d", name, least, len(p))
		}
	}
}

// FuzzFrame: whatever decodes encodes to the same bytes, and a gap is as large
// as its bytes.
func FuzzFrame(f *testing.F) {
	for _, s := range samples() {
		f.Add(encoded(f, s)[lengthBytes:])
	}
	for _, c := range controls() {
		f.Add(appendControl(nil, c)[lengthBytes:])
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) == 0 || len(p) > fieldsMax {
			return
		}
		if messageKinds[p[0]] == 0 {
			if c, err := decodeControl(p); err == nil {
				if again := appendControl(nil, &c)[lengthBytes:]; !bytes.Equal(again, p) {
					t.Fatalf("%x became %x", p, again)
				}
			}
			return
		}
		var fr Frame
		b, err := decodeFrame(p, &fr)
		if g := fr.Message.Gap; g != nil && cap(g.Lines)*lineBytes+cap(g.Segments)*16 > 2*len(p) {
			t.Fatalf("%d lines and %d segments for %d bytes", cap(g.Lines), cap(g.Segments), len(p))
		}
		if err != nil {
			return
		}
		if b.head > 1<<20 || b.data > 1<<20 {
			return
		}
		fr.Head, fr.Data, fr.Pending = make([]byte, b.head), make([]byte, b.data), make([]byte, b.pending)
		if again := encoded(t, &fr)[lengthBytes:]; !bytes.Equal(again, p) {
			t.Fatalf("%x became %x", p, again)
		}
	})
}

// FuzzHello: the first bytes of a connection are anything.
func FuzzHello(f *testing.F) {
	f.Add((&hello{purpose: PurposeLink, min: 1, max: 1, slots: 3, cluster: "c1", from: "a", to: "b"}).append(nil))
	f.Add((&hello{purpose: PurposeRaft, min: 1, max: 9, slots: 1, cluster: strings.Repeat("c", 255), from: "a", to: "b"}).append(nil))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, p []byte) {
		h, raw, err := readHello(bytes.NewReader(p))
		if err == nil && (!bytes.Equal(h.append(nil), raw) || !bytes.HasPrefix(p, raw)) {
			t.Fatalf("%x became %x", p, raw)
		}
	})
}
