package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/millrace/millrace/wire"
)

// socketPair returns both ends of one TCP connection.
func socketPair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialled, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

func framed(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// What comes in small frames costs a read each, and no allocation.
func TestFrameReader_readsWithoutAllocating(t *testing.T) {
	client, server := socketPair(t)
	r := newFrameReader(server, 1<<20)
	defer r.release()
	frame := framed(make([]byte, 100))
	n := testing.AllocsPerRun(200, func() {
		if _, err := client.Write(frame); err != nil {
			t.Fatal(err)
		}
		if _, err := r.next(); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("a read allocates %v times", n)
	}
}

// A connection at rest lends its large run to others, and that is for nothing.
func TestWriter_lendsRunsWithoutAllocating(t *testing.T) {
	run := make([]byte, 0, 2*runBytesKept)
	n := testing.AllocsPerRun(200, func() {
		if run = giveRun(run); run != nil {
			t.Fatal("a large run is kept")
		}
		if run = takeRun(); run == nil { // the garbage collector was there
			run = make([]byte, 0, 2*runBytesKept)
		}
	})
	if n != 0 {
		t.Errorf("a run given and taken allocates %v times", n)
	}
}

func TestFrameReader_cutsWhatComesInAnyPieces(t *testing.T) {
	var sent []byte
	var want [][]byte
	for size := range 300 {
		payload := bytes.Repeat([]byte{byte(size)}, 4+size*size%9000)
		want = append(want, payload)
		sent = append(sent, framed(payload)...)
	}
	for _, piece := range []int{1, 7, 100, 4096, len(sent)} {
		client, server := socketPair(t)
		go func() {
			for at := 0; at < len(sent); at += piece {
				client.Write(sent[at:min(at+piece, len(sent))])
			}
			client.CloseWrite()
		}()
		reader := newFrameReader(server, 0)
		for i, payload := range want {
			got, err := reader.next()
			if err != nil || !bytes.Equal(got, payload) {
				t.Fatalf("pieces of %d: frame %d has %d bytes (%v), want %d", piece, i, len(got), err, len(payload))
			}
		}
		if _, err := reader.next(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last frame: %v, want EOF", err)
		}
		reader.release()
	}
}

func TestFrameReader_claimCostsNothing(t *testing.T) {
	for _, claim := range []uint32{0xffffffff, 0x80000000, 8193} {
		client, server := socketPair(t)
		client.Write(binary.BigEndian.AppendUint32(nil, claim))
		reader := newFrameReader(server, 8192)
		if _, err := reader.next(); !errors.Is(err, wire.ErrFrameTooLarge) {
			t.Fatalf("claim of %#x: %v, want %v", claim, err, wire.ErrFrameTooLarge)
		}
	}
	client, server := socketPair(t)
	client.Write(binary.BigEndian.AppendUint32(nil, 16<<20))
	client.Write(make([]byte, 10_000))
	client.CloseWrite()
	reader := newFrameReader(server, 0)
	if _, err := reader.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("half a frame: %v, want %v", err, io.ErrUnexpectedEOF)
	}
	if n := cap(reader.splitter.Held()); n > 16<<10 {
		t.Fatalf("10,000 bytes of a claimed 16 MiB took a buffer of %d", n)
	}
}

func TestFrameReader_idleHoldsNoBuffer(t *testing.T) {
	client, server := socketPair(t)
	reader := newFrameReader(server, 0)
	reader.idle = 30 * time.Millisecond
	client.Write(framed(make([]byte, 100_000)))
	if _, err := reader.next(); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.next(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("silence: %v, want a time-out", err)
	}
	if reader.lent != nil {
		t.Fatal("an idle reader holds a buffer")
	}
}

func TestFrameReader_dripDoesNotExtendTheTime(t *testing.T) {
	for _, row := range []struct {
		name string
		set  func(*frameReader)
	}{
		{"until", func(r *frameReader) { r.until = time.Now().Add(100 * time.Millisecond) }},
		{"whole", func(r *frameReader) { r.idle, r.whole = 10*time.Second, 100*time.Millisecond }},
	} {
		t.Run(row.name, func(t *testing.T) {
			client, server := socketPair(t)
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				client.Write([]byte{0, 0, 1, 0})
				tick := time.NewTicker(5 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-stop:
						return
					case <-tick.C:
						client.Write([]byte{0})
					}
				}
			}()
			reader := newFrameReader(server, 0)
			row.set(reader)
			if _, err := reader.next(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("drip: %v, want a time-out", err)
			}
		})
	}
}

func TestFrameReader_worksWithoutASocket(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	go func() { client.Write(framed([]byte("hello"))); client.Close() }()
	reader := newFrameReader(server, 0)
	got, err := reader.next()
	if err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := reader.next(); !errors.Is(err, io.EOF) {
		t.Fatalf("end: %v", err)
	}
}

func TestBuffers_classHoldsTheSize(t *testing.T) {
	for _, size := range []int{0, 1, 4096, 4097, 65536, 65537, 1 << 20, 1<<24 + 4} {
		lent := buffers.take(size)
		if len(lent.bytes) < size {
			t.Fatalf("asked for %d, got %d", size, len(lent.bytes))
		}
		buffers.give(lent)
	}
}
