package segstore

import (
	"errors"
	"io"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
)

// oneFile is a file system with one file that can be read.
type oneFile struct {
	vfs.FS
	content []byte
}

func (o *oneFile) OpenFile(string, int, fs.FileMode) (vfs.File, error) { return bytesFile{o: o}, nil }

type bytesFile struct {
	vfs.File
	o *oneFile
}

func (f bytesFile) Size() (int64, error) { return int64(len(f.o.content)), nil }
func (f bytesFile) Close() error         { return nil }

func (f bytesFile) ReadAt(b []byte, at int64) (int, error) {
	n := copy(b, f.o.content[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// sixteenKiB is a sealed segment of exactly 16 KiB, in the middle of a log.
func sixteenKiB(t *testing.T) (file string, content []byte, sum manifest.Summary) {
	t.Helper()
	const size = 16 << 10
	for last := 1; ; {
		k := newTracker(t)
		k.ride(2, 40)
		k.roll(true)
		k.deltas(3)
		for _, n := range []int{10, 400, 3000, 1, 700, 2000} {
			k.ride(1, n)
		}
		k.append(k.user(1, last))
		k.roll(true)
		k.sync()
		sum = k.log.Segments()[1].Summary
		if missing := size - sum.FileSize(); missing != 0 {
			last += int(missing)
			continue
		}
		file = k.log.file(segmentFile(sum.Name()))
		content, err := vfs.ReadFile(k.fs, file)
		must(t, err)
		return file, content, sum
	}
}

// chunkAt is where a chunk of the segment lies.
type chunkAt struct {
	from, to int64
	chunk.Header
}

func chunksOf(t *testing.T, content []byte, sum *manifest.Summary) (all []chunkAt) {
	t.Helper()
	w := newWalker(bytesFile{o: &oneFile{content: content}}, testIncarnation, 0, sum.Size, true)
	for w.position < sum.Size {
		h, _, _, at, err := w.next()
		must(t, err)
		all = append(all, chunkAt{at, w.position, h})
	}
	return all
}

// Every single flipped bit of a sealed segment of 16 KiB is found, and the file
// and the chunks and offsets that it costs are named: those of one chunk, or none
// where it is the footer.
func TestVerifySegment_everyBitOf16KiB(t *testing.T) {
	file, content, sum := sixteenKiB(t)
	chunks := chunksOf(t, content, &sum)
	begin := time.Now()
	const workers = 2
	var work sync.WaitGroup
	for w := range workers {
		work.Go(func() {
			one := &oneFile{content: append([]byte(nil), content...)}
			i := 0
			for bit := w; bit < 8*len(content); bit += workers {
				at := int64(bit / 8)
				for i < len(chunks) && at >= chunks[i].to {
					i++
				}
				one.content[at] ^= 1 << (bit % 8)
				_, problems, err := VerifySegment(one, file, testIncarnation, &sum)
				one.content[at] ^= 1 << (bit % 8)
				if err != nil || len(problems) != 1 {
					t.Errorf("bit %d: %v, %v", bit, problems, err)
					return
				}
				var d *DamageError
				if named := errors.As(problems[0], &d); named != (i < len(chunks)) {
					t.Errorf("bit %d: %v", bit, problems[0])
					return
				} else if !named {
					continue
				}
				c := &chunks[i]
				if d.File != file || d.Segment != sum.Name() || d.Position != c.from || d.First != c.LSN || d.Last != c.LSN ||
					d.Offset != c.BaseOffset || d.Next != c.Next() {
					t.Errorf("bit %d, in chunk %d at %d, offsets %d to %d: %v", bit, c.LSN, c.from, c.BaseOffset, c.Next(), d)
					return
				}
			}
		})
	}
	work.Wait()
	t.Logf("FIGURE flipped bits: each of %d bits of a sealed segment of 16 KiB found and named, in %d ms",
		8*len(content), time.Since(begin).Milliseconds())
}

// The same bits, met by the scrub: it marks the segment, and names the chunks
// from the bad one to the segment's end.
func TestScrubber_everyBitOf16KiB(t *testing.T) {
	_, content, sum := sixteenKiB(t)
	chunks := chunksOf(t, content, &sum)
	l := &Log{inc: testIncarnation}
	s := &segment{log: l, name: sum.Name(), base: sum.BaseOffset}
	s.summary.Store(&sum)
	s.end.Store(sum.Size)
	s.synced.Store(sum.Size)
	one := &oneFile{content: content}
	i := 0
	for bit := range 8 * len(content) {
		at := int64(bit / 8)
		for i < len(chunks) && at >= chunks[i].to {
			i++
		}
		one.content[at] ^= 1 << (bit % 8)
		f := newScrubbed(s, &handle{File: bytesFile{o: one}})
		for !f.done {
			f.step()
		}
		one.content[at] ^= 1 << (bit % 8)
		due := sum.LastLSN + 1
		if i < len(chunks) {
			due = chunks[i].LSN
		}
		if f.err == nil || f.next != due {
			t.Fatalf("bit %d: at chunk %d, not %d: %v", bit, f.next, due, f.err)
		}
	}
}
