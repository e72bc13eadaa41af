//go:build !linux

package broker

import "io"

func (w *writer) send(from io.ReaderAt, position, length int64) error {
	return w.copySection(from, position, length)
}
