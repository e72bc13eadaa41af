package replication

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// message is one entry of a batch under test.
type message struct {
	id     uint64
	body   string
	filter string
	batch  uint16 // records of a sub-batch; 0 for a simple entry
}

// batchOf builds a batch as a session would.
func batchOf(p *Publisher, sink Sink, messages ...message) *Batch {
	b := &Batch{Publisher: p, Sink: sink}
	var batches, filters bool
	for _, m := range messages {
		b.IDs = append(b.IDs, m.id)
		records := uint32(1)
		if m.batch > 0 {
			batches, records = true, uint32(m.batch)
			b.Data = chunk.AppendSubBatch(b.Data, chunk.CompressionGzip, m.batch, 1<<20, []byte(m.body))
		} else {
			b.Data = chunk.AppendSimple(b.Data, []byte(m.body))
		}
		b.Records = append(b.Records, records)
		b.Filters = append(b.Filters, []byte(m.filter))
		b.Ends = append(b.Ends, uint32(len(b.Data)))
		filters = filters || m.filter != ""
	}
	if !batches {
		b.Records = nil
	}
	if !filters {
		b.Filters = nil
	}
	return b
}

// numbered makes n messages of a size with ids from a first one on.
func numbered(first uint64, n, size int) []message {
	var list []message
	for i := range n {
		body := fmt.Sprintf("message %d ", first+uint64(i))
		if len(body) < size {
			body += string(bytes.Repeat([]byte{'.'}, size-len(body)))
		}
		list = append(list, message{id: first + uint64(i), body: body})
	}
	return list
}

func TestAssembler_runs(t *testing.T) {
	named := &Publisher{reference: &reference{name: "p"}}
	nameless := &Publisher{}
	sub := func(id uint64) message { return message{id: id, body: "zip", batch: 5} }
	simple := func(id uint64) message { return message{id: id, body: "x"} }
	big := func(id uint64) message { return message{id: id, body: string(make([]byte, 400<<10))} }
	for _, c := range []struct {
		name     string
		p        *Publisher
		before   []message // in the chunk already
		messages []message
		want     []int // ends of the runs, 0 where the chunk must be finished first
	}{
		{"one copy for all", nameless, nil, []message{simple(1), simple(2), simple(3)}, []int{3}},
		{"ids need not rise without a reference", nameless, nil, []message{simple(3), simple(1), simple(1)}, []int{3}},
		{"with one they do", named, nil, []message{simple(1), simple(3), simple(2)}, []int{2, 3}},
		{"a sub-batch is alone", nameless, nil, []message{simple(1), sub(2), simple(3)}, []int{1, 0, 2, 0, 3}},
		{"also behind another's", nameless, []message{simple(9)}, []message{sub(2)}, []int{0, 1}},
		{"a full chunk ends a run", nameless, nil, []message{big(1), big(2), big(3), big(4)}, []int{2, 0, 4}},
		{"a single big entry always goes", nameless, []message{simple(1)},
			[]message{{id: 2, body: string(make([]byte, 2<<20))}}, []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a assembler
			a.reset()
			if c.before != nil {
				a.begin(nil, nil)
				a.append(batchOf(nameless, nil, c.before...), 0, len(c.before))
			}
			b := batchOf(c.p, nil, c.messages...)
			var got []int
			for i := 0; i < len(b.IDs); {
				j := a.run(b, i)
				if j == i {
					got = append(got, 0)
					a.reset()
					continue
				}
				if !a.open {
					a.begin(nil, nil)
				}
				a.append(b, i, j)
				i = j
				got = append(got, j)
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Fatalf("runs end at %v, want %v", got, c.want)
			}
			if ref := c.p.reference; ref != nil {
				if !ref.building || ref.last == 0 {
					t.Fatalf("reference after its runs: %+v", ref)
				}
				*ref = reference{name: "p"}
			}
		})
	}
}

func TestAssembler_boundsEntriesAndKeepsAllBytes(t *testing.T) {
	var a assembler
	b := batchOf(&Publisher{}, nil, make([]message, 70_000)...)
	a.begin(nil, nil)
	j := a.run(b, 0)
	if j != chunk.EntriesMax {
		t.Fatalf("first run ends at %d", j)
	}
	a.append(b, 0, j)
	if a.run(b, j) != j {
		t.Fatal("a full chunk takes more")
	}
	meta := chunk.Meta{Incarnation: 1, LSN: 1, Epoch: 1, Filter: a.filter.Bytes()}
	head, data, h := a.builder.Finish(&meta)
	if !bytes.Equal(data, b.Data[:b.Ends[j-1]]) {
		t.Fatal("the chunk does not hold the batch's bytes")
	}
	if _, err := chunk.Verify(1, head, data); err != nil {
		t.Fatal(err)
	}
	if h.Records != chunk.EntriesMax || h.FilterLength != 0 {
		t.Fatalf("header %+v", h)
	}
}

func TestAssembler_collectsFilterValues(t *testing.T) {
	a := assembler{filterLength: 32}
	a.begin(nil, nil)
	b := batchOf(&Publisher{}, nil, message{id: 1, body: "x", filter: "eu"}, message{id: 2, body: "y"})
	a.append(b, 0, 2)
	var want chunk.Filter
	want.Reset(32)
	want.Add([]byte("eu"))
	want.Add(nil)
	if !bytes.Equal(a.filter.Bytes(), want.Bytes()) {
		t.Fatalf("filter %x, want %x", a.filter.Bytes(), want.Bytes())
	}
}

func TestAssembler_finishedHandsBatchesOver(t *testing.T) {
	var a assembler
	p := &Publisher{reference: &reference{name: "p"}}
	b := batchOf(p, nil, message{id: 7, body: "x"})
	a.begin(nil, nil)
	a.append(b, 0, 1)
	a.batches = append(a.batches, b)
	if s := a.sequences(nil); len(s) != 1 || s[0].Ref != "p" || s[0].Sequence != 7 {
		t.Fatalf("sequences %+v", s)
	}
	var q queue[waiting]
	a.finished(42, &q)
	if q.len() != 1 || q.first().lsn != 42 || q.first().batch != b {
		t.Fatalf("waiting %+v", q)
	}
	if ref := p.reference; ref.building || ref.lsn != 42 || !ref.isDuplicate(7) || ref.isDuplicate(8) {
		t.Fatalf("reference %+v", ref)
	}
	if a.open || len(a.references) != 0 || a.trailerLength != 0 {
		t.Fatal("the assembler is not empty")
	}
}
