package admin

import (
	"embed"
	"net/http"
)

//go:embed page
var pageFiles embed.FS

// pageRoutes serve the embedded start page. Its files need no credentials:
// what it shows it asks of the API, which does.
func pageRoutes() []route {
	file := func(name string) func(*Server, http.ResponseWriter, *http.Request) error {
		return func(_ *Server, w http.ResponseWriter, req *http.Request) error {
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, req, pageFiles, "page/"+name)
			return nil
		}
	}
	return []route{
		{"GET", "/{$}", anyone, file("start.html")},
		{"GET", "/page/start.css", anyone, file("start.css")},
		{"GET", "/page/start.js", anyone, file("start.js")},
	}
}
