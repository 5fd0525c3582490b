package remote

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHeaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, "Bearer one\r\n")
	s := &Server{
		Headers:     map[string]string{"X-A": "a", "authorization": "never", "Mcp-Session-Id": "no", "User-Agent": "me"},
		HeadersFrom: map[string]string{"Authorization": path},
	}
	h, err := s.prepare().headers.read()
	if err != nil || h.Get("X-A") != "a" || h.Get("Authorization") != "Bearer one" {
		t.Errorf("header is %v, %v", h, err)
	}
	write(t, path, "Bearer three") // another size
	lastHour := time.Now().Add(-time.Hour)
	os.Chtimes(path, lastHour, lastHour) // what has just changed is always read again
	if h, _ := s.prepare().headers.read(); h.Get("Authorization") != "Bearer three" {
		t.Errorf("header is %v", h)
	}
	info, _ := os.Stat(path)
	write(t, path, "Bearer tthre")
	os.Chtimes(path, info.ModTime(), info.ModTime())
	if h, _ := s.prepare().headers.read(); h.Get("Authorization") != "Bearer three" {
		t.Errorf("header is %v: it was read though nothing shows that it changed", h)
	}
	s.prepare().headers.refused()
	if h, _ := s.prepare().headers.read(); h.Get("Authorization") != "Bearer tthre" {
		t.Errorf("header is %v", h)
	}
	write(t, path, "Bearer tthre")
	os.Chtimes(path, time.Now(), info.ModTime().Add(time.Hour))
	if h, err := s.prepare().headers.read(); err != nil || h.Get("Authorization") != "Bearer tthre" {
		t.Errorf("header is %v, %v", h, err)
	}
}

func TestBadHeaders(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "control"), "sec\nret")
	write(t, filepath.Join(dir, "long"), strings.Repeat("secret", 20000))
	write(t, filepath.Join(dir, "empty"), "\n")
	for _, name := range []string{"control", "empty", "long", "missing"} {
		s := &Server{HeadersFrom: map[string]string{"X-Key": filepath.Join(dir, name)}}
		_, err := s.prepare().headers.read()
		if CheckHeaderFile(filepath.Join(dir, name)) == nil {
			t.Errorf("%s: the check finds nothing", name)
		}
		if err == nil || !strings.Contains(err.Error(), "X-Key") || strings.Count(err.Error(), filepath.Join(dir, name)) != 1 || strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: %v", name, err)
		}
	}
	device := &Server{HeadersFrom: map[string]string{"X-Key": os.DevNull}}
	if _, err := device.prepare().headers.read(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a device: %v", err)
	}
	s := &Server{Headers: map[string]string{"X-Key": "sec\x00ret"}}
	if _, err := s.prepare().headers.read(); err == nil || strings.Contains(err.Error(), "sec") {
		t.Errorf("control character: %v", err)
	}
}

func TestRotatedToken(t *testing.T) {
	f := newFake(t)
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, "old\n")
	want := "old"
	f.any = func(w http.ResponseWriter, r *http.Request) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.Header.Get("X-Token") != want || r.Header.Get("Mcp-Session-Id") == "no" || r.Host != "virtual.example" {
			w.WriteHeader(401)
			return true
		}
		return false
	}
	s, _ := server(t, f.URL)
	s.Headers = map[string]string{"mcp-session-id": "no", "Host": "virtual.example"}
	s.HeadersFrom = map[string]string{"x-token": path}
	c := shaken(t, s)
	f.mu.Lock()
	want = "new"
	f.mu.Unlock()
	c.request(1, "ping", "")
	wantError(t, c.recv(), 1, closed, "HTTP 401", jsonrpc.InFlight)
	write(t, path, "new\n")
	c.request(2, "ping", "")
	wantResult(t, c.recv(), 2, `{}`)
	os.Remove(path)
	c.request(3, "ping", "")
	wantError(t, c.recv(), 3, closed, "bad header file", jsonrpc.NotSent)
}
