package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// DiskResult is what appending and syncing costs on this disk.
type DiskResult struct {
	Kind      string  `json:"kind"`
	Size      int     `json:"size_bytes"` // of each append
	Appends   int     `json:"appends"`
	PerSecond float64 `json:"appends_per_second"`
	MBPerSec  float64 `json:"megabytes_per_second"`
	Latency   Latency `json:"append_and_sync_latency"`
}

// Disk appends blocks of size bytes to a new file in dir, with an fdatasync
// after each, for about the given time. The file is removed.
func Disk(dir string, size int, span time.Duration) (result DiskResult, err error) {
	path := filepath.Join(dir, "millrace-bench-disk")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return result, fmt.Errorf("measure the disk: %s is there already, remove it: %w", path, err)
	}
	if err != nil {
		return result, fmt.Errorf("measure the disk: %w", err)
	}
	defer func() {
		err = errors.Join(err, f.Close(), os.Remove(path))
	}()
	block, latency := make([]byte, size), newHistogram()
	for i := range block {
		block[i] = byte(i * 7)
	}
	begin := time.Now()
	for time.Since(begin) < span {
		start := time.Now()
		if _, err := f.Write(block); err != nil {
			return result, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return result, fmt.Errorf("fdatasync %s: %w", path, err)
		}
		record(latency, time.Since(start), 1)
		result.Appends++
	}
	seconds := time.Since(begin).Seconds()
	result.Kind, result.Size, result.Latency = "disk", size, summary(latency)
	result.PerSecond = float64(result.Appends) / seconds
	result.MBPerSec = result.PerSecond * float64(size) / 1e6
	return result, nil
}
