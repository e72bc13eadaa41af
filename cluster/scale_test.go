package cluster

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

// Ten thousand streams after a restart: every one has a new leader, by a few
// calls and commands and not by some for each stream.
func TestOpen_tenThousandStreams(t *testing.T) {
	const streams, batch = 10_000, 1_000
	dir, d := t.TempDir(), newDisk()
	r := newReplicas(d, 1)
	c := open(t, dir, r)
	for first := 0; first < streams; first += batch {
		command := &catalog.CreateStreams{}
		placer := catalog.NewPlacer(c.View(), c.coord.isUp)
		for i := range batch {
			s, err := c.newStream(placer, CreateStream{Incarnation: drawIncarnation(), VHost: "/", Name: fmt.Sprintf("s%d", first+i)})
			if err != nil {
				t.Fatal(err)
			}
			command.Streams = append(command.Streams, s)
		}
		if err := c.do(within(t), command); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.AwaitLeaders(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}

	r = newReplicas(d, 2)
	begin := time.Now()
	c = open(t, dir, r)
	opened := time.Since(begin)
	if err := c.AwaitLeaders(within(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("opened in %s, all %d led in %s", opened, streams, time.Since(begin))
	fences, installs := r.calls()
	if fences > 3 || installs > 5 {
		t.Errorf("%d fences and %d installations", fences, installs)
	}
	for s := range c.View().Streams() {
		if s.Epoch != 2 || s.Leader.Run != 2 {
			t.Fatalf("stream %s: epoch %d, run %d", s.Name, s.Epoch, s.Leader.Run)
		}
	}
}

// BenchmarkCreateStream is a create with its leader, sixteen in flight.
func BenchmarkCreateStream(b *testing.B) {
	c, err := Open(context.Background(), Config{Dir: b.TempDir(), Node: "n1", Fencer: newReplicas(newDisk(), 1)})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	names := make(chan string)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for name := range names {
				if err := c.CreateStream(b.Context(), CreateStream{VHost: "/", Name: name}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	i := 0
	for b.Loop() {
		names <- fmt.Sprint(i)
		i++
	}
	close(names)
	wg.Wait()
}

// BenchmarkOpen is a whole start of the metadata on an empty directory.
func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		c, err := Open(context.Background(), Config{Dir: b.TempDir(), Node: "n1", Fencer: newReplicas(newDisk(), 1)})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		c.Close()
		b.StartTimer()
	}
}
