package oauth

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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

func held(t *testing.T, ports []int, id string) *callback {
	t.Helper()
	c, err := hold(t.Context(), ports, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// The port is a lock, of those alone who have the same login.
func TestThePortIsALock(t *testing.T) {
	ports := ports(t)
	c := held(t, ports, "mine")
	if _, err := hold(t.Context(), ports, "mine"); !errors.Is(err, errHeld) {
		t.Errorf("got %v", err)
	}
	other := held(t, ports, "another's")
	if c.URL == other.URL {
		t.Error("both have one port")
	}
	if _, err := hold(t.Context(), ports, "another's"); !errors.Is(err, errHeld) { // it has a later port
		t.Errorf("got %v", err)
	}
	c.Close()
	if _, err := hold(t.Context(), ports, "another's"); !errors.Is(err, errHeld) { // though the first is free
		t.Errorf("got %v", err)
	}
	held(t, ports, "mine")
}

// Programs that are not ours have ports, too.
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
			c := held(t, ports, "mine")
			c.Close()
		}
	}
	if _, err := hold(t.Context(), ports, "mine"); err == nil || !strings.Contains(err.Error(), "are in use") {
		t.Errorf("got %v", err)
	}
}

// Only the answer that is waited for ends the wait, and pages of others see nothing.
func TestCallbackRefuses(t *testing.T) {
	c := held(t, ports(t), "mine")
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
	var back answer
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
	if back.code != "x" || back.issuer != "https://as" {
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
