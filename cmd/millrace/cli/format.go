package cli

import (
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

func count(n uint64) string { return humanize.BigComma(new(big.Int).SetUint64(n)) }

// some is a number of things as a person says it: 1 segment, 2 segments.
func some[N int | uint64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return count(uint64(n)) + " " + thing + "s"
}

func size(n uint64) string { return humanize.Bytes(n) }

// percent is a share; of nothing there is none.
func percent(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(part)/float64(whole))
}

// period shows how long something took, or takes, at a glance: 37d, 4h12m, 31s.
func period(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= time.Minute:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Millisecond).String()
}

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
