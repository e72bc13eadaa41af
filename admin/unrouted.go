package admin

import (
	"fmt"
	"net/http"
	"strings"
)

// unrouted answers calls that the API does not have as it answers all others:
// in JSON, with the mux's status (404, or 405 and what is allowed).
func unrouted(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h, pattern := mux.Handler(req)
		if pattern != "" || !strings.HasPrefix(req.URL.Path, "/api/") {
			mux.ServeHTTP(w, req)
			return
		}
		status := statusOnly{ResponseWriter: w, status: http.StatusNotFound}
		h.ServeHTTP(&status, req)
		writeJSON(w, status.status, Failure{
			Code: "no_such_call", Message: fmt.Sprintf("%s %s is no call of this API", req.Method, req.URL.Path), Try: "see /api/v1/openapi.yaml",
		})
	})
}

// statusOnly keeps an answer's headers and status, and drops the rest.
type statusOnly struct {
	http.ResponseWriter
	status int
}

func (s *statusOnly) WriteHeader(status int)      { s.status = status }
func (s *statusOnly) Write(p []byte) (int, error) { return len(p), nil }
