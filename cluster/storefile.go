package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
)

// errStoreCut: bbolt maps the file and reads where it has been told that pages
// are; behind the end of a file that was cut the system answers that with a
// signal, which ends the process without a word.
var errStoreCut = errors.New("the file is shorter than it says")

// checkStoreFile compares the length of a bbolt file with what its newest meta
// page says. A file that is missing, empty or no bbolt file is for bbolt to judge.
func checkStoreFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var newest boltMeta
	for at, pages := int64(0), 0; pages < 2; pages++ {
		m, ok := readBoltMeta(f, at)
		if ok && m.transaction >= newest.transaction {
			newest = m
		}
		if at += int64(m.pageSize); !ok {
			at = int64(os.Getpagesize())
		}
	}
	if want := int64(newest.pages) * int64(newest.pageSize); info.Size() < want {
		return fmt.Errorf("%w: %d bytes, want %d", errStoreCut, info.Size(), want)
	}
	return nil
}

// boltMeta is what counts of a meta page: a file's first two pages, written in
// turn.
//
//	page header 16 | magic u32 | version u32 | page size u32 | flags u32 |
//	root u64 | sequence u64 | free list u64 | pages u64 | transaction u64 |
//	FNV-1a 64 of what is before, from magic on
type boltMeta struct {
	pageSize           uint32
	pages, transaction uint64
}

func readBoltMeta(f io.ReaderAt, at int64) (m boltMeta, ok bool) {
	const magic, length = 0xED0CDAED, 64
	page := make([]byte, 16+length)
	if _, err := f.ReadAt(page, at); err != nil {
		return m, false
	}
	b, ne := page[16:], binary.NativeEndian
	sum := fnv.New64a()
	sum.Write(b[:length-8])
	if ne.Uint32(b) != magic || ne.Uint64(b[length-8:]) != sum.Sum64() {
		return m, false
	}
	return boltMeta{ne.Uint32(b[8:]), ne.Uint64(b[40:]), ne.Uint64(b[48:])}, true
}
