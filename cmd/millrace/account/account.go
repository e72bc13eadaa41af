package account

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/segstore"
)

// The formats by name.
const (
	Millrace = "millrace"
	Osiris   = "osiris"
)

// Account says what a stream's files consist of. Its JSON is a contract.
type Account struct {
	Format   string `json:"format"`
	Folder   string `json:"folder"`
	Segments int    `json:"segments"`

	UserChunks     uint64 `json:"user_chunks"`
	DeltaChunks    uint64 `json:"delta_chunks"`
	SnapshotChunks uint64 `json:"snapshot_chunks"`
	Messages       uint64 `json:"messages"`

	// UserBytes are client headers and data of user chunks, the bytes that
	// consumers get. DeltaBytes and SnapshotBytes are whole chunks.
	UserBytes     int64 `json:"user_bytes"`
	FilterBytes   int64 `json:"filter_bytes"`
	TrailerBytes  int64 `json:"trailer_bytes"`
	DeltaBytes    int64 `json:"delta_bytes"`
	SnapshotBytes int64 `json:"snapshot_bytes"`
	IndexBytes    int64 `json:"index_bytes"`
	// OtherBytes are headers, footers, manifests and whatever is none of the
	// above; all kinds sum up to DiskBytes.
	OtherBytes int64 `json:"other_bytes"`
	DiskBytes  int64 `json:"disk_bytes"`
}

// TrackingBytes are those of trailers, deltas and snapshots.
func (a *Account) TrackingBytes() int64 { return a.TrailerBytes + a.DeltaBytes + a.SnapshotBytes }

// settle gives what no kind has claimed to the other bytes.
func (a *Account) settle() {
	a.OtherBytes = a.DiskBytes - a.UserBytes - a.FilterBytes - a.TrackingBytes() - a.IndexBytes
}

// ErrNoStream: no folder below the one given holds the stream's files in a
// format that is known.
var ErrNoStream = errors.New("no files of the stream")

// triesMax bounds how often a folder is read whose files change under the
// reader: compaction and retention replace and remove them.
const triesMax = 5

// Of accounts for a stream's files somewhere below dir. logName is the stream's
// name as our folders hash it, name the one that clients use, which osiris'
// folders spell out.
//
// Errors: ErrNoStream, what the disk says, *FormatError.
func Of(dir, logName, name string) (Account, error) {
	found, err := find(dir, logName, name)
	if err != nil {
		return Account{}, err
	}
	var a Account
	for range triesMax {
		if a, err = found.read(found.path); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return Account{}, fmt.Errorf("account for %s: %w", found.path, err)
	}
	a.Folder = found.path
	a.settle()
	return a, nil
}

// folder is a stream's, with the function that reads its format.
type folder struct {
	path string
	read func(dir string) (Account, error)
}

// find looks for the stream's folder. Of several incarnations' it takes the one
// that was changed last.
func find(dir, logName, name string) (folder, error) {
	var best folder
	var changed int64
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			if errors.Is(err, fs.ErrNotExist) && path != dir {
				return nil // it went while we looked
			}
			return err
		}
		read := formatOf(path, logName, name)
		if read == nil {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if at := info.ModTime().UnixNano(); best.read == nil || at > changed {
			best, changed = folder{path, read}, at
		}
		return filepath.SkipDir
	})
	if err == nil && best.read == nil {
		err = fmt.Errorf("%w %q below %s", ErrNoStream, name, dir)
	}
	return best, err
}

// formatOf tells how to read a folder: nil if it is not the stream's.
func formatOf(dir, logName, name string) func(string) (Account, error) {
	base := filepath.Base(dir)
	if hash, _, ok := segstore.ParseDirName(base); ok && hash == segstore.Hash(logName) {
		return readMillrace
	}
	if strings.Contains(base, "_"+osirisName(name)+"_") && holdsOsiris(dir) {
		return readOsiris
	}
	return nil
}

// sizes sums a folder's files up, and lists those with the suffix in the order
// of their names.
func sizes(dir, suffix string) (list []string, all int64, of map[string]int64, err error) {
	entries, err := os.ReadDir(dir)
	of = map[string]int64{}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, 0, nil, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		all += info.Size()
		of[filepath.Ext(e.Name())] += info.Size()
		if strings.HasSuffix(e.Name(), suffix) {
			list = append(list, filepath.Join(dir, e.Name()))
		}
	}
	slices.Sort(list)
	return list, all, of, err
}
