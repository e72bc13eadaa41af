package account

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/vfs"
)

// readMillrace accounts for one of our folders: from summaries, and for the
// unsealed segment from its chunks' heads.
func readMillrace(dir string) (Account, error) {
	_, inc, _ := segstore.ParseDirName(filepath.Base(dir))
	in, err := segstore.Inspect(vfs.OS{}, dir, inc)
	if err != nil {
		return Account{}, err
	}
	a := Account{Format: Millrace, Segments: len(in.Segments)}
	for i := range in.Segments {
		s := &in.Segments[i]
		if _, err := os.Stat(s.File); errors.Is(err, fs.ErrNotExist) {
			return Account{}, err // compaction or retention was quicker
		}
		a.UserChunks += s.UserChunks
		a.DeltaChunks += s.DeltaChunks
		a.SnapshotChunks += s.SnapshotChunks
		a.Messages += s.Records
		a.UserBytes += s.UserBytes
		a.FilterBytes += s.FilterBytes
		a.TrailerBytes += s.TrailerBytes
		a.DeltaBytes += s.DeltaBytes
		a.SnapshotBytes += s.SnapshotBytes
	}
	_, all, of, err := sizes(dir, ".seg")
	a.DiskBytes, a.IndexBytes = all, of[".idx"]
	return a, err
}
