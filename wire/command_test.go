package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

// samples holds a value of every command, with every field set.
func samples() []Command {
	properties := PropertiesOf("a", "1", "b", "2")
	names := StringsOf("x", "", "z")
	versions := CommandVersionsOf(CommandVersion{KeyPublish, 1, 2}, CommandVersion{KeyDeliver, 1, 2})
	all := []Command{
		&DeclarePublisher{1, 2, "ref", "s"},
		&QueryPublisherSequence{1, "ref", "s"},
		&QueryPublisherSequenceResponse{1, CodeOK, math.MaxUint64},
		&DeletePublisher{1, 255},
		&PublishConfirm{3, []uint64{1, math.MaxUint64}},
		&PublishError{3, []PublishingError{{1, CodePublisherDoesNotExist}, {2, CodePreconditionFailed}}},
		&Deliver{1, 3, 0, bytes.Repeat([]byte{7}, ChunkHeaderSize)},
		&Deliver{2, 3, 99, bytes.Repeat([]byte{7}, ChunkHeaderSize+5)},
		&Credit{1, 65535},
		&CreditResponse{CodeSubscriptionIDDoesNotExist, 1},
		&StoreOffset{"ref", "s", 1 << 63},
		&QueryOffset{1, "ref", "s"},
		&QueryOffsetResponse{1, CodeNoOffset, 0},
		&Unsubscribe{1, 2},
		&Create{1, "s", properties},
		&Delete{1, "s"},
		&Metadata{1, names},
		&MetadataResponse{1, BrokersOf(Broker{0, "h", 5552}, Broker{1, "i", 5553}),
			StreamsMetadataOf(StreamMetadata{"s", CodeOK, 0, []uint16{1}}, StreamMetadata{"t", CodeStreamDoesNotExist, NoLeader, nil})},
		&MetadataUpdate{CodeStreamNotAvailable, "s"},
		&PeerProperties{1, properties},
		&PeerPropertiesResponse{1, CodeOK, properties},
		&SaslHandshake{math.MaxUint32},
		&SaslHandshakeResponse{1, CodeOK, names},
		&SaslAuthenticate{1, "PLAIN", []byte("\x00u\x00p")},
		&Tune{false, 1 << 20, 60},
		&Tune{true, 0, math.MaxUint32},
		&Open{1, "/"},
		&OpenResponse{1, CodeOK, properties},
		&OpenResponse{1, CodeVirtualHostAccessFailure, Properties{}},
		&Close{1, CodeOK, "bye"},
		&Heartbeat{},
		&Route{1, "k", "super"},
		&RouteResponse{1, CodeOK, names},
		&Partitions{1, "super"},
		&PartitionsResponse{1, CodeOK, names},
		&ConsumerUpdate{1, 2, true},
		&ConsumerUpdate{1, 2, false},
		&ExchangeCommandVersions{1, versions},
		&ExchangeCommandVersionsResponse{1, CodeOK, versions},
		&StreamStats{1, "s"},
		&StreamStatsResponse{1, CodeOK, StatsOf(Stat{StatFirstChunkID, -1}, Stat{StatCommittedOffset, 7})},
		&CreateSuperStream{1, "super", names, StringsOf("0", "1", "2"), properties},
		&DeleteSuperStream{1, "super"},
		&ResolveOffsetSpec{1, "s", OffsetSpec{Type: OffsetNext}, properties},
		&ResolveOffsetSpecResponse{1, CodeOK, 42},
		samplePublish(1), samplePublish(2),
	}
	for _, spec := range []OffsetSpec{{Type: OffsetFirst}, {Type: OffsetLast}, {Type: OffsetNext},
		FromOffset(math.MaxUint64), FromTimestamp(math.MinInt64)} {
		all = append(all, &Subscribe{1, 2, "s", spec, 10, properties}, &ConsumerUpdateResponse{1, CodeOK, spec})
	}
	all = append(all, &ConsumerUpdateResponse{1, CodeOK, OffsetSpec{}})
	for id := KeyDeclarePublisher; id <= KeyResolveOffsetSpec; id++ {
		if _, ok := serverCommand(id.Answer()).(*Response); ok {
			all = append(all, &Response{id, 1, CodeInternalError})
		}
	}
	return all
}

func samplePublish(version uint16) *Publish {
	var b PublishBuilder
	b.Begin(nil, version, 9)
	b.Add(1, []byte("hi"))
	if version == 2 {
		b.AddFiltered(2, "eu", []byte("bye"))
	} else {
		b.AddSubBatch(2, 0, 1, 7, []byte("\x00\x00\x00\x03bye"))
	}
	p, err := DecodePublish(b.End()[SizeSize:])
	if err != nil {
		panic(err)
	}
	return &p
}

// decoders returns the decoders of the sides that send c.
func decoders(c Command) []func([]byte) (Command, error) {
	var ds []func([]byte) (Command, error)
	if clientCommand(c.Key()) != nil {
		ds = append(ds, FromClient)
	}
	if serverCommand(c.Key()) != nil {
		ds = append(ds, FromServer)
	}
	return ds
}

func TestCommands_roundTrip(t *testing.T) {
	seen := map[Key]bool{}
	for _, c := range samples() {
		frame := Append([]byte("before"), c)
		if !bytes.HasPrefix(frame, []byte("before")) {
			t.Fatalf("%s: Append changed what stood before", c.Key())
		}
		frame = frame[len("before"):]
		if size := binary.BigEndian.Uint32(frame); int(size) != len(frame)-SizeSize {
			t.Errorf("%s: size %d of a frame of %d bytes", c.Key(), size, len(frame))
		}
		if len(decoders(c)) == 0 {
			t.Errorf("%s: nobody sends it", c.Key())
		}
		for _, decode := range decoders(c) {
			got, err := decode(frame[SizeSize:])
			if err != nil {
				t.Errorf("%s: %v", c.Key(), err)
			} else if !reflect.DeepEqual(got, c) {
				t.Errorf("decoded %#v, encoded %#v", got, c)
			}
		}
		seen[c.Key()] = true
	}
	for id := Key(0); id < 64; id++ {
		for _, key := range []Key{id, id.Answer()} {
			known := clientCommand(key) != nil || serverCommand(key) != nil
			if known && !seen[key] {
				t.Errorf("no sample of %s", key)
			}
			if known && !key.Known() {
				t.Errorf("key %d has no name", key)
			}
		}
	}
}

// Each frame, cut short anywhere or one byte longer, is refused: the fields
// of a layout and nothing else.
func TestCommands_refuseOtherLengths(t *testing.T) {
	for _, c := range samples() {
		frame := Append(nil, c)[SizeSize:]
		for _, decode := range decoders(c) {
			for n := range frame {
				got, err := decode(frame[:n])
				if err == nil && !mayEndAt(c, frame, n) {
					t.Errorf("%s: %x, cut from %d to %d bytes, decodes as %#v", c.Key(), frame, len(frame), n, got)
				}
				var where *DecodeError
				if err != nil && !errors.As(err, &where) {
					t.Errorf("%s cut: %v is no DecodeError", c.Key(), err)
				}
			}
			_, err := decode(append(frame[:len(frame):len(frame)], 0))
			if !errors.Is(err, ErrTrailing) && !takesMore(c) {
				t.Errorf("%s: with a byte behind it: %v, want %v", c.Key(), err, ErrTrailing)
			}
		}
	}
}

// mayEndAt names the commands with an end that may be missing.
func mayEndAt(c Command, frame []byte, n int) bool {
	switch c := c.(type) {
	case *Subscribe:
		return n == len(frame)-4-len(c.Properties.list.raw)
	case *ResolveOffsetSpec:
		return n == len(frame)-4-len(c.Properties.list.raw)
	case *Deliver:
		return n >= len(frame)-(len(c.Chunk)-ChunkHeaderSize)
	}
	return false
}

// takesMore names the commands that may be longer.
func takesMore(c Command) bool {
	switch c := c.(type) {
	case *ConsumerUpdateResponse:
		return c.Offset.Type < OffsetAt
	case *Deliver:
		return true
	}
	return false
}

// A command is refused by the side that does not receive it, and in every
// version but its own.
func TestCommands_refuseDirectionAndVersion(t *testing.T) {
	for _, c := range samples() {
		frame := Append(nil, c)[SizeSize:]
		if clientCommand(c.Key()) == nil {
			if _, err := FromClient(frame); !errors.Is(err, ErrWrongDirection) {
				t.Errorf("%s from a client: %v", c.Key(), err)
			}
		}
		if serverCommand(c.Key()) == nil {
			if _, err := FromServer(frame); !errors.Is(err, ErrWrongDirection) {
				t.Errorf("%s from a server: %v", c.Key(), err)
			}
		}
		for _, version := range []uint16{0, 3, 0xffff} {
			binary.BigEndian.PutUint16(frame[2:], version)
			for _, decode := range decoders(c) {
				if _, err := decode(frame); !errors.Is(err, ErrVersion) {
					t.Errorf("%s version %d: %v", c.Key(), version, err)
				}
			}
		}
	}
}

func TestDecode_badInputs(t *testing.T) {
	type row struct {
		name    string
		payload string // hex; blanks mean nothing
		want    error
		where   string
	}
	rows := []row{
		{"no bytes", "", ErrFrameTooSmall, ""},
		{"half a header", "0011 00", ErrFrameTooSmall, ""},
		{"unknown key", "7777 0001 00000001", ErrUnknownKey, ""},
		{"key 0", "0000 0001", ErrUnknownKey, ""},
		{"key 32", "0020 0001 00000001", ErrUnknownKey, ""},
		{"answer to Publish", "8002 0001", ErrUnknownKey, ""},
		{"answer sent by a client", "8011 0001 00000001 0001 00000000", ErrWrongDirection, ""},
		{"server's Deliver", "0008 0001", ErrWrongDirection, ""},
		{"version 0", "0017 0000", ErrVersion, "version"},
		{"version 2 of Create", "000d 0002 00000001 0001 61 00000000", ErrVersion, "version"},
		{"version 3 of Publish", "0002 0003 00 00000000", ErrVersion, "version"},
		{"bytes behind a Heartbeat", "0017 0001 00", ErrTrailing, ""},
		{"bytes behind a SaslHandshake", "0012 0001 00000001 00", ErrTrailing, ""},
		{"no correlation id", "0012 0001 0000", ErrTruncated, "correlation id"},

		{"null stream", "000e 0001 00000001 ffff", ErrNull, "stream"},
		{"stream of length -2", "000e 0001 00000001 fffe", ErrNegativeLength, "stream"},
		{"stream of length -32768", "000e 0001 00000001 8000", ErrNegativeLength, "stream"},
		{"stream longer than the body", "000e 0001 00000001 0003 6162", ErrTruncated, "stream"},
		{"SASL data of length -2", "0013 0001 00000001 0000 fffffffe", ErrNegativeLength, "data"},
		{"SASL data longer than the body", "0013 0001 00000001 0000 7fffffff 00", ErrTruncated, "data"},

		{"count 2^31-1", "000f 0001 00000001 7fffffff 0000", ErrCount, "streams"},
		{"count -1", "000f 0001 00000001 ffffffff", ErrNegativeLength, "streams"},
		{"count one too high", "000f 0001 00000001 00000002 0001 61 00", ErrTruncated, "streams[1]"},
		{"count one too low", "000f 0001 00000001 00000001 0000 0000", ErrTrailing, ""},
		{"a million properties in 8 bytes", "0011 0001 00000001 000f4240 0000000000000000", ErrCount, "properties"},
		{"null property value", "0011 0001 00000001 00000001 0001 61 ffff", ErrNull, "properties[0]"},
		{"versions count", "001b 0001 00000001 00000002 000100010001 0001", ErrCount, "versions"},
		{"second of three arrays", "001d 0001 00000001 0001 61 00000000 00000001 00000000", ErrTruncated, "arguments"},
		{"name of the second of three arrays", "001d 0001 00000001 0001 61 00000000 00000001 0009 00000000", ErrTruncated, "binding keys[0]"},

		{"Subscribe with offset type 0", "0007 0001 00000001 00 0001 61 0000 000a", ErrOffsetType, "offset type"},
		{"Subscribe with offset type 6", "0007 0001 00000001 00 0001 61 0006 000a", ErrOffsetType, "offset type"},
		{"Subscribe cut behind the stream", "0007 0001 00000001 00 0001 61", ErrTruncated, "offset type"},
		{"Subscribe with an offset cut", "0007 0001 00000001 00 0001 61 0004 00000000 000a", ErrTruncated, "offset"},
		{"ResolveOffsetSpec of type 0", "001f 0001 00000001 0001 61 0000", ErrOffsetType, "offset type"},
		{"ConsumerUpdate answer of type 6", "801a 0001 00000001 0001 0006", ErrOffsetType, "offset type"},
		{"ConsumerUpdate answer with bytes behind an offset", "801a 0001 00000001 0001 0004 0000000000000000 00", ErrTrailing, ""},

		{"Publish count -1", "0002 0001 00 ffffffff", ErrNegativeLength, "entries"},
		{"Publish count 2^31-1", "0002 0001 00 7fffffff 0000000000000001 00000000", ErrCount, "entries"},
		{"Publish count one too high", "0002 0001 00 00000002 0000000000000001 0000000c 000000000000000000000000", ErrTruncated, "entries[1]"},
		{"Publish count one too low", "0002 0001 00 00000001 0000000000000001 00000000 0000000000000002 00000000", ErrTrailing, "entries"},
		{"Publish count 0 with an entry", "0002 0001 00 00000000 0000000000000001 00000000", ErrTrailing, "entries"},
		{"Publish entry larger than the frame", "0002 0001 00 00000001 0000000000000001 00000003 6869", ErrTruncated, "entries[0]"},
		{"Publish entry of 2 GiB", "0002 0001 00 00000001 0000000000000001 7fffffff 6869", ErrTruncated, "entries[0]"},
		{"Publish sub-batch larger than the frame", "0002 0001 00 00000001 0000000000000001 80 0001 00000004 00000005 00000000", ErrTruncated, "entries[0]"},
		{"Publish sub-batch of 4 GiB", "0002 0001 00 00000001 0000000000000001 80 0001 00000004 ffffffff 00000000", ErrTruncated, "entries[0]"},
		{"Publish sub-batch header cut", "0002 0001 00 00000001 0000000000000001 80 0001 00000004 0000", ErrTruncated, "entries[0]"},
		{"Publish v2 with a sub-batch", "0002 0002 00 00000001 0000000000000001 ffff 80 0001 00000004 00000004 00000000", ErrSubBatch, "entries[0]"},
		{"Publish v2 without the filter field", "0002 0002 00 00000001 0000000000000001 00000007 005375a0026869", ErrTruncated, "entries[0]"},
		{"Publish v2 with a filter of length -2", "0002 0002 00 00000001 0000000000000001 fffe 00000000", ErrNegativeLength, "entries[0]"},
		{"Publish v2 with a filter longer than the frame", "0002 0002 00 00000001 0000000000000001 0009 00000000", ErrTruncated, "entries[0]"},
	}
	for _, r := range rows {
		payload := unhex(t, r.payload)
		c, err := FromClient(payload)
		checkDecodeError(t, r.name, c, err, r.want, r.where)
		if len(payload) >= HeaderSize && payload[0] == 0 && payload[1] == byte(KeyPublish) {
			_, err := DecodePublish(payload)
			checkDecodeError(t, r.name+" (DecodePublish)", nil, err, r.want, r.where)
		}
	}

	rows = []row{
		{"request sent by a server", "000d 0001 00000001 0001 61 00000000", ErrWrongDirection, ""},
		{"Tune as an answer", "8014 0001 00100000 0000003c", ErrWrongDirection, ""},
		{"confirm count", "0003 0001 00 20000000 0000000000000001", ErrCount, "ids"},
		{"error count", "0004 0001 00 00000002 0000000000000001 0012 0000", ErrCount, "errors"},
		{"plain answer with an array", "8001 0001 00000001 0001 00000000", ErrTrailing, ""},
		{"SASL challenge", "8013 0001 00000001 000a 00000002 6162", ErrTrailing, ""},
		{"refused Open with properties", "8015 0001 00000001 000c 00000000", ErrTrailing, ""},
		{"accepted Open without properties", "8015 0001 00000001 0001", ErrTruncated, "properties"},
		{"active 2", "001a 0001 00000001 00 02", ErrBool, "active"},
		{"replicas count", "800f 0001 00000001 00000000 00000001 0000 0001 0000 7fffffff", ErrCount, "streams[0]"},
		{"resolved to a timestamp", "801f 0001 00000001 0001 0005 0000000000000000", ErrOffsetType, "offset type"},
		{"chunk header cut", "0008 0001 00 5000", ErrTruncated, "chunk"},
	}
	for _, r := range rows {
		c, err := FromServer(unhex(t, r.payload))
		checkDecodeError(t, r.name, c, err, r.want, r.where)
	}
}

func checkDecodeError(t *testing.T, name string, c Command, err, want error, where string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", name, err, want)
		return
	}
	if c != nil {
		t.Errorf("%s: a value beside the error: %#v", name, c)
	}
	var d *DecodeError
	if !errors.As(err, &d) {
		t.Errorf("%s: %T is no DecodeError", name, err)
		return
	}
	if where != "" && !strings.Contains(d.Error(), ": "+where+": ") {
		t.Errorf("%s: %q does not name %q", name, d, where)
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What decoding takes although a strict reading would not, and how it reads.
func TestDecode_lenience(t *testing.T) {
	rows := []struct {
		name, payload string
		want          Command
	}{
		{"null reference", "0001 0001 00000001 07 ffff 0001 73", &DeclarePublisher{1, 7, "", "s"}},
		{"null SASL data", "0013 0001 00000001 0001 58 ffffffff", &SaslAuthenticate{1, "X", nil}},
		{"Subscribe without properties", "0007 0001 00000001 00 0001 73 0001 000a", &Subscribe{1, 0, "s", OffsetSpec{Type: OffsetFirst}, 10, Properties{}}},
		{"ResolveOffsetSpec without properties", "001f 0001 00000001 0001 73 0003", &ResolveOffsetSpec{1, "s", OffsetSpec{Type: OffsetNext}, Properties{}}},
		{"eight bytes behind type next", "801a 0001 00000001 0001 0003 0000000000000009", &ConsumerUpdateResponse{1, CodeOK, OffsetSpec{Type: OffsetNext}}},
		{"Tune under the answer's key", "8014 0001 00000000 ffffffff", &Tune{true, 0, math.MaxUint32}},
		{"Metadata of nothing", "000f 0001 00000001 00000000", &Metadata{1, Strings{}}},
		{"bytes that are not UTF-8", "000e 0001 00000001 0002 ff00", &Delete{1, "\xff\x00"}},
	}
	for _, r := range rows {
		got, err := FromClient(unhex(t, r.payload))
		if err != nil || !reflect.DeepEqual(got, r.want) {
			t.Errorf("%s: %#v, %v, want %#v", r.name, got, err, r.want)
		}
	}
}

func TestDecode_intoAValueOfTheKey(t *testing.T) {
	if err := Decode(Append(nil, &Credit{1, 2})[SizeSize:], new(Unsubscribe)); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("Credit into Unsubscribe: %v", err)
	}
	for _, want := range []Tune{{true, 1, 2}, {false, 3, 4}} {
		var got Tune
		if err := Decode(Append(nil, &want)[SizeSize:], &got); err != nil || got != want {
			t.Errorf("Tune %+v, %v, want %+v", got, err, want)
		}
	}
}

// The hot paths decode into values that were used before.
func TestDecode_intoUsedValues(t *testing.T) {
	d := Deliver{2, 3, 99, nil}
	want := Deliver{1, 4, 0, make([]byte, ChunkHeaderSize)}
	if err := d.Decode(Append(nil, &want)[SizeSize:]); err != nil || !reflect.DeepEqual(d, want) {
		t.Errorf("%+v, %v, want %+v", d, err, want)
	}
	p := PublishConfirm{3, []uint64{1, 2, 3}}
	if err := p.Decode(AppendPublishConfirm(nil, 4, []uint64{9})[SizeSize:]); err != nil || p.PublisherID != 4 || len(p.IDs) != 1 || p.IDs[0] != 9 {
		t.Errorf("%+v, %v", p, err)
	}
	e := PublishError{3, make([]PublishingError, 5)}
	if err := e.Decode(AppendPublishError(nil, 4, []uint64{9}, CodeInternalError)[SizeSize:]); err != nil || len(e.Errors) != 1 || e.Errors[0] != (PublishingError{9, CodeInternalError}) {
		t.Errorf("%+v, %v", e, err)
	}
	x := Credit{1, 1}
	if err := x.Decode(Append(nil, &Credit{2, 3})[SizeSize:]); err != nil || x != (Credit{2, 3}) {
		t.Errorf("%+v, %v", x, err)
	}
	wrong := Append(nil, &Unsubscribe{1, 2})[SizeSize:]
	for _, decode := range []func([]byte) error{d.Decode, p.Decode, e.Decode, x.Decode} {
		if err := decode(wrong); !errors.Is(err, ErrUnknownKey) {
			t.Errorf("Unsubscribe: %v", err)
		}
		if err := decode(nil); !errors.Is(err, ErrFrameTooSmall) {
			t.Errorf("nothing: %v", err)
		}
	}
}

// Refusal has the layout that each request's answer needs, so that clients
// that ignore the size stay in step.
func TestRefusal_answersWhatIsAnswered(t *testing.T) {
	silent := map[Key]bool{KeyPublish: true, KeyStoreOffset: true, KeyHeartbeat: true, KeyTune: true, KeyTune.Answer(): true, KeyConsumerUpdate.Answer(): true}
	for _, c := range samples() {
		if clientCommand(c.Key()) == nil {
			continue
		}
		answer := Refusal(c, CodeAccessRefused)
		if answer == nil {
			if !silent[c.Key()] && !c.Key().IsAnswer() {
				t.Errorf("no answer to %s", c.Key())
			}
			continue
		}
		if answer.Key() != c.Key().Answer() {
			t.Errorf("%s answered by %s", c.Key(), answer.Key())
		}
		got, err := FromServer(Append(nil, answer)[SizeSize:])
		if c.Key() == KeyClose {
			got, err = FromClient(Append(nil, answer)[SizeSize:])
		}
		if err != nil || !reflect.DeepEqual(got, answer) {
			t.Errorf("%s: answer %#v decodes as %#v, %v", c.Key(), answer, got, err)
		}
	}
	m := Refusal(&Metadata{5, StringsOf("a", "b")}, CodeAccessRefused).(*MetadataResponse)
	for s := range m.Streams.All() {
		if s.Code != CodeAccessRefused || s.Leader != NoLeader {
			t.Errorf("refused metadata %+v", s)
		}
	}
	if m.Streams.Len() != 2 || m.Correlation != 5 {
		t.Errorf("refused metadata has %d streams", m.Streams.Len())
	}
}

func TestProperties_lastOfARepeatedKey(t *testing.T) {
	p := PropertiesOf("k", "1", "l", "2", "k", "3")
	if v, ok := p.Get("k"); !ok || v != "3" {
		t.Errorf("k = %q, %v", v, ok)
	}
	if v, ok := p.Get("m"); ok || v != "" {
		t.Errorf("m = %q, %v", v, ok)
	}
	if got := PropertiesFrom(map[string]string{"b": "2", "a": "1"}); got != PropertiesOf("a", "1", "b", "2") {
		t.Errorf("of a map: %v", got.Map())
	}
}

func TestNames(t *testing.T) {
	for _, r := range []struct{ got, want string }{
		{KeyPublish.String(), "Publish"},
		{KeyOpen.Answer().String(), "Open response"},
		{Key(0x7777).String(), "command 7777"},
		{Key(0).String(), "command 0000"},
		{CodeNoOffset.String(), "no offset"},
		{ResponseCode(0).String(), "response code 0"},
		{ResponseCode(22).String(), "response code 22"},
		{FromOffset(5).String(), "offset 5"},
		{FromTimestamp(-5).String(), "timestamp -5"},
		{OffsetSpec{Type: OffsetNext}.String(), "next"},
	} {
		if r.got != r.want {
			t.Errorf("%q, want %q", r.got, r.want)
		}
	}
	for c := CodeOK; c <= CodeSaslCannotChangeUsername; c++ {
		if c.String() == "" {
			t.Errorf("code %d has no name", c)
		}
	}
	for k := KeyDeclarePublisher; k <= KeyResolveOffsetSpec; k++ {
		if k.String() == "" {
			t.Errorf("key %d has no name", k)
		}
	}
}
