package cli

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
)

func count(n uint64) string { return humanize.Comma(int64(n)) }

func size(n uint64) string { return humanize.Bytes(n) }

func milliseconds(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).String()
}

// moment shows a chunk's timestamp; 0 is "none".
func moment(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05.000")
}

func rate(n uint64, elapsed time.Duration) string {
	return fmt.Sprintf("%s/s", humanize.Comma(int64(float64(n)/max(elapsed.Seconds(), 1e-9))))
}
