package cli

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

// periodUnits are those of ages: as people write them, and as the protocol does
// (Y, M, D; a month is 30 days there, a year 365).
var periodUnits = []struct {
	name string
	span time.Duration
}{
	{"ms", time.Millisecond}, {"s", time.Second}, {"m", time.Minute}, {"h", time.Hour},
	{"d", 24 * time.Hour}, {"D", 24 * time.Hour}, {"w", 7 * 24 * time.Hour}, {"M", 30 * 24 * time.Hour}, {"Y", 365 * 24 * time.Hour},
}

const periodExample = "7d, 2w, 12h, 1h30m"

// parsePeriod reads whole numbers with a unit each, which add up: 2w, 36h, 1h30m.
// Nothing, or a sum of 0, is no period.
func parsePeriod(text string) (sum time.Duration, ok bool) {
	for text != "" {
		digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
		n, err := strconv.ParseInt(text[:digits], 10, 64)
		if err != nil {
			return 0, false
		}
		text = text[digits:]
		next := strings.IndexAny(text, "0123456789")
		if next < 0 {
			next = len(text)
		}
		unit := time.Duration(0)
		for _, u := range periodUnits {
			if u.name == text[:next] {
				unit = u.span
			}
		}
		if unit == 0 || n > int64((math.MaxInt64-sum)/unit) {
			return 0, false
		}
		sum += time.Duration(n) * unit
		text = text[next:]
	}
	return sum, sum > 0
}

// protocolAge turns a person's age into the protocol's, which is a whole number
// of one unit. What is one already stays as it is: a client that declares the
// stream anew has its text compared.
func protocolAge(text string) (string, error) {
	if _, err := catalog.ParseRetention(map[string]string{"max-age": text}); err == nil && text != "" {
		return text, nil
	}
	age, ok := parsePeriod(text)
	if !ok || age%time.Second != 0 {
		return "", usage("max-age is %q, but must be whole seconds or more, of the units s m h d w M Y", text).suggest("such as " + periodExample)
	}
	for _, unit := range []struct {
		name string
		span time.Duration
	}{{"D", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if age%unit.span == 0 {
			return strconv.FormatInt(int64(age/unit.span), 10) + unit.name, nil
		}
	}
	return strconv.FormatInt(int64(age/time.Second), 10) + "s", nil
}
