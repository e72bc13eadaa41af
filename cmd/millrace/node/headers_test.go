package node

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestServeHTTP_boundsHeaders(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{log: hclog.NewNullLogger()}
	n.serveHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), []net.Listener{l})
	t.Cleanup(func() {
		n.https[0].Close()
		n.serving.Wait()
	})
	for bytes, want := range map[int]int{headerBytesMax / 2: http.StatusOK, headerBytesMax + 8<<10: http.StatusRequestHeaderFieldsTooLarge} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Long", strings.Repeat("x", bytes))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%d bytes of headers: %d, want %d", bytes, res.StatusCode, want)
		}
	}
}
