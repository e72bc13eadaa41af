package cli

import (
	"fmt"
	"strconv"
	"time"
)

// A cell is one value of a listing: as a person reads it, and as CSV has it for
// programs, which is the number alone, in the unit that the column's name tells.
type cell struct{ text, plain string }

// word is a cell that reads the same for both, but for "-" and "?": they show a
// person that there is nothing, or that nobody knows, which CSV leaves empty.
func word(text string) cell {
	if text == nothing || text == unknownCell {
		return cell{text, ""}
	}
	return cell{text, text}
}

const (
	nothing     = "-"
	unknownCell = "?"
)

func counted(n uint64) cell { return cell{count(n), strconv.FormatUint(n, 10)} }

// sized is a number of bytes.
func sized(n uint64) cell { return cell{size(n), strconv.FormatUint(n, 10)} }

// shared is a share: a percentage, or the ratio alone.
func shared(part, whole uint64) cell {
	c := cell{text: percent(part, whole)}
	if whole > 0 {
		c.plain = decimal(float64(part) / float64(whole))
	}
	return c
}

// lasted is a time in milliseconds, shown as text.
func lasted(ms int64, text string) cell { return cell{text, strconv.FormatInt(ms, 10)} }

// dated is a moment in milliseconds; 0 is none.
func dated(ms int64) cell {
	if ms == 0 {
		return word(nothing)
	}
	return cell{moment(ms), time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")}
}

// measured is a figure with so many decimals and a unit, as people read it; 0 is
// none.
func measured(v float64, decimals int, unit string) cell {
	if v == 0 {
		return word(nothing)
	}
	return cell{fmt.Sprintf("%.*f%s", decimals, v, unit), decimal(v)}
}

// perSecond is a figure of which people do not want the decimals.
func perSecond(v float64) cell { return cell{count(uint64(v)), decimal(v)} }

func decimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// known is a cell of a number, or that there is none.
func known(n *uint64, of func(uint64) cell) cell {
	if n == nil {
		return word(nothing)
	}
	return of(*n)
}
