package segstore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// readRecords checks a View's bytes: each record is its own offset, written out.
// Fixtures make them so.
func readRecords(v *View, size int) (next chunk.Offset, err error) {
	data := v.Data
	if file, position, length, ok := v.Section(); ok {
		section := make([]byte, length)
		if n, err := file.ReadAt(section, position); n != len(section) {
			return 0, fmt.Errorf("section of chunk %d: %w", v.Header.LSN, err)
		}
		if !bytes.Equal(section[:chunk.ClientHeaderLength], chunk.ClientHeaderOf(v.Head)) {
			return 0, fmt.Errorf("section of chunk %d starts with another header", v.Header.LSN)
		}
		data = section[chunk.ClientHeaderLength:]
	}
	if err := v.Header.VerifyData(data); err != nil {
		return 0, err
	}
	it := v.Header.EntriesIn(data)
	for it.Next() {
		e := it.Entry()
		want := bytes.Repeat(fmt.Appendf(nil, "%d.", e.Offset), size/2+1)[:size]
		if !bytes.Equal(e.Body, want) {
			return 0, fmt.Errorf("offset %d: %.20q, want %.20q", e.Offset, e.Body, want)
		}
	}
	return v.Header.Next(), it.Err()
}

// slowReader reads to the log's end, attaching anew now and then. It stops with a View in its hands after
// some chunks, says so, and goes on when it may.
func slowReader(l *Log, from chunk.Offset, pause, size int, paused func(), resume <-chan struct{}) error {
	commit := l.Commit()
	r, err := l.Attach(Spec{Kind: AtOffset, Offset: from}, commit)
	if err != nil {
		return err
	}
	defer func() { r.Close() }()
	next := r.Offset()
	for n := 0; ; n++ {
		v, ok, err := r.Next(commit)
		if err != nil {
			return err
		}
		if n == pause || !ok && n < pause {
			paused()
			<-resume
			n = max(n, pause)
		}
		if !ok {
			break
		}
		if v.Header.BaseOffset != next {
			return fmt.Errorf("chunk at offset %d, want %d", v.Header.BaseOffset, next)
		}
		if next, err = readRecords(&v, size); err != nil {
			return err
		}
		v.Release()
		switch {
		case n%7 == 0:
			r.Rest()
		case n%5 == 0:
			r.Close()
			if r, err = l.Attach(Spec{Kind: AtOffset, Offset: next}, commit); err != nil {
				return err
			}
		}
	}
	if end, _ := l.OffsetAfter(commit); next != end {
		return fmt.Errorf("read up to %d, the log ends at %d", next, end)
	}
	return nil
}

// 100 readers stand anywhere in the log, each with a chunk in its hands, while
// everything is compacted and merged under them, and read on: half of them
// meanwhile, half of them after it.
func TestCompact_hundredSlowReaders(t *testing.T) {
	for _, fsys := range []struct {
		name string
		fs   vfs.FS
		dir  string
	}{{"mem", vfs.NewMem(), "data"}, {"os", vfs.OS{}, t.TempDir()}} {
		t.Run(fsys.name, func(t *testing.T) {
			const size = 40_000
			k := &tracker{fixture: newFixture(t, fsys.fs, fsys.dir)}
			k.config.SegmentBytes = 1 << 20
			k.restart()
			k.barrier()
			for i := range 12 {
				for range 3 {
					k.append(k.userWith(2, size, k.updates(5)))
				}
				k.deltas(400)
				k.roll(i%4 == 3)
			}
			k.deltas(1)
			k.roll(false)
			k.sync()
			k.uncached()
			k.content(Spec{Kind: First}) // later reads give sections of files

			const readers = 100
			var paused, done sync.WaitGroup
			held, late := make(chan struct{}), make(chan struct{})
			errs := make(chan error, readers)
			random := rand.New(rand.NewPCG(1, 2))
			paused.Add(readers)
			done.Add(readers)
			for i := range readers {
				from, pause, resume := chunk.Offset(random.IntN(60)), random.IntN(20), held
				if i%2 == 1 {
					resume = late
				}
				go func() {
					defer done.Done()
					errs <- slowReader(k.log, from, pause, size, paused.Done, resume)
				}()
			}
			paused.Wait()
			close(held)
			if n := k.compactAll(); n < 12 {
				t.Errorf("%d pieces of work", n)
			}
			close(late)
			done.Wait()
			for range readers {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			k.compactAll()
			if st := k.log.Compaction(); st.BytesPinned != 0 || st.Merges == 0 {
				t.Errorf("compacted %+v", st)
			}
			k.rescan()
		})
	}
}
