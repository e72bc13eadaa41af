package chunk

import (
	"crypto/sha256"
	"encoding/binary"
)

// NextDigest returns the running digest after the chunk: the first 8 bytes of
// SHA-256 over
//
//	 0          8            16        20           28       36        40
//	+----------+------------+---------+------------+--------+---------+
//	| previous | base offset| records | timestamp  | epoch  |data CRC |
//	+----------+------------+---------+------------+--------+---------+
//
// It moves once per user chunk and stays over control chunks, so compaction
// can't change it.
func NextDigest(previous Digest, h *Header) Digest {
	if h.Type != User {
		return previous
	}
	var b [40]byte
	be := binary.BigEndian
	be.PutUint64(b[0:], uint64(previous))
	be.PutUint64(b[8:], uint64(h.BaseOffset))
	be.PutUint32(b[16:], h.Records)
	be.PutUint64(b[20:], uint64(h.Timestamp))
	be.PutUint64(b[28:], uint64(h.Epoch))
	be.PutUint32(b[36:], h.DataCRC)
	sum := sha256.Sum256(b[:])
	return Digest(be.Uint64(sum[:]))
}

// DigestAfter returns the running digest after the chunk, by its own header.
func (h *Header) DigestAfter() Digest { return NextDigest(h.DigestBefore, h) }
