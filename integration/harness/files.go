package harness

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Segments lists the segment files below the node's data directory, by stream
// folder and age.
func (n *Node) Segments() []string {
	n.t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join(n.DataDir, "streams"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".seg") {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// Cut takes n bytes from the end of a file (TAIL).
func Cut(path string, n int64) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, max(0, info.Size()-n))
}

// Zero overwrites the last n bytes of a file with zeros (ZERO).
func Zero(path string, n int64) error {
	return edit(path, func(text []byte) { clear(text[max(0, int64(len(text))-n):]) })
}

// Extend appends bytes to a file.
func Extend(path string, with []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(with)
	return err
}

// Flip inverts one bit of a file (FLIP); bit counts from the file's start.
func Flip(path string, bit int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var one [1]byte
	if _, err := f.ReadAt(one[:], bit/8); err != nil {
		return fmt.Errorf("flip bit %d of %s: %w", bit, path, err)
	}
	one[0] ^= 1 << (bit % 8)
	_, err = f.WriteAt(one[:], bit/8)
	return err
}

func edit(path string, change func([]byte)) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	change(text)
	return os.WriteFile(path, text, 0o600)
}

// Folders returns the folders of streams in a node's data directory whose names
// match a pattern.
func Folders(dataDir, pattern string) ([]string, error) {
	return filepath.Glob(filepath.Join(dataDir, "streams", pattern))
}
