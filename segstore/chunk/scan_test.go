package chunk

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestScan finds each whole chunk behind damage, and nothing that only looks
// like one.
func TestScan(t *testing.T) {
	user, delta := golden(t, "user"), golden(t, "delta")
	damaged := bytes.Clone(user)
	damaged[20] ^= 1
	foreign := bytes.Clone(user)
	Restamp(testIncarnation+1, foreign[:HeadLengthMin], 1)
	zeroVersion := append(bytes.Clone(magicBytes), 0)
	hugeLength := bytes.Clone(user)
	binary.BigEndian.PutUint32(hugeLength[32:], DataLengthMax+1)
	tests := []struct {
		name   string
		final  bool
		window []byte
		at     int
		lsn    LSN
	}{
		{"at once", false, user, 0, 42},
		{"behind rubbish", false, append([]byte("rubbish"), user...), 7, 42},
		{"behind magics", true, append(bytes.Repeat(magicBytes, 9), user...), 27, 42},
		{"behind a version 0", false, append(zeroVersion, user...), 4, 42},
		{"behind a huge length", false, append(hugeLength, user...), len(hugeLength), 42},
		{"behind a damaged chunk", false, append(damaged, delta...), len(user), 46},
		{"behind a message that holds another stream's chunk", false, append(foreign, delta...), len(user), 46},
		{"head's end cut away", false, user[:HeadLengthMin-1], 0, 0},
		{"storage header cut", false, user[:20], 0, 0},
		{"magic cut", false, append([]byte("rubbish"), magicBytes[:2]...), 7, 0},
		{"head's end cut away for good", true, user[:HeadLengthMin-1], HeadLengthMin - 3, 0},
		{"nothing", false, make([]byte, 100), 98, 0},
		{"empty", false, nil, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			at, h, ok := Scan(testIncarnation, tt.window, tt.final)
			if at != tt.at || h.LSN != tt.lsn || ok != (tt.lsn != 0) {
				t.Fatalf("at %d, LSN %d, %t", at, h.LSN, ok)
			}
		})
	}
}

// TestScan_inWindows: reading a file window by window finds what one window
// would, wherever the borders fall.
func TestScan_inWindows(t *testing.T) {
	var file []byte
	var want []LSN
	for _, g := range goldens {
		file = append(append(file, "noise\xd3M"...), golden(t, g.name)...)
		want = append(want, g.want.LSN)
	}
	for size := 300; size < 340; size++ {
		var got []LSN
		for from := 0; from < len(file); {
			window := file[from:min(from+size, len(file))]
			at, h, ok := Scan(testIncarnation, window, from+size >= len(file))
			if ok {
				got = append(got, h.LSN)
				at += h.HeadLength()
			} else if from+size >= len(file) {
				break
			}
			if from += at; at == 0 {
				t.Fatalf("windows of %d: no progress at %d", size, from)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("windows of %d: found %v of %v", size, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("windows of %d: found %v of %v", size, got, want)
			}
		}
	}
}

func TestScanMagic(t *testing.T) {
	user := golden(t, "user")
	hugeFilter := bytes.Clone(user)
	hugeFilter[40] = 3
	for _, tt := range []struct {
		name   string
		window []byte
		want   int
	}{
		{"nothing", make([]byte, 1000), -1},
		{"at once", user, 0},
		{"version 0", append(bytes.Clone(magicBytes), 0), -1},
		{"no version yet", magicBytes, 0},
		{"lengths out of limits", hugeFilter, -1},
		{"lengths cut away", hugeFilter[:40], 0},
	} {
		if at := ScanMagic(tt.window); at != tt.want {
			t.Errorf("%s: found at %d, want %d", tt.name, at, tt.want)
		}
	}
}
