package node

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/millrace/config"
)

func listenOn(t *testing.T, stream string) listeners {
	t.Helper()
	c := config.Dev()
	c.StreamAddr, c.HTTPAddr, c.ManagementAddr = stream, "localhost:0", ""
	l, err := listenAll(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

func TestListen_localhostIsEveryLoopbackAddress(t *testing.T) {
	l := listenOn(t, "localhost:0")
	if len(l.management) != 0 {
		t.Error("an empty address is listened on")
	}
	port := l.stream[0].Addr().(*net.TCPAddr).Port
	for _, one := range l.stream {
		addr := one.Addr().(*net.TCPAddr)
		if addr.Port != port || !addr.IP.IsLoopback() {
			t.Errorf("listens on %s, want port %d on loopback", addr, port)
		}
		conn, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Errorf("dial %s: %v", addr, err)
			continue
		}
		conn.Close()
	}
}

func TestListen_takenPortEndsAll(t *testing.T) {
	first := listenOn(t, "127.0.0.1:0")
	c := config.Dev()
	c.HTTPAddr, c.ManagementAddr = "localhost:0", ""
	c.StreamAddr = first.stream[0].Addr().String()
	if l, err := listenAll(c); err == nil {
		l.close()
		t.Error("a taken port is listened on")
	}
}

// TestListen_smallReceiveBuffers sends a lot to a client that shrinks its
// receive buffer after it has connected, as the official Go client does. With
// segments larger than such a window this takes a minute.
func TestListen_smallReceiveBuffers(t *testing.T) {
	const size = 4 << 20
	l := listenOn(t, "127.0.0.1:0").stream[0]
	sent := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = conn.Write(make([]byte, size))
			conn.Close()
		}
		sent <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(8192); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(15 * time.Second)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	n, err := io.Copy(io.Discard, conn)
	if err != nil || n != size {
		t.Fatalf("%d of %d bytes came: %v", n, size, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	t.Logf("FIGURE small receive buffer: %d MiB came in %d ms", size>>20, time.Since(begin).Milliseconds())
}
