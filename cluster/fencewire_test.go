package cluster

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// layout is one body between nodes, with its way there and back.
type layout struct {
	name   string
	value  any
	encode func(any) []byte
	decode func([]byte) (any, error)
}

var layouts = []layout{
	{
		"fences", []catalog.FenceRequest{{Stream: &catalog.Stream{
			VHost: "/", Name: "orders", Incarnation: 0x1111, Epoch: 3, ConfigVersion: 2, Preferred: "n1",
			Replicas: []catalog.Replica{{Node: "n1", Voter: true}, {Node: "n2", Voter: true, Aside: true, Registration: 2}},
		}}},
		func(v any) []byte {
			b, err := EncodeFences(v.([]catalog.FenceRequest))
			if err != nil {
				panic(err)
			}
			return b
		},
		func(b []byte) (any, error) { return DecodeFences(b) },
	},
	{
		"fence-answers", []FenceAnswer{
			{Report: protocol.Report{
				Stream: 0x1111, Epoch: 3, Node: "n2", Run: 0x2222, Registration: 2, Tail: chunk.Tail{Epoch: 2, LSN: 9},
				Commit: 8, LogStart: 1, Aside: true, Damaged: true, Mark: chunk.Tail{Epoch: 2, LSN: 10}, Pending: []byte("pending"),
			}},
			{Err: &answeredError{text: "no such replica"}},
		},
		func(v any) []byte { return EncodeFenceAnswers(v.([]FenceAnswer)) },
		func(b []byte) (any, error) { return DecodeFenceAnswers(b) },
	},
	{
		"installs", []catalog.Installation{{
			Assignment: protocol.Assignment{Stream: 0x1111, Epoch: 3, Node: "n1", Run: 0x2222, Replicas: protocol.Configuration{
				Version: 2, Members: []protocol.Member{{Node: "n1"}, {Node: "n2", Learner: true, Aside: true, Registration: 2}},
			}},
			Inheritance: protocol.Inheritance{LogStart: 5, Pending: [][]byte{[]byte("one"), []byte("two")}},
		}},
		func(v any) []byte { return EncodeInstalls(v.([]catalog.Installation)) },
		func(b []byte) (any, error) { return DecodeInstalls(b) },
	},
	{
		"outcomes", []error{nil, &answeredError{text: "another run", void: true}, &answeredError{text: "busy"}},
		func(v any) []byte { return EncodeOutcomes(v.([]error)) },
		func(b []byte) (any, error) { return DecodeOutcomes(b) },
	},
	{
		"handover", catalog.Handover{Stream: 0x1111, Epoch: 3, From: "n1", To: "n2"},
		func(v any) []byte { return EncodeHandover(v.(catalog.Handover)) },
		func(b []byte) (any, error) { return DecodeHandover(b) },
	},
}

// TestFenceWire_golden holds the layouts against their bytes.
func TestFenceWire_golden(t *testing.T) {
	for _, l := range layouts {
		path := filepath.Join("testdata", "request-"+l.name+".hex")
		got := l.encode(l.value)
		if *rewrite {
			text := hex.Dump(got)
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if hex.Dump(got) != string(text) {
			t.Errorf("%s is\n%swant\n%s", l.name, hex.Dump(got), text)
		}
		back, err := l.decode(got)
		if err != nil || !reflect.DeepEqual(back, l.value) {
			t.Errorf("%s comes back as %+v, %v", l.name, back, err)
		}
	}
}

// TestFenceWire_everyCut: no prefix and no longer form is taken.
func TestFenceWire_everyCut(t *testing.T) {
	for _, l := range layouts {
		whole := l.encode(l.value)
		for n := range whole {
			if _, err := l.decode(whole[:n:n]); !errors.Is(err, ErrRequest) {
				t.Fatalf("%s cut to %d of %d bytes: %v", l.name, n, len(whole), err)
			}
		}
		if _, err := l.decode(append(bytes.Clone(whole), 0)); !errors.Is(err, ErrRequest) {
			t.Errorf("%s with a byte more: %v", l.name, err)
		}
	}
}

func TestFenceWire_voidStaysVoid(t *testing.T) {
	b := EncodeOutcomes([]error{fmt.Errorf("%w: another run", ErrVoid), errors.New(strings.Repeat("ä", reasonBytes))})
	list, err := DecodeOutcomes(b)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	if !errors.Is(list[0], ErrVoid) || errors.Is(list[1], ErrVoid) || len(list[1].Error()) != reasonBytes {
		t.Errorf("%v; %d bytes", list[0], len(list[1].Error()))
	}
}

// TestFenceWire_fullAnswer: reports that fit no more are asked for again, none
// is cut short.
func TestFenceWire_fullAnswer(t *testing.T) {
	answers := make([]FenceAnswer, 12)
	for i := range answers {
		answers[i].Report = protocol.Report{Stream: chunk.Incarnation(i + 1), Pending: make([]byte, 1<<20)}
	}
	b := EncodeFenceAnswers(answers)
	back, err := DecodeFenceAnswers(b)
	if err != nil || len(back) != len(answers) || len(b) > FrameBytes+1<<20 {
		t.Fatalf("%d answers in %d bytes, %v", len(back), len(b), err)
	}
	for i, a := range back {
		if whole := i < 7; whole != (a.Err == nil) || whole && len(a.Report.Pending) != 1<<20 {
			t.Errorf("answer %d: %d bytes, %v", i, len(a.Report.Pending), a.Err)
		}
	}
}

// FuzzFenceWire: what decodes encodes to bytes that decode to the same.
func FuzzFenceWire(f *testing.F) {
	for i, l := range layouts {
		f.Add(byte(i), l.encode(l.value))
	}
	f.Fuzz(func(t *testing.T, which byte, b []byte) {
		l := layouts[int(which)%len(layouts)]
		v, err := l.decode(b)
		if err != nil {
			return
		}
		again, err := l.decode(l.encode(v))
		if err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("%s: %+v came back as %+v, %v", l.name, v, again, err)
		}
	})
}
