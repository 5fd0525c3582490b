package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// An eventStream is the transport of 2024-11-05: one stream down, POSTs up, one after the other.
type eventStream struct {
	*posts
	up chan *message // to post; never closed
}

func openEventStream(url string, tokens func() string, to receiver) (wire, error) {
	w := eventStream{newPosts(url+"/sse", tokens, false, to), make(chan *message, 100)}
	req, err := http.NewRequestWithContext(w.all, http.MethodGet, w.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header = w.header("", "")
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	lines := linesOf(resp.Body)
	for lines.Scan() {
		if path, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			w.url = url + "/" + strings.TrimPrefix(path, "/")
			break
		}
	}
	w.done.Go(func() {
		defer resp.Body.Close()
		_, err := readEvents(lines, to, func(string) {})
		w.end(errors.Join(err, io.EOF))
	})
	w.done.Go(w.run)
	return w, nil
}

func (w eventStream) send(m *message) {
	select {
	case w.up <- m:
	case <-w.all.Done():
	}
}

func (w eventStream) run() {
	for {
		select {
		case m := <-w.up:
			if _, err := w.post(w.all, m.bytes(), w.header(m.Method, ""), &response{}); err != nil && w.all.Err() == nil {
				w.end(fmt.Errorf("POST %s: %w", m.Method, err))
			}
		case <-w.all.Done():
			return
		}
	}
}

func (w eventStream) cancel(id string) { notifyCancelled(w, id) }

func (w eventStream) leave(string) { w.posts.leave("vanish") }

// readEvents reads messages, each in one line of an event after its id, and returns whether a response was among
// them.
func readEvents(lines *bufio.Scanner, to receiver, seen func(id string)) (answered bool, err error) {
	id := ""
	for lines.Scan() {
		if next, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			id = next
		}
		if id != "" && strings.HasPrefix(lines.Text(), "data:") { // not before: without its data the event is yet to come
			seen(id)
		}
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok && text != "" {
			var m message
			answered = json.Unmarshal([]byte(text), &m) == nil && m.isResponse() || answered
			arrived(to, []byte(text))
		}
	}
	return answered, lines.Err()
}
