package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A response is what carries messages to the client, and can be resumed in the legacy era.
type response struct {
	// The mutex of the wire guards all.
	stop    context.CancelFunc // of the connection that carries it
	last    string             // the id of the last event
	resumes bool               // the client opens it again when its connection ends
}

// posts are Streamable HTTP of either era: a POST for each message. The wire ends by itself
// when the server does not know its session.
type posts struct {
	url    string
	tokens func() string // another one when one has expired
	modern bool
	to     receiver

	// lenient is for a proxy that may not be ours: another status than 404 refuses one message and ends no session, a
	// GET need not be answered, a response without an answer is no answer, and a DELETE need not end streams.
	lenient bool

	// balanced is for several proxies behind one address: a request may be lost with one of them, and the session goes on
	// until its id is unknown. What is no request is sent again after a 503, which says that nothing ran.
	balanced bool
	plant    *plant

	client *http.Client
	all    context.Context // of all POSTs
	drop   context.CancelCauseFunc
	done   sync.WaitGroup // exchanges

	mu      sync.Mutex
	token   string
	session string
	open    map[string]*response // of requests, by id; "" is the stream of a GET
	last    bool                 // no exchange begins any more
	over    sync.Once            // tells the receiver of the end
}

func newPosts(url string, tokens func() string, modern bool, to receiver) *posts {
	w := &posts{url: url, tokens: tokens, token: tokens(), modern: modern, to: to, open: map[string]*response{}}
	w.client = &http.Client{Transport: &http.Transport{}}
	w.all, w.drop = context.WithCancelCause(context.Background())
	return w
}

func (w *posts) send(m *message) {
	id, isRequest := string(m.ID), m.isRequest()
	if w.modern && !isRequest {
		return // that era has none of these over HTTP
	}
	body := m.bytes()
	ctx, cancel := context.WithCancel(w.all)
	at := &response{stop: cancel}
	if isRequest {
		w.mu.Lock()
		w.open[id] = at
		w.mu.Unlock()
	}
	name := ""
	if p, err := m.params(); err == nil {
		name = cmp.Or(p.Name, p.TaskID)
	}
	if w.plant.repeats(m) {
		w.begin(func() { _, _ = w.post(w.all, body, w.header(m.Method, name), &response{}) })
	}
	w.begin(func() {
		defer cancel()
		if w.plant.forgets(m) {
			w.end(errors.New("POST: HTTP 404, planted"))
			return
		}
		answered, err := w.post(ctx, body, w.header(m.Method, name), at)
		for w.balanced && !isRequest && isLater(err) {
			sleep(ctx, pauseBalanced)
			_, err = w.post(ctx, body, w.header(m.Method, name), at)
		}
		if ctx.Err() != nil && !answered && w.resumes(at) {
			ctx = w.all
			answered, err = w.resume(ctx, at)
		}
		switch {
		case ctx.Err() != nil:
		case err != nil && w.goesOn(err):
			if isRequest {
				w.to.refused(id, err.Error())
			}
		case err != nil:
			w.end(fmt.Errorf("POST %s: %w", m.Method, err))
		case isRequest && !answered && !w.lenient:
			w.to.refused(id, "the response ends without an answer")
		}
	})
}

// pauseBalanced is between two attempts to reach one of several proxies.
const pauseBalanced = 100 * time.Millisecond

// goesOn reports whether an error is that of one message alone.
func (w *posts) goesOn(err error) bool {
	var status statusError
	isStatus := errors.As(err, &status)
	return (w.balanced || w.lenient && isStatus) && status.code != http.StatusNotFound
}

// isLater reports whether an error says that the message may be sent again.
func isLater(err error) bool {
	var status statusError
	return errors.As(err, &status) && status.later
}

// isExpired reports whether an error says that nobody has the rest of a response any more.
func isExpired(err error) bool {
	var status statusError
	return errors.As(err, &status) && status.code == http.StatusBadRequest
}

// resume gets the rest of a response. Its stream ends with the proof of who its client is, too, or with its replica.
func (w *posts) resume(ctx context.Context, at *response) (answered bool, err error) {
	for ctx.Err() == nil && !answered && err == nil {
		answered, err = w.get(ctx, at)
		if w.balanced && !answered && (err == nil || w.goesOn(err) && !isExpired(err)) {
			err = nil
			sleep(ctx, pauseBalanced)
		}
	}
	return answered, err
}

func (w *posts) header(method, name string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if w.modern {
		h["Mcp-Protocol-Version"], h["Mcp-Method"] = []string{modernVersion}, []string{method}
		if name != "" {
			h["Mcp-Name"] = []string{name}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.token != "" {
		h["Authorization"] = []string{"Bearer " + w.token}
	}
	if w.session != "" {
		h["Mcp-Session-Id"] = []string{w.session}
	}
	return h
}

// renew gets another token for one that was refused, if there is one. Another POST may have done so already.
func (w *posts) renew(refused http.Header) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := refused.Get("Authorization")
	if old == "Bearer "+w.token {
		w.token = w.tokens()
	}
	refused.Set("Authorization", "Bearer "+w.token)
	return old != "Bearer "+w.token
}

// post returns whether a response was among the messages that it received.
func (w *posts) post(ctx context.Context, body []byte, header http.Header, at *response) (answered bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header = header
	resp, err := w.client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized && w.renew(header) {
		return w.post(ctx, body, header, at)
	}
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		w.mu.Lock()
		w.session = id
		w.mu.Unlock()
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return readEvents(linesOf(resp.Body), w.to, w.seen(at))
	}
	text, err := io.ReadAll(resp.Body)
	var m message
	switch {
	case err != nil || resp.StatusCode == http.StatusAccepted:
		return false, err
	case json.Unmarshal(text, &m) == nil && m.ID != nil && string(m.ID) != "null" && !(w.lenient && w.unknown(&m)):
		w.to.receive(&m)
		return true, nil
	default:
		return false, statusOf(resp, text)
	}
}

func statusOf(resp *http.Response, text []byte) error {
	return statusError{resp.StatusCode, string(text), resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != ""}
}

// unknown reports whether a response belongs to no request: one whose status says more.
func (w *posts) unknown(m *message) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return m.isResponse() && w.open[string(m.ID)] == nil
}

// A statusError is a response whose status says that there is no message in it.
type statusError struct {
	code  int
	text  string
	later bool // it says that nothing ran, and that the client may try again
}

func (e statusError) Error() string {
	if e.later {
		return fmt.Sprintf("HTTP %d with Retry-After: %s", e.code, e.text)
	}
	return fmt.Sprintf("HTTP %d: %s", e.code, e.text)
}

// seen notes the id of an event.
func (w *posts) seen(at *response) func(id string) {
	return func(id string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		at.last = id
	}
}

func (w *posts) resumes(at *response) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return at.resumes
}

// get resumes a response, or opens the stream of what belongs to no request, and returns whether a response was
// among the messages that it received.
func (w *posts) get(ctx context.Context, at *response) (answered bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url, nil)
	if err != nil {
		return false, err
	}
	req.Header = w.header("", "")
	w.mu.Lock()
	if at.last != "" {
		req.Header.Set("Last-Event-ID", at.last)
	}
	w.mu.Unlock()
	resp, err := w.client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized && w.renew(req.Header) {
		return w.get(ctx, at)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return false, fmt.Errorf("GET: %w", statusOf(resp, text))
	}
	return readEvents(linesOf(resp.Body), w.to, w.seen(at))
}

// listen keeps the stream open that carries what belongs to no request of a legacy client.
func (w *posts) listen() {
	at := &response{resumes: true}
	w.begin(func() {
		for w.all.Err() == nil {
			ctx, stop := context.WithCancel(w.all)
			w.mu.Lock()
			at.stop, w.open[""] = stop, at
			w.mu.Unlock()
			_, err := w.get(ctx, at)
			dropped := ctx.Err() != nil
			stop()
			switch {
			case dropped:
			case w.lenient && w.again(err):
			case w.lenient:
				return
			case w.balanced && (err == nil || w.goesOn(err)):
				if isExpired(err) {
					w.mu.Lock()
					at.last = ""
					w.mu.Unlock()
				}
				sleep(w.all, pauseBalanced)
			case err != nil:
				w.end(err)
				return
			}
		}
	})
}

// again waits before a GET is repeated, and reports whether it is to be: not if the proxy does not offer it.
func (w *posts) again(err error) bool {
	var status statusError
	if errors.As(err, &status) && status.code != http.StatusConflict {
		return false
	}
	sleep(w.all, 200*time.Millisecond)
	return true
}

// lose drops the connection of a response, and that of listen, and reports whether the client will get the response:
// if it is to resume it and has the id of an event.
func (w *posts) lose(id string, resume bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.open[id]
	at.resumes = resume && at.last != ""
	at.stop()
	// That may not have begun yet. Without the id of an event, what is on its way through two proxies would be lost.
	if listens := w.open[""]; listens != nil && (!w.balanced || listens.last != "") {
		listens.stop()
	}
	return at.resumes
}

func (w *posts) end(err error) { w.over.Do(func() { w.to.ended(err) }) }

func (w *posts) cancel(id string) {
	if !w.modern {
		notifyCancelled(w, id)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.open[id]; at != nil {
		at.stop()
	}
}

// leave with "vanish" leaves a session of the legacy era to its expiry.
func (w *posts) leave(how string) {
	if how == "hang up" {
		w.drop(errors.New("left"))
	}
	if how != "vanish" && !w.modern {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodDelete, w.url, nil)
		if err == nil {
			req.Header = w.header("", "")
			if resp, err := w.client.Do(req); err == nil {
				resp.Body.Close()
				if resp.StatusCode < http.StatusMultipleChoices { // else the session goes on
					if w.lenient || w.balanced { // after a split there may have been two of the session
						late := time.AfterFunc(w.ending(), func() { w.drop(errors.New("left")) })
						defer late.Stop()
					}
					w.wait() // all streams have an end
				}
			}
		}
	}
	w.drop(errors.New("left"))
	w.wait()
	w.client.CloseIdleConnections()
	w.end(io.EOF)
}

// begin begins an exchange, unless the client waits for the last ones.
func (w *posts) begin(exchange func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last {
		w.done.Go(exchange)
	}
}

// wait waits for the last exchanges.
func (w *posts) wait() {
	w.mu.Lock()
	w.last = true
	w.mu.Unlock()
	w.done.Wait()
}

// ending is how long the streams of a session may go on that the client has deleted.
func (w *posts) ending() time.Duration {
	if w.lenient {
		return time.Second
	}
	return aftermath
}
