package ops

import (
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

//go:embed pages
var files embed.FS

// A page is the page at / for browsers, with its scripts and styles: the names of files by path. The files are static
// and the same for everybody. They fetch the data that they show, with a token if one is needed.
type page map[string]string

// The pages.
var (
	operatorsPage = pageOf("operators", "plot", "story", "tap")
	connectPage   = pageOf("connect", "entries")
)

// pageOf returns the page of that name: its HTML, its scripts, and the files of all pages.
func pageOf(name string, scripts ...string) page {
	p := page{"/": name + ".html"}
	for _, script := range append(scripts, name, "page") {
		p["/"+script+".js"] = script + ".js"
	}
	for _, shared := range []string{"page.css", "mark.svg"} {
		p["/"+shared] = shared
	}
	return p
}

// kinds are the content types, which do not depend on those of the system.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// has reports whether a path belongs to the page.
func (p page) has(path string) bool {
	_, ok := p[path]
	return ok
}

// serve answers r, whose path p has, with a status: 401 for the page that asks for a token.
func (p page) serve(w http.ResponseWriter, r *http.Request, status int) {
	name := p[r.URL.Path]
	text, _ := files.ReadFile("pages/" + name) // it is embedded
	etag := fmt.Sprintf(`"%x"`, sha256.Sum256(text))
	for header, value := range headers {
		w.Header().Set(header, value)
	}
	w.Header().Set("Content-Type", kinds[path.Ext(name)])
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Etag", etag)
	if status == http.StatusOK && slices.Contains(r.Header["If-None-Match"], etag) {
		status = http.StatusNotModified
	}
	w.WriteHeader(status)
	if status != http.StatusNotModified {
		_, _ = w.Write(text) // the browser may have disconnected
	}
}

// headers restrict a page to its own files and to the answers of the proxy. Other sites cannot show it in a frame, and
// text that it shows cannot become HTML or a script.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
}

// isForPeople reports whether a browser asks for a page to show, and not a program for data.
func isForPeople(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

// connectData is the path of the data of the page at /.
const connectData = "/connect.json"

// A ConnectPage is the page at / of serve, which says how clients connect, and to what. A client that may not
// connect gets a page that asks for the token. A nil ConnectPage has no path.
type ConnectPage struct {
	Guard interface {
		OwnPage(http.ResponseWriter, *http.Request) (who *identity.Identity, why *identity.Refusal, ok bool)
		Refuse(http.ResponseWriter, *http.Request, *identity.Refusal)
	}
	Tell func(who *identity.Identity, r *http.Request) observe.ConnectInfo // what the client may know
}

// Has reports whether r is for the page.
func (h *ConnectPage) Has(r *http.Request) bool {
	if h == nil || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	return r.URL.Path == connectData || connectPage.has(r.URL.Path)
}

// ServeHTTP implements [http.Handler]. Scripts and styles are the same for everybody and need no token. The page
// itself and its data do.
func (h *ConnectPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mustRead(w)
	who, why, ok := h.Guard.OwnPage(w, r)
	switch path := r.URL.Path; {
	case !ok:
	case path != "/" && path != connectData:
		connectPage.serve(w, r, http.StatusOK)
	case why != nil && path == "/" && why.Status == http.StatusUnauthorized && isForPeople(r):
		connectPage.serve(w, r, http.StatusUnauthorized)
	case why != nil:
		h.Guard.Refuse(w, r, why)
	case path == "/":
		connectPage.serve(w, r, http.StatusOK)
	default:
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(h.Tell(who, r)) // the browser may have disconnected
	}
}
