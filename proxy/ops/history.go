package ops

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

const (
	mostEvents    = 1000    // that are kept
	mostUpstreams = 1000    // with a count of starts
	mostDetail    = 4 << 20 // bytes of stderr and lists; beyond that the oldest events lose theirs
	mostBefore    = 5       // earlier events in the details of one
	mostListed    = 20      // requests and clients of one event
	longText      = 400     // bytes of the text of an error
	longError     = 4 << 10 // bytes of the text of the log
)

// A History keeps the last 1,000 events in memory. When it is full, the upstream or link with the most events
// loses its oldest. The zero value is empty.
type History struct {
	// Behind returns the name of the link to the host of an upstream, "" if the upstream runs here. Nil means
	// that all do. It is called when events are read.
	Behind func(upstream string) string

	mu        sync.Mutex   // guards the fields below
	events    []*keptEvent // the oldest first
	byID      map[string]*keptEvent
	forgotten int
	detail    int // bytes
	starts    map[string]started
}

// A keptEvent is an event as reported, with the clients that got its error, which the History counts itself.
type keptEvent struct {
	observe.Event
	lost     []observe.LostRequest // as sessions reported them
	lostMore int                   // that lost leaves out
	inFlight int                   // lost, lostMore, and requests that another replica had
	detail   int                   // bytes, as counted in History
}

// about is the upstream or link of an event. Replicas are one, because each has a new name when it restarts.
type about struct {
	upstream, link string
	replicas       bool
}

func (k *keptEvent) about() about {
	if k.Replica != "" {
		return about{replicas: true}
	}
	if k.Upstream != "" {
		return about{upstream: k.Upstream}
	}
	return about{link: k.Link}
}

// started counts the starts of an upstream.
type started struct {
	count int
	last  time.Time
}

// Hooks returns the hooks that fill the History.
func (h *History) Hooks() observe.Hooks {
	return observe.Hooks{UpstreamStarted: h.started, Happened: h.happened, RequestLost: h.lost, Forwarded: h.forwarded}
}

func (h *History) started(u observe.Upstream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.starts == nil {
		h.starts = make(map[string]started)
	}
	if _, known := h.starts[u.Name]; known || len(h.starts) < mostUpstreams {
		h.starts[u.Name] = started{h.starts[u.Name].count + 1, time.Now()}
	}
}

// happened adds an event, or updates a known one.
func (h *History) happened(e observe.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.byID[e.ID]
	if k == nil {
		k = h.addLocked(e)
	} else {
		h.replaceLocked(k, e)
	}
	h.weighLocked(k)
}

func (h *History) addLocked(e observe.Event) *keptEvent {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	k := &keptEvent{Event: bounded(e)}
	if h.byID == nil {
		h.byID = make(map[string]*keptEvent)
	}
	h.byID[e.ID] = k
	h.events = append(h.events, k)
	if len(h.events) > mostEvents {
		h.forgetLocked()
	}
	return k
}

// replaceLocked updates an event, but keeps the counts of clients.
func (h *History) replaceLocked(k *keptEvent, e observe.Event) {
	e.InFlight = max(e.InFlight, k.inFlight)
	e.Time, e.Errors, e.Told, e.ToldLeftOut = k.Time, k.Errors, k.Told, k.ToldLeftOut
	k.Event = bounded(e)
}

// bounded returns e with its long texts cut.
func bounded(e observe.Event) observe.Event {
	e.What, e.Error = cut(e.What, longText), cut(e.Error, longError)
	return e
}

// cut returns the beginning of a text as a copy, so that the rest can be collected.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.Clone(strings.ToValidUTF8(text[:most], ""))
}

// forgetLocked drops the oldest event of the upstream or link with the most events, so that one failing server does not
// push out the events of others.
func (h *History) forgetLocked() {
	count, most := make(map[about]int), about{}
	for _, k := range h.events {
		count[k.about()]++
		if count[k.about()] > count[most] {
			most = k.about()
		}
	}
	i := slices.IndexFunc(h.events, func(k *keptEvent) bool { return k.about() == most })
	k := h.events[i]
	h.events = slices.Delete(h.events, i, i+1)
	delete(h.byID, k.ID)
	h.detail -= k.detail
	h.forgotten++
}

// weighLocked recounts the detail of k, and trims the oldest events if all together have too much.
func (h *History) weighLocked(k *keptEvent) {
	if k.Trimmed || h.byID[k.ID] != k {
		return
	}
	h.detail -= k.detail
	k.detail = 0
	for _, line := range k.Stderr {
		k.detail += len(line)
	}
	k.detail += callSize * (len(k.Calls) + len(k.lost) + len(k.Told))
	h.detail += k.detail
	for i := 0; h.detail > mostDetail && i < len(h.events); i++ {
		h.trimLocked(h.events[i])
	}
}

// callSize is the approximate size of a call or a client, in bytes.
const callSize = 200

func (h *History) trimLocked(k *keptEvent) {
	if k.Trimmed {
		return
	}
	h.detail -= k.detail
	k.detail, k.Trimmed = 0, true
	k.Stderr = nil
	k.CallsLeftOut += len(k.Calls)
	k.lostMore += len(k.lost)
	k.ToldLeftOut += len(k.Told)
	k.Calls, k.lost, k.Told = nil, nil, nil
}

// lost records which client got the error of an event. An unknown event was seen by a host elsewhere, or is
// reported later.
func (h *History) lost(l observe.Loss) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.byID[l.Event]
	if k == nil {
		k = h.addLocked(observe.Event{EventLine: observe.EventLine{
			ID: l.Event, Kind: observe.HeardOf, Upstream: l.Upstream,
			What: l.What, Cause: cut(l.Reason, longText), Class: l.Class,
		}})
	}
	k.Errors++
	k.told(l)
	if l.Sent {
		k.lose(l)
	}
	h.weighLocked(k)
}

// forwarded counts a request that another replica had when it ended. The event may be reported later.
func (h *History) forwarded(_ observe.Forwarded, end observe.End) {
	if end.Event == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.byID[end.Event]
	if k == nil {
		k = h.addLocked(observe.Event{EventLine: observe.EventLine{
			ID: end.Event, Kind: observe.ReplicaLost, What: "the link to another replica was lost",
			Cause: jsonrpc.CauseLinkLost.String(), Class: end.Cause,
		}})
	}
	k.Errors++
	k.inFlight++
	k.InFlight = max(k.InFlight, k.inFlight)
}

func (k *keptEvent) told(l observe.Loss) {
	i := slices.IndexFunc(k.Told, func(t observe.Told) bool { return t.Session == l.Session })
	switch {
	case i >= 0:
		k.Told[i].Errors++
	case len(k.Told) == mostListed || k.Trimmed:
		k.ToldLeftOut++
	default:
		k.Told = append(k.Told, observe.Told{Session: l.Session, Client: l.Client, Principal: l.Principal, Errors: 1})
	}
}

func (k *keptEvent) lose(l observe.Loss) {
	k.inFlight++
	k.InFlight = max(k.InFlight, k.inFlight)
	if len(k.lost) == mostListed || k.Trimmed {
		k.lostMore++
		return
	}
	k.lost = append(k.lost, observe.LostRequest{
		Session: l.Session, Client: l.Client, Method: l.Method, Tool: cut(l.Tool, longestName), AgeMs: l.Took.Milliseconds(),
	})
}

// List returns the events after since, newest first. An unknown since is before all of them.
func (h *History) List(since string, limit int) observe.Events {
	list := h.list(since, limit)
	for i := range list.Events {
		h.place(&list.Events[i])
	}
	return list
}

// place adds the link to the host that has the rest of an event, if only its errors were seen here. An intended end has
// no event there.
func (h *History) place(e *observe.EventLine) {
	if e.Kind != observe.HeardOf {
		return
	}
	if h.Behind != nil {
		e.Link = h.Behind(e.Upstream)
	}
	if onPurpose[e.Class] {
		e.Kind = observe.StoppedInUse
	}
}

// onPurpose are the classes of causes of intended ends.
var onPurpose = map[string]bool{jsonrpc.KindStopped.String(): true, jsonrpc.KindChanged.String(): true}

func (h *History) list(since string, limit int) observe.Events {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := observe.Events{Now: time.Now(), Events: []observe.EventLine{}, Forgotten: h.forgotten}
	for i, k := range slices.Backward(h.events) {
		if k.ID == since {
			break
		}
		if len(list.Events) == limit {
			list.LeftOut = i + 1
			break
		}
		list.Events = append(list.Events, k.EventLine)
	}
	return list
}

// Find returns an event with all details. It reports false if the event is unknown.
func (h *History) Find(id string) (observe.Event, bool) {
	e, ok := h.find(id)
	h.place(&e.EventLine)
	e.Host = e.Kind == observe.HeardOf && e.Link != ""
	return e, ok
}

func (h *History) find(id string) (observe.Event, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.byID[id]
	if k == nil {
		return observe.Event{}, false
	}
	e := k.Event
	e.Told = slices.Clone(k.Told) // told changes it in place
	if len(k.lost) > 0 || k.lostMore > 0 {
		e.Calls, e.CallsLeftOut = slices.Clone(k.lost), k.lostMore
	}
	slices.SortStableFunc(e.Calls, func(a, b observe.LostRequest) int { return cmp.Compare(b.AgeMs, a.AgeMs) })
	s := h.starts[k.Upstream]
	if e.Starts = s.count; s.last.After(k.Time) {
		e.Started = s.last
	}
	e.Before = h.beforeLocked(k)
	return e, true
}

// beforeLocked returns the last events before k of the same upstream, or of the same link.
func (h *History) beforeLocked(k *keptEvent) (before []observe.EventLine) {
	i := slices.Index(h.events, k)
	for _, other := range slices.Backward(h.events[:i]) {
		if len(before) == mostBefore {
			break
		}
		if other.about() == k.about() {
			before = append(before, other.EventLine)
		}
	}
	return before
}
