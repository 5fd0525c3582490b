//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// The clients' token is read again when its file changes. While the file cannot be read, all clients
// are refused, with one line in the log.
func TestTokenIsRotated(t *testing.T) {
	s := emptySite(t)
	token := s.write("token", "one")
	p := startProgram(t, nil, "serve", "--listen", "127.0.0.1:0", "--config",
		s.write("mcp-proxy.yaml", "tokenFile: token\nupstreams: {a: {command: fakeserver}}\n"))
	url := p.url()
	expect := func(token string, want int) {
		t.Helper()
		req, _ := http.NewRequest(http.MethodPost, url+"/mcp", strings.NewReader(initialize))
		for name, value := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"} {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("token %s: %s, want %d", token, resp.Status, want)
		}
	}
	defer http.DefaultClient.CloseIdleConnections()
	expect("one", http.StatusOK)
	s.write("token", "two")
	expect("one", http.StatusUnauthorized)
	expect("two", http.StatusOK)
	os.Remove(token)
	expect("two", http.StatusServiceUnavailable)
	s.write("token", "")
	expect("", http.StatusServiceUnavailable)
	if p.log.count("cannot use a token file") != 1 {
		t.Errorf("log:\n%s", p.log)
	}
	s.write("token", "three")
	expect("three", http.StatusOK)
	if p.log.count("a token file can be used again") != 1 {
		t.Errorf("log:\n%s", p.log)
	}
	for file, want := range map[string]string{
		token: "echo", s.write("wrong", "one"): "HTTP 401", s.write("a}b", "three\n"): "echo", s.write("dollar", "${HOME}"): "HTTP 401",
		s.dir + "/none": "mcp-proxy: --token-file: open " + s.dir + "/none: no such file", s.write("empty", "\n"): "mcp-proxy: --token-file: " + s.dir + "/empty is empty",
		s.write("two", "a b"): "mcp-proxy: --token-file: " + s.dir + "/two must have one word of visible ASCII characters",
	} {
		if out, _ := command(t, nil, "tools", url+"/mcp", "--token-file", file); !strings.Contains(out, want) {
			t.Errorf("with %s tools says %s", file, out)
		}
	}
}

// A host that its proxy refuses says what to do, and needs no restart afterwards.
func TestRefusedHost(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"host", "proxy"} { // which of them dials
		s := emptySite(t)
		s.write("theirs", "secret")
		s.write("ours", "other")
		if place == "proxy" {
			address := freeAddress(t)
			startProgram(t, nil, "host", "--listen", "ws://"+address+"/link", "--token-file", s.dir+"/theirs", "--", "fakeserver").hear()
			s.run(fmt.Sprintf("links: {far: {dial: 'ws://%s/link', tokenFile: ours}}\n", address))
			eventually(t, "what to do", func() bool {
				return s.log.count("HTTP 401: the host rejected our token: that in links.far.tokenFile must be the one in --token-file of the host") > 0
			})
		} else {
			s.run("links: {far: {accept: true, tokenFile: theirs}}\n")
			url := "ws" + strings.TrimPrefix(s.url, "http") + "/link"
			without := startProgram(t, nil, "host", "--dial", url, "--", "fakeserver")
			host := startProgram(t, nil, "host", "--dial", url, "--token-file", s.dir+"/ours", "--", "fakeserver")
			eventually(t, "what to do", func() bool {
				return host.log.count("HTTP 401: the proxy rejected our token: that in --token-file must be the one in links.NAME.tokenFile of the proxy") > 0
			})
			eventually(t, "what to give", func() bool {
				return without.log.count("HTTP 401: the proxy asks for a token: give --token-file with the token in links.NAME.tokenFile of the proxy") > 0
			})
		}
		s.write("ours", "secret")
		eventually(t, "the link", func() bool { return s.linkedTo("main") })
	}
}

// A host that dials something else than /link, a proxy without links, or a name that its proxy does not allow, says so.
func TestHostDialsTheWrongPlace(t *testing.T) {
	t.Parallel()
	const path, host = ": hosts dial a proxy at the path /link", ": the proxy may not allow the Host of this URL: see its allowedHosts"
	s := emptySite(t)
	token := s.write("token", "secret")
	s.run("tokenFile: " + s.write("clients", "other") + "\nlinks: {far: {accept: true, tokenFile: token}}\n")
	open := aProxy(t, 0, "upstreams: {a: {command: fakeserver}}\n")
	forbids := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	t.Cleanup(forbids.Close)
	for url, want := range map[string]string{
		s.url: "HTTP 401" + path, s.url + "/mcp": "HTTP 401" + path,
		open: "HTTP 200" + path, open + "/lnk": "HTTP 404" + path, open + "/mcp": "HTTP 400" + path,
		forbids.URL + "/link": "HTTP 403" + host,
		open + "/link":        "HTTP 404: a proxy has /link only with accept: true in one of its links",
	} {
		p := startProgram(t, nil, "host", "--dial", strings.Replace(url, "http", "ws", 1), "--token-file", token, "--", "fakeserver")
		eventually(t, want, func() bool { return p.log.count(want) > 0 })
	}
}
