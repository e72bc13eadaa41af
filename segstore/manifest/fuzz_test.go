package manifest

import (
	"bytes"
	"testing"
)

// FuzzDecodeFooter: what is taken for a footer is one, byte for byte.
func FuzzDecodeFooter(f *testing.F) {
	s := newLog().sealed(2)
	good := AppendFooter(nil, &s)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(good[1:])
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeFooter(testIncarnation, b)
		if err != nil {
			return
		}
		if again := AppendFooter(nil, &s); !bytes.Equal(again, b) {
			t.Fatalf("encoded %x\nfrom    %x", again, b)
		}
	})
}
