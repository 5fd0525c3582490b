package oauth

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func ports(t *testing.T) []int {
	t.Helper()
	return portsOf(key{server: fmt.Sprintf("https://%s-%d.example.com/mcp", t.Name(), os.Getpid())}) // this test may run twice at once
}

func open(t *testing.T, ports []int) *callback {
	t.Helper()
	c, err := newCallback(ports)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// One process at a time prompts for a login, and others with the same ports get another port.
func TestOneProcessPrompts(t *testing.T) {
	s, mine, other := &Store{Dir: t.TempDir()}, key{server: "https://mine.example.com"}, key{server: "https://other.example.com"}
	unlock, err := s.lockLogin(mine)
	if err != nil || unlock == nil {
		t.Fatalf("got %v", err)
	}
	if second, err := s.lockLogin(mine); err != nil || second != nil {
		t.Errorf("the lock was taken twice, %v", err)
	}
	for name, lock := range map[string]func() (func(), error){
		"another login": func() (func(), error) { return s.lockLogin(other) },
		"another store": func() (func(), error) { return (&Store{Dir: t.TempDir()}).lockLogin(mine) },
		"the record":    func() (func(), error) { return s.lock(t.Context(), mine) },
	} {
		if unlock, err := lock(); err != nil || unlock == nil {
			t.Errorf("%s is locked, %v", name, err)
		} else {
			unlock()
		}
	}
	unlock()
	if unlock, err = s.lockLogin(mine); err != nil || unlock == nil {
		t.Fatalf("the lock was not freed, %v", err)
	}
	unlock()
	ports := ports(t)
	if first, second := open(t, ports), open(t, ports); first.URL == second.URL {
		t.Error("both have one port")
	}
}

// Other programs may use our ports.
func TestPortsOfOthers(t *testing.T) {
	ports := ports(t)
	for _, port := range ports {
		ln, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			t.Skip(err)
		}
		srv := httptest.NewUnstartedServer(http.NotFoundHandler())
		srv.Listener.Close()
		srv.Listener = ln
		srv.Start()
		defer srv.Close()
		if port != ports[len(ports)-1] {
			c := open(t, ports)
			c.Close()
		}
	}
	if _, err := newCallback(ports); err == nil || !strings.Contains(err.Error(), "are in use") {
		t.Errorf("got %v", err)
	}
}

// Only the expected answer ends the wait, and pages of other sites learn nothing.
func TestCallbackRefuses(t *testing.T) {
	c := open(t, ports(t))
	c.expect("right")
	for _, tt := range []struct {
		method, path, host string
		status             int
	}{
		{"GET", "/callback?state=right&code=x", "evil.example.com", 403},
		{"GET", "/callback?state=right&code=x", "127.0.0.1", 403},
		{"POST", "/callback?state=right&code=x", "", 405},
		{"GET", "/callback?state=wrong&code=x", "", 400},
		{"GET", "/callback?code=x", "", 400},
		{"GET", "/callback?state=&code=x", "", 400},
		{"GET", "/callback?state=wrong&error=access_denied", "", 400},
		{"GET", "/callback?%zz", "", 400},
		{"GET", "/", "", 404},
	} {
		req, _ := http.NewRequest(tt.method, strings.TrimSuffix(c.URL, callbackPath)+tt.path, nil)
		req.Host = tt.host
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.status {
			t.Errorf("%v: HTTP %d", tt, resp.StatusCode)
		}
	}
	select {
	case a := <-c.answers:
		t.Errorf("got %v", a)
	default:
	}
	var back url.Values
	var answered sync.WaitGroup
	answered.Go(func() {
		back = <-c.answers
		c.finish(errors.New("<b>why</b>"))
	})
	resp, err := http.Get(c.URL + "?state=right&code=x&iss=https%3A%2F%2Fas")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	answered.Wait()
	if back.Get("code") != "x" || back.Get("iss") != "https://as" {
		t.Errorf("got %v", back)
	}
	if !strings.Contains(string(text), "&lt;b&gt;why") || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("got %s", text)
	}
}

func TestBrowsers(t *testing.T) {
	t.Setenv("BROWSER", "/none/at/all --new %s:true")
	if !openBrowser("https://example.com/") {
		t.Error("no browser was opened")
	}
	t.Setenv("BROWSER", "/none/at/all")
	if openBrowser("https://example.com/") {
		t.Error("a browser was opened")
	}
}
