package admin

import (
	"embed"
	"net/http"
)

//go:embed page
var pageFiles embed.FS

// pageRoutes serve the embedded start page. It needs credentials though it holds
// nothing itself: browsers then ask for them once, and send them along with
// what the page asks of the API.
func pageRoutes() []route {
	file := func(name string) func(*Server, http.ResponseWriter, *http.Request) error {
		return func(_ *Server, w http.ResponseWriter, req *http.Request) error {
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeFileFS(w, req, pageFiles, "page/"+name)
			return nil
		}
	}
	return []route{
		{"GET", "/{$}", operator, here, file("start.html")},
		{"GET", "/page/start.css", anyone, here, file("start.css")},
		{"GET", "/page/start.js", anyone, here, file("start.js")},
	}
}
