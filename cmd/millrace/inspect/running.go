package inspect

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// files is how the folder is read: as it lies, or, of a running node, with the
// unsealed file cut behind the last chunk that is known to be written.
func (f Folder) files() vfs.FS {
	if f.until == 0 {
		return vfs.OS{}
	}
	return running{vfs.OS{}, f}
}

// running hides what a running node may be writing right now.
type running struct {
	vfs.FS
	folder Folder
}

func (r running) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	file, err := r.FS.OpenFile(name, flag, perm)
	if err != nil || filepath.Ext(name) != ".seg" {
		return file, err
	}
	end, err := r.folder.writtenEnd(name)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return cutFile{file, end}, nil
}

var errBehind = errors.New("behind the last written chunk")

// writtenEnd is the position behind the last chunk to believe. Bad bytes before
// it are damage and stay in sight; a sealed file is believed to its end.
func (f Folder) writtenEnd(name string) (end int64, err error) {
	var last chunk.LSN
	err = segstore.DumpFile(vfs.OS{}, name, f.inc, func(d *segstore.DumpedChunk) error {
		if d.Footer == nil && last >= f.until {
			return errBehind
		}
		if d.Err == nil && d.Footer == nil {
			last = d.Header.LSN
		}
		end = d.Position + d.Bytes
		return nil
	})
	if errors.Is(err, errBehind) {
		err = nil
	}
	return end, err
}

// cutFile is a file that ends earlier than it lies.
type cutFile struct {
	vfs.File
	end int64
}

func (c cutFile) Size() (int64, error) { return c.end, nil }
