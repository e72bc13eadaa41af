package chunk

import "bytes"

var magicBytes = []byte{magic >> 24, magic >> 16 & 0xff, magic >> 8 & 0xff}

// ScanMagic returns the index of the next place in the window that may start a
// chunk: the magic is there and, as far as the window shows them, the lengths
// are within the limits. It returns −1 if there is none. A magic that the
// window's end cuts is found by the next window if it overlaps this one by
// MagicLength − 1 bytes.
func ScanMagic(window []byte) int {
	for at := 0; ; at++ {
		i := bytes.Index(window[at:], magicBytes)
		if i < 0 {
			return -1
		}
		at += i
		if plausible(window[at:]) {
			return at
		}
	}
}

// plausible is Peek without an error to build, and with what is cut short
// taken for good: a scan meets the magic in any number of places.
func plausible(b []byte) bool {
	if len(b) <= MagicLength {
		return true
	}
	if b[MagicLength] == 0 {
		return false
	}
	if len(b) < StorageHeaderLength {
		return true
	}
	_, _, ok := lengths(b)
	return ok
}

// Scan returns the next chunk in the window at or after from whose head is
// whole and proven by its CRC, whatever its data. Where the window ends inside
// of a plausible head, ok is false and at is that head's index: the next window
// starts there. Otherwise, with nothing found, at is where the next window
// may start.
func Scan(inc Incarnation, window []byte, from int) (at int, h Header, ok bool) {
	for at = from; at < len(window); at++ {
		i := ScanMagic(window[at:])
		if i < 0 {
			return max(from, len(window)-(MagicLength-1)), Header{}, false
		}
		at += i
		if len(window)-at < StorageHeaderLength {
			return at, Header{}, false
		}
		head, _, _ := lengths(window[at:])
		if len(window)-at < head {
			return at, Header{}, false
		}
		if headCRC(inc, window[at:at+head]) != storedCRC(window[at:]) {
			continue
		}
		if h, err := Decode(inc, window[at:at+head]); err == nil {
			return at, h, true
		}
	}
	return at, Header{}, false
}
