package ops

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What a page refers to belongs to it, and nothing else: no other site, no script or style
// within the HTML.
func TestPagesAreWhole(t *testing.T) {
	refers := regexp.MustCompile(`(?:src|href)="([^"#]+)"|from "(\.[^"]+)"`)
	inline := regexp.MustCompile(`(?i)<style|<script[^>]*>[^<]|\sstyle=|\son[a-z]+=|javascript:|innerHTML`)
	for _, p := range []page{operatorsPage, connectPage} {
		for path, name := range p {
			text, err := files.ReadFile("pages/" + name)
			if err != nil {
				t.Error(err)
			}
			for _, m := range refers.FindAllStringSubmatch(string(text), -1) {
				to := "/" + strings.TrimPrefix(m[1]+m[2], "./")
				if !p.has(to) {
					t.Errorf("%s refers to %s, which does not belong to it", path, to)
				}
			}
			if found := inline.FindString(string(text)); found != "" {
				t.Errorf("%s has %q, which its policy forbids", path, found)
			}
			if kinds[filepath.Ext(name)] == "" || len(text) == 0 {
				t.Errorf("%s is nothing", path)
			}
		}
	}
}

func TestServe(t *testing.T) {
	ask := func(path string, status int, header ...string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		operatorsPage.serve(w, r, status)
		return w
	}
	first := ask("/", http.StatusOK)
	if policy := first.Header().Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Error(policy)
	}
	etag := first.Header().Get("Etag")
	if again := ask("/", http.StatusOK, "If-None-Match", etag); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
		t.Errorf("%d with %d bytes, want 304 and none", again.Code, again.Body.Len())
	}
	if refused := ask("/", http.StatusUnauthorized, "If-None-Match", etag); refused.Code != http.StatusUnauthorized || refused.Body.Len() == 0 {
		t.Errorf("%d with %d bytes, want 401 and the page", refused.Code, refused.Body.Len())
	}
	if kind := ask("/page.js", http.StatusOK).Header().Get("Content-Type"); kind != "text/javascript; charset=utf-8" {
		t.Error(kind)
	}
}
