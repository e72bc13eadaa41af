package chunk

import (
	"encoding/binary"
	"errors"
	"testing"
)

// stamp gives an edited head a valid CRC again.
func stamp(head []byte) { binary.BigEndian.PutUint32(head[headCRCAt:], headCRC(testIncarnation, head)) }

// TestVerify_namesTheCheck has a row for each way a chunk can be wrong; restamp
// tells that the writer was at fault, not the disk.
func TestVerify_namesTheCheck(t *testing.T) {
	be := binary.BigEndian
	tests := []struct {
		name    string
		golden  string
		edit    func(head []byte)
		restamp bool
		want    error
	}{
		{"untouched", "user", nil, false, nil},
		{"magic", "user", func(b []byte) { b[1] ^= 1 }, false, ErrMagic},
		{"zeroes", "user", func(b []byte) { clear(b) }, false, ErrMagic},
		{"version 0", "user", func(b []byte) { b[3] = 0 }, true, ErrMagic},
		{"version 2, intact", "user", func(b []byte) { b[3] = 2 }, true, ErrVersion},
		{"version 2 by a flip", "user", func(b []byte) { b[3] = 2 }, false, ErrHeadCRC},
		{"data length beyond the limit", "user", func(b []byte) { be.PutUint32(b[32:], DataLengthMax+1) }, true, ErrLength},
		{"trailer length beyond the limit", "delta", func(b []byte) { be.PutUint32(b[36:], TrailerLengthMax+1) }, true, ErrLength},
		{"filter too small", "filter-trailer", func(b []byte) { b[40] = 15 }, true, ErrLength},
		{"trailer longer than the bytes at hand", "delta", func(b []byte) { b[39]++ }, false, ErrShort},
		{"type", "user", func(b []byte) { b[4] = 1 }, false, ErrHeadCRC},
		{"LSN", "user", func(b []byte) { b[15] ^= 1 }, false, ErrHeadCRC},
		{"synced LSN", "user", func(b []byte) { b[23] ^= 1 }, false, ErrHeadCRC},
		{"digest", "user", func(b []byte) { b[24] ^= 1 }, false, ErrHeadCRC},
		{"CRC itself", "user", func(b []byte) { b[44] ^= 1 }, false, ErrHeadCRC},
		{"filter", "filter-trailer", func(b []byte) { b[50] ^= 1 }, false, ErrHeadCRC},
		{"trailer", "filter-trailer", func(b []byte) { b[66] ^= 1 }, false, ErrHeadCRC},
		{"client header", "user", func(b []byte) { b[len(b)-1] ^= 1 }, false, ErrHeadCRC},
		{"reserved byte", "user", func(b []byte) { b[5] = 1 }, true, ErrReserved},
		{"reserved word", "user", func(b []byte) { b[43] = 1 }, true, ErrReserved},
		{"unknown flag", "user", func(b []byte) { b[6] = 0x80 }, true, ErrReserved},
		{"trailer length told to clients", "user", func(b []byte) { ClientHeaderOf(b)[43] = 1 }, true, ErrReserved},
		{"filter length told to clients", "user", func(b []byte) { ClientHeaderOf(b)[44] = 16 }, true, ErrReserved},
		{"client magic", "user", func(b []byte) { ClientHeaderOf(b)[0] = 0x51 }, true, ErrMalformed},
		{"two types", "user", func(b []byte) { ClientHeaderOf(b)[1] = 1 }, true, ErrMalformed},
		{"two data lengths", "user", func(b []byte) { ClientHeaderOf(b)[39]++ }, true, ErrMalformed},
		{"unknown type", "delta", func(b []byte) { b[4], ClientHeaderOf(b)[1] = 3, 3 }, true, ErrMalformed},
		{"LSN 0", "user", func(b []byte) { b[15] = 0 }, true, ErrMalformed},
		{"epoch 0", "user", func(b []byte) { ClientHeaderOf(b)[23] = 0 }, true, ErrMalformed},
		{"algorithm without a filter", "user", func(b []byte) { b[41] = 1 }, true, ErrMalformed},
		{"filter without an algorithm", "filter-trailer", func(b []byte) { b[41] = 0 }, true, ErrMalformed},
		{"offsets to the last", "user", func(b []byte) { be.PutUint64(ClientHeaderOf(b)[24:], 1<<64-3) }, true, nil},
		{"offsets wrap", "user", func(b []byte) { be.PutUint64(ClientHeaderOf(b)[24:], 1<<64-2) }, true, ErrMalformed},
		{"unit start alone", "user", func(b []byte) { b[7] = 2 }, true, ErrMalformed},
		{"user chunk starts an epoch", "user", func(b []byte) { b[7] = 4 }, true, ErrMalformed},
		{"snapshot starts an epoch", "snapshot-last", func(b []byte) { b[7] |= 4 }, true, ErrMalformed},
		{"delta ends a snapshot", "delta", func(b []byte) { b[7] = 16 }, true, ErrMalformed},
		{"stripped", "user", func(b []byte) { b[7] = 32 }, true, nil},
		{"stripped with a trailer", "filter-trailer", func(b []byte) { b[7] = 32 }, true, ErrMalformed},
		{"stripped delta", "delta", func(b []byte) { b[7] = 32 }, true, ErrMalformed},
		{"no entry", "user", func(b []byte) { ClientHeaderOf(b)[3] = 0 }, true, ErrMalformed},
		{"fewer records than entries", "user", func(b []byte) { ClientHeaderOf(b)[7] = 1 }, true, ErrMalformed},
		{"more entries than bytes", "user", func(b []byte) { ClientHeaderOf(b)[3], ClientHeaderOf(b)[7] = 6, 6 }, true, ErrMalformed},
		{"delta with records", "delta", func(b []byte) { ClientHeaderOf(b)[7] = 1 }, true, ErrMalformed},
		{"delta with a data CRC", "delta", func(b []byte) { ClientHeaderOf(b)[35] = 1 }, true, ErrMalformed},
		{"data CRC", "user", func(b []byte) { ClientHeaderOf(b)[35] ^= 1 }, true, ErrDataCRC},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			raw := golden(t, tt.golden)
			n, _, err := Peek(raw)
			if err != nil {
				t.Fatal(err)
			}
			head, data := raw[:n:n], raw[n:]
			if tt.edit != nil {
				tt.edit(head)
			}
			if tt.restamp {
				stamp(head)
			}
			if _, err := Verify(testIncarnation, head, data); !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// TestVerify_noByteIsOutside: whichever bit flips, in whatever chunk, it shows.
func TestVerify_noByteIsOutside(t *testing.T) {
	for _, g := range goldens {
		raw := golden(t, g.name)
		n, d, _ := Peek(raw)
		for bit := range 8 * len(raw) {
			raw[bit/8] ^= 0x80 >> (bit % 8)
			head, data := raw[:n:n], raw[n:n+d]
			if _, err := Verify(testIncarnation, head, data); err == nil {
				t.Fatalf("%s: flip of bit %d goes unseen", g.name, bit)
			}
			raw[bit/8] ^= 0x80 >> (bit % 8)
		}
	}
}

// TestVerify_anyCut: a chunk cut anywhere is short, and never reads past the
// cut.
func TestVerify_anyCut(t *testing.T) {
	for _, g := range goldens {
		raw := golden(t, g.name)
		n, _, _ := Peek(raw)
		for cut := range len(raw) {
			head := raw[:min(cut, n):min(cut, n)]
			data := raw[min(cut, n):cut:cut]
			h, err := Verify(testIncarnation, head, data)
			if !errors.Is(err, ErrShort) {
				t.Fatalf("%s cut at %d: %v", g.name, cut, err)
			}
			if (h.LSN != 0) != (cut >= n) {
				t.Fatalf("%s cut at %d: header %+v", g.name, cut, h)
			}
		}
	}
}

func TestVerify_surplusData(t *testing.T) {
	raw := golden(t, "user")
	n, _, _ := Peek(raw)
	if _, err := Verify(testIncarnation, raw[:n], append(raw[n:], 0)); !errors.Is(err, ErrLength) {
		t.Fatalf("got %v", err)
	}
}

func TestDecodeClient_refuses(t *testing.T) {
	raw := golden(t, "user")
	n, _, _ := Peek(raw)
	c := raw[n-ClientHeaderLength : n]
	if _, err := DecodeClient(c[:47]); !errors.Is(err, ErrShort) {
		t.Fatalf("got %v", err)
	}
	c[0] = 0x60
	if _, err := DecodeClient(c); !errors.Is(err, ErrMagic) {
		t.Fatalf("got %v", err)
	}
}

// TestCRC_startsFromIncarnation: the seed is the CRC of the incarnation's bytes
// before the content, as any CRC-32C tool can compute it. The figure is that of
// an independent program.
func TestCRC_startsFromIncarnation(t *testing.T) {
	if got := CRC(0x3132333435363738, []byte("9")); got != 0xe3069283 {
		t.Fatalf("CRC of \"123456789\" is %08x", got)
	}
}
