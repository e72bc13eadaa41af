package account

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// golden reads a file of hex digits with comments.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		code, _, _ := strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(code), ""))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// osirisFolder lays a stream's folder out as RabbitMQ does, below a directory of
// its own, which it returns.
func osirisFolder(t *testing.T, segment, index []byte) (dir, folder string) {
	t.Helper()
	dir = t.TempDir()
	folder = filepath.Join(dir, "stream", "__orders_1700000000000000000")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for file, b := range map[string][]byte{"00000000000000000010.segment": segment, "00000000000000000010.index": index} {
		if err := os.WriteFile(filepath.Join(folder, file), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, folder
}

func TestOf_osiris(t *testing.T) {
	segment, index := golden(t, "osiris-segment.hex"), golden(t, "osiris-index.hex")
	dir, folder := osirisFolder(t, segment, index)
	got, err := Of(dir, "/\x00orders", "orders")
	want := Account{
		Format: Osiris, Folder: folder, Segments: 1, UserChunks: 2, DeltaChunks: 2, SnapshotChunks: 1, Messages: 4,
		UserBytes: 48 + 34 + 48 + 8, FilterBytes: 16, TrailerBytes: 12, DeltaBytes: 65 + 80, SnapshotBytes: 85,
		IndexBytes: 8 + 5*29, OtherBytes: 8, DiskBytes: int64(len(segment) + len(index)),
	}
	if err != nil || got != want {
		t.Errorf("got %+v, want %+v (error %v)", got, want, err)
	}
	if got.TrackingBytes() != 12+145+85 {
		t.Errorf("tracking takes %d bytes", got.TrackingBytes())
	}
}

// TestOf_osirisEnds cuts the segment at every byte: what is not there whole is
// other bytes, and what is whole is counted.
func TestOf_osirisEnds(t *testing.T) {
	whole, index := golden(t, "osiris-segment.hex"), golden(t, "osiris-index.hex")
	ends := map[int]uint64{93: 1, 203: 2, 268: 3, 348: 4, 404: 5} // chunks up to there
	for cut := len(segmentMagic); cut <= len(whole); cut++ {
		dir, _ := osirisFolder(t, whole[:cut], index)
		a, err := Of(dir, "", "orders")
		chunks := uint64(0)
		for end, n := range ends {
			if cut >= end {
				chunks = max(chunks, n)
			}
		}
		if err != nil || a.UserChunks+a.DeltaChunks+a.SnapshotChunks != chunks || a.OtherBytes < 8 {
			t.Fatalf("cut at %d: %d chunks, %d other bytes, want %d chunks; error %v",
				cut, a.UserChunks+a.DeltaChunks+a.SnapshotChunks, a.OtherBytes, chunks, err)
		}
	}
}

func TestOf_unknownForms(t *testing.T) {
	segment, index := golden(t, "osiris-segment.hex"), golden(t, "osiris-index.hex")
	change := func(b []byte, at int, to byte) []byte {
		b = append([]byte(nil), b...)
		b[at] = to
		return b
	}
	rows := []struct {
		name           string
		segment, index []byte
		says           string
	}{
		{"chunk magic", change(segment, 93, 0x51), index, "at 93: chunk begins with 51, want 50"},
		{"chunk type", change(segment, 94, 3), index, "at 93: chunk of unknown type 3"},
		{"index magic", segment, change(index, 3, 'L'), "at 0: begins with 4f53494c00000001"},
		{"segment magic", change(segment, 0, 'X'), index, ErrNoStream.Error()},
	}
	for _, row := range rows {
		dir, _ := osirisFolder(t, row.segment, row.index)
		if _, err := Of(dir, "", "orders"); err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v, want it to say %q", row.name, err, row.says)
		}
	}
	dir, _ := osirisFolder(t, segment, index)
	if _, err := Of(dir, "", "order"); !errors.Is(err, ErrNoStream) {
		t.Errorf("another stream's name: %v, want %v", err, ErrNoStream)
	}
	if _, err := Of(filepath.Join(dir, "none"), "", "orders"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}
