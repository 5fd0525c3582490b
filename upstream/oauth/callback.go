package oauth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	callbackPath = "/callback"
	lockPath     = "/mcp-proxy-login"

	// A server has that many ports to which browsers may come back. There is more than one
	// because another program may use the first, and they are few because a client is
	// registered with all of them: not every authorization server takes any port of a
	// loopback address, as RFC 8252 (7.3) wants it to.
	portsEach           = 3
	firstPort, allPorts = 20000, 10000 // below those that systems give away

	probeTimeout = time.Second
	pageTimeout  = time.Second // for the last page to be sent
)

// A callback is where the browser comes back to, on this machine alone. Only one process can
// have its port, and the system takes it away from one that is gone: so it is also the lock
// of a login, among all processes of one user that have the same store.
type callback struct {
	// Static after construction.
	URL     string
	host    string // that requests must be for: another name is a page that rebinds its own
	id      string // tells others whose login this is
	srv     *http.Server
	serving sync.WaitGroup
	paging  sync.WaitGroup // of the browser that is about to have its last page
	answers chan answer    // at most one
	outcome chan error     // what to tell the browser; closed by finish

	mu    sync.Mutex // guards the field below
	state string     // of the request that is waited for; "" for none
}

// An answer is what the browser brings back (RFC 6749, 4.1.2; RFC 9207).
type answer struct {
	code, issuer string
	problem      string // the code of an error; "" for none
}

// errHeld is the error of a lock that another process of ours has.
var errHeld = errors.New("another process logs in")

// returnsOf are the redirect URIs of a login, one for each port.
func returnsOf(ports []int) (all []string) {
	for _, port := range ports {
		all = append(all, "http://127.0.0.1:"+strconv.Itoa(port)+callbackPath)
	}
	return all
}

// portsOf returns the ports for the logins of a key, which are always the same.
func portsOf(k key) (ports []int) {
	sum := sha256.Sum256([]byte("port\n" + k.name()))
	first := int(binary.BigEndian.Uint32(sum[:]))
	for i := range portsEach {
		ports = append(ports, firstPort+(first+i*(allPorts/portsEach))%allPorts)
	}
	return ports
}

// lockID is what nobody has who has another store, or logs in to something else.
func lockID(k key, store string) string {
	sum := sha256.Sum256([]byte("lock\n" + k.name() + "\n" + store))
	return hex.EncodeToString(sum[:])
}

// hold takes the lock: the first port that no other program uses. The error is errHeld if
// one of ours has it. The caller closes the callback.
func hold(ctx context.Context, ports []int, id string) (*callback, error) {
	var busy []string
	for i, port := range ports {
		for range 5 {
			ln, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err == nil {
				return newCallback(ctx, ln, id, ports[i+1:])
			}
			gone, err := probe(ctx, port, id)
			switch {
			case err != nil:
				return nil, err
			case !gone:
				busy = append(busy, strconv.Itoa(port))
			}
			if !gone {
				break
			}
		}
	}
	return nil, fmt.Errorf("no port for the browser to come back to: %s are in use", strings.Join(busy, ", "))
}

// newCallback serves the callback, unless a process of ours has a later port: it found this
// one in use.
func newCallback(ctx context.Context, ln net.Listener, id string, later []int) (*callback, error) {
	host := ln.Addr().String()
	c := &callback{URL: "http://" + host + callbackPath, host: host, id: id, answers: make(chan answer, 1), outcome: make(chan error, 1)}
	c.srv = &http.Server{Handler: c, ReadHeaderTimeout: 5 * pageTimeout, MaxHeaderBytes: 64 << 10}
	c.serving.Go(func() { _ = c.srv.Serve(ln) })
	for _, port := range later {
		if _, err := probe(ctx, port, id); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// probe asks who uses a port: errHeld if it is a process of ours with the same lock, and
// gone if it is nobody any more.
func probe(ctx context.Context, port int, id string) (gone bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(port)+lockPath, nil)
	if err != nil {
		return false, err
	}
	t := &http.Transport{DisableKeepAlives: true}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return ctx.Err() == nil, nil // it refuses the connection, or breaks it off
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 256))
	if string(text) == id {
		return false, errHeld
	}
	return false, nil
}

// expect has the callback wait for the answer to a request with that state.
func (c *callback) expect(state string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = state
}

// take reports whether an answer is the one that is waited for. It is so once.
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
	case r.URL.Path == lockPath:
		_, _ = io.WriteString(w, c.id)
	case r.URL.Path == callbackPath:
		c.back(w, r)
	default:
		http.NotFound(w, r)
	}
}

// back is called by the browser, and shows how the login has ended.
func (c *callback) back(w http.ResponseWriter, r *http.Request) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || !c.take(q.Get("state")) {
		page(w, http.StatusBadRequest, "This is not the login that mcp-proxy waits for", "It may be over already. Nothing was done.")
		return
	}
	defer c.paging.Done()
	a := answer{code: q.Get("code"), issuer: q.Get("iss")}
	if q.Has("error") {
		if a.problem = errorCode(q.Get("error")); a.problem == "" {
			a.problem = "an error"
		}
	}
	c.answers <- a
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(loginTimeout))
	select {
	case err := <-c.outcome:
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(pageTimeout))
		if err != nil {
			page(w, http.StatusBadRequest, "The login has failed", err.Error())
			return
		}
		page(w, http.StatusOK, "You are logged in", "mcp-proxy can use the server now. You can close this page.")
	case <-r.Context().Done():
	}
}

// page writes a page that has nothing but text.
func page(w http.ResponseWriter, status int, title, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	body := fmt.Sprintf("<!doctype html><meta charset=utf-8><title>%s</title><body style='font:16px sans-serif;margin:4em auto;max-width:32em'><h1>%[1]s</h1><p>%s</p>",
		html.EscapeString(title), html.EscapeString(text))
	h.Set("Content-Length", strconv.Itoa(len(body))) // so that it is all there before the connection is closed
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
	_ = http.NewResponseController(w).Flush()
}

// finish tells the browser how the login has ended, and takes no answer any more.
func (c *callback) finish(err error) {
	c.expect("")
	c.outcome <- err
	close(c.outcome)
}

// Close gives the port back, once the browser has its page. Browsers also have connections
// on which they ask nothing: these are not waited for.
func (c *callback) Close() {
	c.paging.Wait()
	c.srv.Close()
	c.serving.Wait()
}
