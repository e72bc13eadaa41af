package admin

import (
	"net/http"
	"testing"
)

func TestHosts_includeNoSites(t *testing.T) {
	h := hostsOf([]string{"n1", "Broker.Example.com.", "", "::"})
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:7080": true, "[::1]": true, "[::1]:7080": true, "[fe80::1%25eth0]:7080": true, "192.0.2.1:7080": true,
		"localhost": true, "LOCALHOST:7080": true, "localhost.": true, "a.localhost:7080": true,
		"n1": true, "n1:7080": true, "broker.example.com": true, "BROKER.example.com.:7080": true,
		"": false, ":7080": false, ".": false, "rebound.example": false, "rebound.example:7080": false, "localhost.rebound.example": false,
		"n1.rebound.example": false, "127.0.0.1.rebound.example": false, "notlocalhost": false, "x.broker.example.com": false, "example.com": false,
	} {
		if got := h.include(host); got != want {
			t.Errorf("%q: %v, want %v", host, got, want)
		}
	}
}

func TestHandlers_refuseOtherHosts(t *testing.T) {
	s := newHouse(t).server()
	for _, row := range []struct {
		name         string
		handler      http.Handler
		method, path string
		status       int
	}{
		{"the API", s.Handler(), "GET", "/api/v1/status", 421},
		{"changes", s.Handler(), "POST", "/api/v1/streams", 421},
		{"the page", s.Handler(), "GET", "/", 421},
		{"profiles", s.Handler(), "GET", "/debug/pprof/heap", 421},
		{"the management API", s.ManagementHandler(), "GET", "/api/connections", 421},
		{"what that lacks", s.ManagementHandler(), "GET", "/api/overview", 421},
		{"probes", s.Handler(), "GET", "/healthz", 200},
		{"readiness", s.Handler(), "GET", "/readyz", 200},
		{"Prometheus", s.Handler(), "GET", "/metrics", 200},
	} {
		for _, proven := range []bool{true, false} {
			req := newRequest(t, row.method, row.path, "")
			req.Host = "rebound.example:7080"
			if proven {
				req.SetBasicAuth("root", "secret")
			}
			if got := serve(row.handler, req); got != row.status {
				t.Errorf("%s (with a password: %v): %d, want %d", row.name, proven, got, row.status)
			}
		}
	}
}
