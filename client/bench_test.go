package client

import (
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// BenchmarkPublish sends messages of 100 B in frames of 100 over loopback to a
// server that confirms each frame and keeps nothing.
func BenchmarkPublish(b *testing.B) {
	s := newFakeServer(b)
	var confirm []byte
	var ids []uint64
	s.answerTo(wire.KeyPublish, func(f *fakeSession, q wire.Command) bool {
		ids = ids[:0]
		entries := q.(*wire.Publish).Entries()
		for e, ok := entries.Next(); ok; e, ok = entries.Next() {
			ids = append(ids, e.PublishingID)
		}
		confirm = wire.AppendPublishConfirm(confirm[:0], q.(*wire.Publish).PublisherID, ids)
		_, _ = f.conn.Write(confirm)
		return true
	})
	confirmed := 0
	p := declare(b, s.dial(nil), PublisherConfig{Stream: "s", Window: 50_000, Confirmed: func(ids []uint64) { confirmed += len(ids) }})
	message := make([]byte, 100)
	b.SetBytes(int64(len(message)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Publish(message); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Drain(b.Context()); err != nil || confirmed != b.N {
		b.Fatalf("%d of %d confirmed, %v", confirmed, b.N, err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mmsg/s")
}

// BenchmarkConsume reads chunks of 1,000 messages of 100 B, CRC checked, with
// and without a look at each record.
func BenchmarkConsume(b *testing.B) {
	for _, look := range []bool{false, true} {
		name := "chunks"
		if look {
			name = "records"
		}
		b.Run(name, func(b *testing.B) { benchmarkConsume(b, look) })
	}
}

func benchmarkConsume(b *testing.B, look bool) {
	const records = 1000
	s := newFakeServer(b)
	var run []byte
	for range records {
		run = chunk.AppendSimple(run, make([]byte, 100))
	}
	s.stream("s").appendRun(run, records, records)
	frame := wire.Append(nil, &wire.Deliver{Version: 1, Chunk: s.stream("s").chunks[0]})
	s.answerTo(wire.KeyCredit, func(f *fakeSession, q wire.Command) bool {
		for range q.(*wire.Credit).Credit {
			_, _ = f.conn.Write(frame)
		}
		return true
	})
	delivered := make(chan int, 100)
	consumer, err := s.dial(nil).Subscribe(b.Context(), ConsumerConfig{Stream: "s", Offset: wire.OffsetSpec{Type: wire.OffsetFirst},
		Credit: 50, ManualCredit: true, Deliver: func(d *Delivery) {
			n := int(d.Header.Records)
			if look {
				n = 0
				for _, err := range d.Records() {
					if err != nil {
						b.Error(err)
					}
					n++
				}
			}
			delivered <- n
		}})
	if err != nil {
		b.Fatal(err)
	}
	<-delivered
	b.SetBytes(records * 100)
	b.ReportAllocs()
	consumer.Credit(50)
	for b.Loop() {
		if n := <-delivered; n != records {
			b.Fatalf("%d records", n)
		}
		consumer.Credit(1)
	}
	b.ReportMetric(float64(b.N)*records/b.Elapsed().Seconds()/1e6, "Mmsg/s")
}
