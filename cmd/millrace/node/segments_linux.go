package node

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// segmentBytesMax bounds a TCP segment on the stream port. Loopback would make
// them as large as half of the first window that the peer announced, 32 KiB and
// more; the official Go client then shrinks its receive buffer to 16 KiB, no
// segment fits its window any more, and each 16 KiB wait for the sender's
// 200 ms probe timer. Segments of other networks are smaller anyway.
const segmentBytesMax = 8192

// limitSegments is a net.ListenConfig's Control.
func limitSegments(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, segmentBytesMax)
	})
	return errors.Join(err, set)
}
