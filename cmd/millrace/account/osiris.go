package account

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/segstore/chunk"
)

// A segment file of osiris begins with segmentMagic; chunks follow back to back,
// each of them
//
//	 0  1    2       4       8         16    24    32   36   40      44       48
//	+--+----+-------+-------+---------+-----+-----+----+----+-------+--+-----+--------+------+---------+
//	|50|type|entries|records|timestamp|epoch|first|crc |data|trailer|f |     | filter | data | trailer |
//	+--+----+-------+-------+---------+-----+-----+----+----+-------+--+-----+--------+------+---------+
//
// where data, trailer and f are the lengths in bytes of the three at the end. An
// index file begins with indexMagic.
var (
	segmentMagic = []byte("OSIL\x00\x00\x00\x01")
	indexMagic   = []byte("OSII\x00\x00\x00\x01")
)

const (
	osirisSuffix      = ".segment"
	osirisIndexSuffix = ".index"
	osirisHeader      = 48
	osirisMagic       = 0x50
)

// FormatError tells where a file is none of its format.
type FormatError struct {
	File     string
	Position int64
	What     string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s: at %d: %s", e.File, e.Position, e.What)
}

// osirisName is how a stream's name stands in its folder's: what is not safe in
// a file name is an underscore.
func osirisName(name string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && (r == '-' || r == '_' || r == '=' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z') {
			return r
		}
		return '_'
	}, name)
}

// holdsOsiris tells whether the folder has a segment file that begins as
// osiris' do.
func holdsOsiris(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*"+osirisSuffix)) // the pattern is good
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		head := make([]byte, len(segmentMagic))
		_, err = io.ReadFull(f, head)
		_ = f.Close()
		if err == nil && bytes.Equal(head, segmentMagic) {
			return true
		}
	}
	return false
}

// readOsiris accounts for one of osiris' folders from its chunks' heads.
func readOsiris(dir string) (Account, error) {
	files, all, of, err := sizes(dir, osirisSuffix)
	if err != nil {
		return Account{}, err
	}
	a := Account{Format: Osiris, Segments: len(files), DiskBytes: all, IndexBytes: of[osirisIndexSuffix]}
	for _, file := range files {
		if err := a.addOsiris(file); err != nil {
			return Account{}, err
		}
	}
	indexes, _, _, err := sizes(dir, osirisIndexSuffix)
	for _, file := range indexes {
		if err == nil {
			err = checkMagic(file, indexMagic)
		}
	}
	return a, err
}

func checkMagic(file string, magic []byte) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return readMagic(f, file, magic)
}

func readMagic(f io.Reader, file string, magic []byte) error {
	head := make([]byte, len(magic))
	n, err := io.ReadFull(f, head)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		if bytes.HasPrefix(magic, head[:n]) {
			return nil // it is being made
		}
	case err != nil:
		return err
	}
	if !bytes.Equal(head, magic) {
		return &FormatError{file, 0, fmt.Sprintf("begins with %x, want %x", head[:n], magic)}
	}
	return nil
}

// addOsiris walks one segment file. A chunk that is not there whole ends it: the
// broker is writing it, or was killed while it did.
func (a *Account) addOsiris(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := readMagic(f, file, segmentMagic); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	head := make([]byte, osirisHeader)
	for at := int64(len(segmentMagic)); at+osirisHeader <= info.Size(); {
		if _, err := f.ReadAt(head, at); err != nil {
			return err
		}
		if head[0] != osirisMagic {
			return &FormatError{file, at, fmt.Sprintf("chunk begins with %02x, want %02x", head[0], osirisMagic)}
		}
		filter := int64(head[44])
		data, trailer := int64(binary.BigEndian.Uint32(head[36:])), int64(binary.BigEndian.Uint32(head[40:]))
		length := osirisHeader + filter + data + trailer
		if at+length > info.Size() {
			return nil
		}
		switch chunk.Type(head[1]) {
		case chunk.User:
			a.UserChunks++
			a.Messages += uint64(binary.BigEndian.Uint32(head[4:]))
			a.UserBytes += osirisHeader + data
			a.FilterBytes += filter
			a.TrailerBytes += trailer
		case chunk.Delta:
			a.DeltaChunks++
			a.DeltaBytes += length
		case chunk.Snapshot:
			a.SnapshotChunks++
			a.SnapshotBytes += length
		default:
			return &FormatError{file, at, fmt.Sprintf("chunk of unknown type %d", head[1])}
		}
		at += length
	}
	return nil
}
