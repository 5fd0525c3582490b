package oauth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

const (
	callbackPath = "/callback"

	// Each login has portsEach ports for the redirect of the browser. There is more than one, because another program
	// may use the first. There are few, because a client is registered with all of them: not every authorization
	// server accepts any port of a loopback address, as RFC 8252 (7.3) demands.
	portsEach           = 3
	firstPort, allPorts = 20000, 10000 // below the ephemeral ports

	pageTimeout = time.Second // to send the last page
)

// A callback serves the redirect URI, on this machine only.
type callback struct {
	// Static after construction.
	URL     string
	host    string // the only Host to serve: a page that rebinds its DNS name sends another one
	srv     *http.Server
	serving sync.WaitGroup
	paging  sync.WaitGroup  // the browser waits for its last page
	answers chan url.Values // at most one; RFC 6749, 4.1.2
	outcome chan error      // what to show in the browser; closed by finish

	mu    sync.Mutex // guards the field below
	state string     // the expected one; "" for none
}

// redirectURIs returns the redirect URIs of a login, one for each port.
func redirectURIs(ports []int) (all []string) {
	for _, port := range ports {
		all = append(all, "http://127.0.0.1:"+strconv.Itoa(port)+callbackPath)
	}
	return all
}

// portsOf returns the ports for the logins of a key. They are always the same.
func portsOf(k key) (ports []int) {
	sum := sha256.Sum256([]byte("port\n" + k.name()))
	first := int(binary.BigEndian.Uint32(sum[:]))
	for i := range portsEach {
		ports = append(ports, firstPort+(first+i*(allPorts/portsEach))%allPorts)
	}
	return ports
}

// newCallback serves a callback at the first free port.
func newCallback(ports []int) (*callback, error) {
	for _, port := range ports {
		ln, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		host := ln.Addr().String()
		c := &callback{
			URL: "http://" + host + callbackPath, host: host, answers: make(chan url.Values, 1), outcome: make(chan error, 1),
		}
		c.srv = &http.Server{Handler: c, ReadHeaderTimeout: 5 * pageTimeout, MaxHeaderBytes: 64 << 10}
		c.serving.Go(func() { _ = c.srv.Serve(ln) })
		return c, nil
	}
	return nil, fmt.Errorf("no free port for the redirect of the browser: %v are in use", ports)
}

// expect sets the state of the answer to wait for.
func (c *callback) expect(state string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = state
}

// take reports whether an answer has the expected state. Each state is taken once.
func (c *callback) take(state string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	mine := c.state != "" && subtle.ConstantTimeCompare([]byte(c.state), []byte(state)) == 1
	if mine {
		c.state = ""
		c.paging.Add(1)
	}
	return mine
}

// ServeHTTP implements http.Handler.
func (c *callback) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, port, _ := net.SplitHostPort(c.host)
	switch {
	case r.Host != c.host && r.Host != "localhost:"+port:
		http.Error(w, "wrong host", http.StatusForbidden)
	case r.Method != http.MethodGet:
		http.Error(w, "GET only", http.StatusMethodNotAllowed)
	case r.URL.Path == callbackPath:
		c.back(w, r)
	default:
		http.NotFound(w, r)
	}
}

// back takes the browser's answer, and shows the result of the login.
func (c *callback) back(w http.ResponseWriter, r *http.Request) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || !c.take(q.Get("state")) {
		page(w, http.StatusBadRequest, "mcp-proxy does not wait for this login", "It may have ended. Nothing was changed.")
		return
	}
	defer c.paging.Done()
	c.answers <- q
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(loginTimeout))
	select {
	case err := <-c.outcome:
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(pageTimeout))
		if err != nil {
			page(w, http.StatusBadRequest, "The login failed", err.Error())
			return
		}
		page(w, http.StatusOK, "You are logged in", "mcp-proxy can use the server now. You can close this page.")
	case <-r.Context().Done():
	}
}

// page writes a page of text.
func page(w http.ResponseWriter, status int, title, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	const style = "font:16px sans-serif;margin:4em auto;max-width:32em"
	body := fmt.Sprintf("<!doctype html><meta charset=utf-8><title>%s</title><body style='%s'><h1>%[1]s</h1><p>%[3]s</p>",
		html.EscapeString(title), style, html.EscapeString(text))
	h.Set("Content-Length", strconv.Itoa(len(body))) // so that the browser has it all before the connection closes
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
	_ = http.NewResponseController(w).Flush()
}

// finish shows the result of the login in the browser. No more answers are taken.
func (c *callback) finish(err error) {
	c.expect("")
	c.outcome <- err
	close(c.outcome)
}

// Close frees the port once the browser has its page. It does not wait for idle connections of the browser.
func (c *callback) Close() {
	c.paging.Wait()
	c.srv.Close()
	c.serving.Wait()
}
