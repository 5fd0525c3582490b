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

// tapRate is how many lines a second a tap shows that does not say: more than anybody reads.
const tapRate = 1000

// A tapQuery is what /tap was asked for.
type tapQuery struct{ tap.Options }

// serveTap is /tap: messages as they pass, as lines of JSON, until the operator or the
// process goes.
func (s *Server) serveTap(w http.ResponseWriter, r *http.Request) {
	q, err := tapQueryOf(r.URL.Query())
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
	t, err := s.Taps.Open(q.Options)
	if err != nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer t.Close()
	defer context.AfterFunc(r.Context(), t.Close)() // who has half-closed the connection gets what came before
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

// hides says why r must not see what is in messages; "" if it may.
func (s *Server) hides(r *http.Request) string {
	switch {
	case !onSocket(r):
		return "what is in messages is shown over a Unix socket alone"
	case !s.Payloads:
		return "what is in messages is not shown without admin.payloads: true in the configuration"
	}
	return ""
}

// copyLines writes what a tap shows, and returns why that ended.
func copyLines(w http.ResponseWriter, t *tap.Tap) error {
	flush := http.NewResponseController(w)
	for {
		if err := flush.Flush(); err != nil {
			return err
		}
		lines, err := t.Lines()
		if err != nil {
			return err
		}
		if _, err := w.Write(lines); err != nil {
			return err
		}
	}
}

// endOf is the last line of a recording that ended with err: at the end of the process, or
// when the operator wants no more, everything was told.
func endOf(t *tap.Tap, err error) observe.RecordingEnd {
	end := observe.RecordingEnd{End: errors.Is(err, tap.ErrEnded), Messages: t.Passed()}
	if !end.End {
		end.Error = err.Error()
	}
	return end
}

// tapQueryOf reads a query. What it does not know is a mistake: a filter that is none would
// show what somebody wanted to leave out.
func tapQueryOf(query url.Values) (q tapQuery, err error) {
	q.Rate = tapRate
	members := q.members()
	for key, values := range query {
		read := members[key]
		switch {
		case read == nil:
			return q, fmt.Errorf("there is no %q here, but %s", key, strings.Join(slices.Sorted(maps.Keys(members)), ", "))
		case len(values) > 1:
			return q, fmt.Errorf("%s is there twice", key)
		}
		if err := read(values[0]); err != nil {
			return q, fmt.Errorf("%s is %w", key, err)
		}
	}
	if q.Whole {
		for _, key := range []string{"errors", "method", "payloads", "rate", "tool"} {
			if query.Has(key) {
				return q, fmt.Errorf("a recording has all messages: %s makes no sense with it", key)
			}
		}
		q.Rate = 0
	}
	return q, q.Check()
}

// members are those of a query, with what reads each.
func (q *tapQuery) members() map[string]func(string) error {
	return map[string]func(string) error{
		"upstream": text(&q.Upstream), "client": text(&q.Client), "session": text(&q.Session),
		"method": text(&q.Method), "tool": text(&q.Tool),
		"rate":   q.readRate,
		"errors": truth(&q.Errors), "payloads": truth(&q.Payloads), "record": truth(&q.Whole),
	}
}

func (q *tapQuery) readRate(v string) (err error) {
	if q.Rate, err = strconv.Atoi(v); err != nil || q.Rate < 0 {
		return errors.New("a number of lines a second, or 0 for all")
	}
	return nil
}

func text(into *string) func(string) error {
	return func(v string) error {
		*into = v
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
