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

// Scan returns the first chunk in the window whose head is whole and proven by
// its CRC, whatever its data.
//
// With ok false at tells where the next window starts: where this one ends
// inside of a head that may be one, so that a window which starts there and
// holds HeadLengthMax bytes decides; otherwise close to this one's end. final
// says that nothing follows the window, so that a head it cuts is none.
func Scan(inc Incarnation, window []byte, final bool) (at int, h Header, ok bool) {
	for ; at < len(window); at++ {
		i := ScanMagic(window[at:])
		if i < 0 {
			return max(at, len(window)-(MagicLength-1)), Header{}, false
		}
		at += i
		whole := false
		if len(window)-at >= StorageHeaderLength {
			n, _, _ := lengths(window[at:])
			whole = len(window)-at >= n
			if whole && headCRC(inc, window[at:at+n]) == storedCRC(window[at:]) {
				if h, err := Decode(inc, window[at:at+n]); err == nil {
					return at, h, true
				}
			}
		}
		if !whole && !final {
			return at, Header{}, false
		}
	}
	return at, Header{}, false
}
