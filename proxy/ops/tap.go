package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/tap"
)

// tapRate is the default rate of a tap in lines a second: more than anybody reads.
const tapRate = 1000

// serveTap serves /tap: messages as they pass, as lines of JSON, until the operator disconnects or the process
// stops.
func (s *Server) serveTap(w http.ResponseWriter, r *http.Request) {
	q, err := tapOptionsOf(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if q.Payloads || q.Whole {
		if why := s.hides(r); why != "" {
			http.Error(w, why, http.StatusForbidden)
			return
		}
	}
	t, err := s.Taps.Open(q)
	if err != nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer t.Close()
	defer context.AfterFunc(r.Context(), t.Close)() // a half-closed connection still gets the queued lines
	w.Header().Set("Content-Type", "application/x-ndjson")
	if r.Method == http.MethodHead {
		return
	}
	if q.Whole {
		_ = json.NewEncoder(w).Encode(observe.Recording{Recording: 1, Version: s.Version, Began: time.Now().UTC()})
	}
	err = copyLines(w, t)
	if q.Whole {
		_ = json.NewEncoder(w).Encode(endOf(t, err))
	}
}

// hides returns why r must not see the content of messages, "" if it may.
func (s *Server) hides(r *http.Request) string {
	switch {
	case !onSocket(r):
		return "message content is shown only over a Unix socket"
	case !s.Payloads:
		return "message content needs admin.payloads: true in the configuration"
	}
	return ""
}

// copyLines writes the lines of a tap, and returns why it ended.
func copyLines(w http.ResponseWriter, t *tap.Tap) error {
	flush := http.NewResponseController(w)
	for {
		if err := flush.Flush(); err != nil {
			return err
		}
		lines, err := t.Lines()
		mustRead(w)
		if err != nil {
			return err
		}
		if _, err := w.Write(lines); err != nil {
			return err
		}
	}
}

// endOf returns the last line of a recording that ended with err. The recording is complete if the process or the
// operator ended it.
func endOf(t *tap.Tap, err error) observe.RecordingEnd {
	end := observe.RecordingEnd{End: errors.Is(err, tap.ErrEnded), Messages: t.Passed()}
	if !end.End {
		end.Error = err.Error()
	}
	return end
}

// tapOptionsOf parses a query. Unknown keys are errors, because a misspelt filter would show too much.
func tapOptionsOf(query url.Values) (q tap.Options, err error) {
	q.Rate = tapRate
	members := map[string]func(string) error{
		"upstream": text(&q.Upstream), "client": text(&q.Client), "session": text(&q.Session),
		"method": text(&q.Method), "tool": text(&q.Tool), "rate": number(&q.Rate),
		"errors": truth(&q.Errors), "payloads": truth(&q.Payloads), "record": truth(&q.Whole),
	}
	for key, values := range query {
		read := members[key]
		switch {
		case read == nil:
			return q, fmt.Errorf("unknown parameter %q; known are %s", key, strings.Join(slices.Sorted(maps.Keys(members)), ", "))
		case len(values) > 1:
			return q, fmt.Errorf("%s is given twice", key)
		}
		if err := read(values[0]); err != nil {
			return q, fmt.Errorf("%s is %w", key, err)
		}
	}
	if q.Whole {
		for _, key := range []string{"errors", "method", "payloads", "rate", "tool"} {
			if query.Has(key) {
				return q, fmt.Errorf("a recording has all messages and excludes %s", key)
			}
		}
		q.Rate = 0
	}
	return q, q.Check()
}

func text(into *string) func(string) error {
	return func(v string) error {
		*into = v
		return nil
	}
}

func number(into *int) func(string) error {
	return func(v string) (err error) {
		if *into, err = strconv.Atoi(v); err != nil || *into < 0 {
			return errors.New("a number of lines a second, or 0 for all")
		}
		return nil
	}
}

func truth(into *bool) func(string) error {
	return func(v string) (err error) {
		if *into, err = strconv.ParseBool(v); err != nil {
			return errors.New("1 or 0")
		}
		return nil
	}
}
