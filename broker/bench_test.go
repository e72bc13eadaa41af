package broker_test

import (
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

const (
	benchFrame  = 100 // messages
	benchSize   = 100 // bytes
	benchWindow = 10_000
)

// BenchmarkPublish_overTheSocket is frames of 100 messages of 100 bytes, with
// 10,000 unconfirmed at most, through a socket, the broker, a replica alone in
// its group and a log in memory, to their confirms.
func BenchmarkPublish_overTheSocket(b *testing.B) {
	h := serveReal(b, vfs.NewMem(), "data", func(c *broker.Config) { c.FrameMax = 4 << 20 })
	p := h.open(b)
	p.SetDeadline(time.Time{})
	p.create("s", "max-length-bytes", "100000000", "stream-max-segment-size-bytes", "10000000")
	p.declare(0, "", "s")
	var build wire.PublishBuilder
	build.Begin(nil, 1, 0)
	for i := range benchFrame {
		build.Add(uint64(i), make([]byte, benchSize))
	}
	frame := build.End()
	window := make(chan struct{}, benchWindow/benchFrame)
	done := make(chan struct{})
	go func() {
		defer close(done)
		confirmed := 0
		for range b.N {
			for confirmed < benchFrame {
				confirm, ok := p.read().(*wire.PublishConfirm)
				if !ok {
					b.Error("something else than a confirm came")
					return
				}
				confirmed += len(confirm.IDs)
			}
			confirmed -= benchFrame
			<-window
		}
	}()
	b.ReportAllocs()
	b.SetBytes(benchFrame * benchSize)
	b.ResetTimer()
	for range b.N {
		window <- struct{}{}
		p.write(frame)
	}
	<-done
	b.ReportMetric(float64(b.N)*benchFrame/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkDeliver_fromTheLog is chunks of 100 messages of 100 bytes, read from
// the log in memory and sent through a socket.
func BenchmarkDeliver_fromTheLog(b *testing.B) {
	h := serveReal(b, vfs.NewMem(), "data", nil)
	p := h.open(b)
	p.SetDeadline(time.Time{})
	p.create("s")
	p.declare(0, "", "s")
	const chunks = 1000
	messages := make([]string, benchFrame)
	for i := range messages {
		messages[i] = string(make([]byte, benchSize))
	}
	for i := range chunks {
		p.publish(0, uint64(i*benchFrame), messages...)
		p.wantConfirms(0, uint64(i*benchFrame), benchFrame)
	}
	b.SetBytes(benchFrame * benchSize)
	b.ReportAllocs()
	b.ResetTimer()
	records := 0
	for records < b.N*benchFrame {
		p.subscribe(0, "s", first, 65535)
		for got := 0; got < chunks*benchFrame && records < b.N*benchFrame; {
			d, ok := p.read().(*wire.Deliver)
			if !ok {
				b.Fatal("something else than a chunk came")
			}
			n := int(takeRecords(d))
			got, records = got+n, records+n
		}
		p.skip[wire.KeyDeliver] = true
		p.ask(&wire.Unsubscribe{Correlation: 1})
		p.skipped = p.skipped[:0]
	}
	b.ReportMetric(float64(b.N)*benchFrame/b.Elapsed().Seconds(), "messages/s")
}

func takeRecords(d *wire.Deliver) uint32 {
	c := d.Chunk
	return uint32(c[4])<<24 | uint32(c[5])<<16 | uint32(c[6])<<8 | uint32(c[7])
}
