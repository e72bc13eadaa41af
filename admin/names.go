package admin

import (
	"net/http"
	"net/url"
	"strings"
)

// Names in paths are percent-encoded, and the most common virtual host is "/".
// ServeMux takes a segment that decodes to exactly "/" for the end of a path,
// so a segment of slashes alone gets one more on the way in (slashNames), which
// pathName takes away again.

// slashNames lets the routes behind it see segments like %2F.
func slashNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		segments := strings.Split(req.URL.EscapedPath(), "/")
		changed := false
		for i, segment := range segments {
			if name, err := url.PathUnescape(segment); err == nil && onlySlashes(name) {
				segments[i], changed = segment+"%2F", true
			}
		}
		if !changed {
			next.ServeHTTP(w, req)
			return
		}
		raw := strings.Join(segments, "/")
		path, err := url.PathUnescape(raw)
		if err != nil {
			http.Error(w, "malformed path", http.StatusBadRequest)
			return
		}
		rewritten := *req.URL
		rewritten.Path, rewritten.RawPath = path, raw
		inner := req.Clone(req.Context())
		inner.URL = &rewritten
		next.ServeHTTP(w, inner)
	})
}

// pathName is the decoded name that the route's wildcard matched.
func pathName(req *http.Request, wildcard string) string {
	name := req.PathValue(wildcard)
	if onlySlashes(name) {
		return name[1:]
	}
	return name
}

func onlySlashes(name string) bool { return name != "" && strings.Trim(name, "/") == "" }
