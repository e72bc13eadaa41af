package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// ErrCompression: a sub-batch's data is damaged, not of the size that its
// header claims, or of a compression that the protocol does not name.
var ErrCompression = errors.New("bad compressed data")

// packer compresses sub-batches; what it returns is valid until the next call.
type packer struct {
	plain  []byte
	packed bytes.Buffer
	gzip   *gzip.Writer
	snappy *s2.Writer
	lz4    *lz4.Writer
	zstd   *zstd.Encoder
	frame  []byte // zstd's
}

// pack returns the data of a sub-batch and its size when uncompressed.
func (p *packer) pack(c chunk.Compression, messages [][]byte) (data []byte, size int, err error) {
	p.plain = p.plain[:0]
	for _, m := range messages {
		p.plain = chunk.AppendSimple(p.plain, m)
	}
	p.packed.Reset()
	switch c {
	case chunk.CompressionNone:
		return p.plain, len(p.plain), nil
	case chunk.CompressionGzip:
		if p.gzip == nil {
			p.gzip = gzip.NewWriter(nil)
		}
		p.gzip.Reset(&p.packed)
		err = writeAll(p.gzip, p.plain)
	case chunk.CompressionSnappy:
		if p.snappy == nil {
			p.snappy = s2.NewWriter(nil, s2.WriterSnappyCompat(), s2.WriterConcurrency(1))
		}
		p.snappy.Reset(&p.packed)
		err = writeAll(p.snappy, p.plain)
	case chunk.CompressionLZ4:
		if p.lz4 == nil {
			p.lz4 = lz4.NewWriter(nil)
		}
		p.lz4.Reset(&p.packed)
		err = writeAll(p.lz4, p.plain)
	case chunk.CompressionZstd:
		if p.zstd == nil {
			p.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		}
		if err == nil {
			p.frame = p.zstd.EncodeAll(p.plain, p.frame[:0])
			return p.frame, len(p.plain), nil
		}
	default:
		err = fmt.Errorf("%w: compression %d", ErrCompression, c)
	}
	return p.packed.Bytes(), len(p.plain), err
}

func writeAll(w io.WriteCloser, b []byte) error {
	_, err := w.Write(b)
	return errors.Join(err, w.Close())
}

// unpacker decompresses sub-batches; what it returns is valid until the next
// call. It never makes more bytes than a sub-batch may claim.
type unpacker struct {
	plain  []byte
	source bytes.Reader
	gzip   *gzip.Reader
	snappy *s2.Reader
	lz4    *lz4.Reader
	zstd   *zstd.Decoder
}

// unpack returns the plain bytes of a sub-batch, which must be size of them.
func (u *unpacker) unpack(c chunk.Compression, data []byte, size int) ([]byte, error) {
	if c == chunk.CompressionNone {
		return data, nil
	}
	if size > wire.SubBatchUncompressedMax {
		return nil, fmt.Errorf("%w: claim of %d bytes", ErrCompression, size)
	}
	u.source.Reset(data)
	r, err := u.reader(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompression, err)
	}
	plain := bytes.NewBuffer(u.plain[:0])
	n, err := io.Copy(plain, io.LimitReader(r, int64(size)+1))
	u.plain = plain.Bytes()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompression, err)
	}
	if n != int64(size) {
		return nil, fmt.Errorf("%w: other than the %d bytes claimed", ErrCompression, size)
	}
	return u.plain, nil
}

// reader returns the decompressor of u.source.
func (u *unpacker) reader(c chunk.Compression) (r io.Reader, err error) {
	switch c {
	case chunk.CompressionGzip:
		if u.gzip == nil {
			u.gzip = new(gzip.Reader)
		}
		return u.gzip, u.gzip.Reset(&u.source)
	case chunk.CompressionSnappy:
		if u.snappy == nil {
			u.snappy = s2.NewReader(nil)
		}
		u.snappy.Reset(&u.source)
		return u.snappy, nil
	case chunk.CompressionLZ4:
		if u.lz4 == nil {
			u.lz4 = lz4.NewReader(nil)
		}
		u.lz4.Reset(&u.source)
		return u.lz4, nil
	case chunk.CompressionZstd:
		if u.zstd == nil {
			u.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(wire.SubBatchUncompressedMax))
			if err != nil {
				return nil, err
			}
		}
		return u.zstd, u.zstd.Reset(&u.source)
	}
	return nil, fmt.Errorf("compression %d", c)
}
