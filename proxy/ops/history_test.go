package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// died is an event of an upstream.
func died(id, upstream string, stderr ...string) observe.Event {
	return observe.Event{Stderr: stderr, EventLine: observe.EventLine{
		ID: id, Kind: observe.ServerEnded, Upstream: upstream, What: upstream + " was killed", Cause: "signal: killed", Class: "killed",
	}}
}

func lossOf(id, upstream, session string) observe.Loss {
	return observe.Loss{
		Request: observe.Request{Session: session, Client: "c", Principal: "p", Method: "tools/call", Upstream: upstream, Tool: "write"},
		Event:   id, Reason: "signal: killed", Class: "killed", What: upstream + " was killed", Sent: true, Took: 2 * time.Second,
	}
}

// ids are those of a list, as a text.
func ids(list observe.Events) string {
	var all []string
	for _, e := range list.Events {
		all = append(all, e.ID)
	}
	return strings.Join(all, " ")
}

// Reports of an event come in any order and from several sources: twice from the host, and from
// each session that lost a request.
func TestHistoryPutsTogether(t *testing.T) {
	var h History
	hooks := h.Hooks()
	hooks.UpstreamStarted(observe.Upstream{Name: "files"})
	hooks.RequestLost(lossOf("e1", "files", "s1"))
	if e, ok := h.Find("e1"); !ok || e.Kind != observe.HeardOf || e.What != "files was killed" || e.Errors != 1 || e.Host {
		t.Errorf("%+v", e)
	}
	first := died("e1", "files", "early")
	first.InFlight, first.Calls = 4, []observe.LostRequest{{Method: "tools/list"}}
	hooks.Happened(first)
	hooks.RequestLost(lossOf("e1", "files", "s1"))
	hooks.RequestLost(lossOf("e1", "files", "s2"))
	late := lossOf("e1", "files", "s3") // in back-off, say
	late.Sent = false
	hooks.RequestLost(late)
	first.Stderr = []string{"early", "late"}
	hooks.Happened(first)
	hooks.UpstreamStarted(observe.Upstream{Name: "files"})

	e, ok := h.Find("e1")
	if !ok || e.Kind != observe.ServerEnded || e.InFlight != 4 || e.Errors != 4 || len(e.Stderr) != 2 || e.Starts != 2 || e.Started.IsZero() || e.Time.IsZero() {
		t.Errorf("%+v", e)
	}
	if fmt.Sprint(e.Told) != "[{s1 c p 2} {s2 c p 1} {s3 c p 1}]" || fmt.Sprint(e.Calls) != "[{s1 c tools/call write 2000} {s1 c tools/call write 2000} {s2 c tools/call write 2000}]" {
		t.Errorf("told %v, calls %v", e.Told, e.Calls)
	}
	if _, ok := h.Find("e2"); ok {
		t.Error("found what nobody told of")
	}
	hooks.Happened(died("e2", "files"))
	hooks.Happened(died("x", "other"))
	hooks.Happened(died("e3", "files"))
	if e, _ := h.Find("e3"); len(e.Before) != 2 || e.Before[0].ID != "e2" || e.Before[1].ID != "e1" {
		t.Errorf("before: %+v", e.Before)
	}
	if all := h.List("", 3); ids(all) != "e3 x e2" || all.LeftOut != 1 {
		t.Errorf("%+v", all)
	}
	if all := h.List("e2", 100); ids(all) != "e3 x" || all.LeftOut != 0 {
		t.Errorf("%+v", all)
	}
}

// What is behind a link has a host that knows more.
func TestHistorySaysWhichHostKnows(t *testing.T) {
	h := History{Behind: func(upstream string) string { return map[string]string{"far": "tools"}[upstream] }}
	hooks := h.Hooks()
	hooks.RequestLost(lossOf("e1", "far", "s"))
	changed := lossOf("e2", "near", "s")
	changed.Class = "changed"
	hooks.RequestLost(changed)
	if e, _ := h.Find("e1"); !e.Host || e.Link != "tools" || e.Kind != observe.HeardOf {
		t.Errorf("%+v", e)
	}
	if e, _ := h.Find("e2"); e.Host || e.Link != "" || e.Kind != observe.StoppedInUse {
		t.Errorf("%+v", e)
	}
	if all := h.List("", 9); all.Events[1].Link != "tools" {
		t.Errorf("%+v", all)
	}
}

// What was in flight at a replica that died is counted, also before it is known to have died.
func TestHistoryOfReplicas(t *testing.T) {
	var h History
	hooks := h.Hooks()
	hooks.Forwarded(observe.Forwarded{Method: "POST"}, observe.End{Outcome: observe.OK})
	for range 2 {
		hooks.Forwarded(observe.Forwarded{Method: "POST"}, observe.End{Outcome: observe.Closed, Cause: "link_lost", Event: "k3v9x2ma"})
	}
	e, ok := h.Find("k3v9x2ma")
	if !ok || e.Kind != observe.ReplicaLost || e.Errors != 2 || e.InFlight != 2 {
		t.Errorf("got %+v, %t", e, ok)
	}
	hooks.Happened(observe.Event{EventLine: observe.EventLine{ID: "k3v9x2ma", Kind: observe.ReplicaDied, Replica: "R", What: "replica R died"}})
	if e, _ = h.Find("k3v9x2ma"); e.Kind != observe.ReplicaDied || e.Errors != 2 || e.InFlight != 2 || e.Replica != "R" {
		t.Errorf("got %+v", e)
	}
	if n := len(h.List("", 10).Events); n != 1 {
		t.Errorf("%d events", n)
	}
}

// A thousand are kept. Who fails most forgets its own first, be it a server that makes ids up.
func TestHistoryIsBounded(t *testing.T) {
	var h History
	hooks := h.Hooks()
	for i := range 10 {
		hooks.Happened(died(fmt.Sprint("rare", i), "rare"))
	}
	for i := range 3000 {
		hooks.Happened(died(fmt.Sprint("loop", i), "loop"))
		hooks.RequestLost(lossOf(fmt.Sprint("made up", i), "liar", "s"))
	}
	all := h.List("", mostEvents)
	count := make(map[string]int)
	for _, e := range all.Events {
		count[e.Upstream]++
	}
	if len(all.Events) != mostEvents || count["rare"] != 10 || count["loop"] != 495 || count["liar"] != 495 || all.Forgotten != 6010-mostEvents {
		t.Errorf("%d events, %v, %d forgotten", len(all.Events), count, all.Forgotten)
	}
	if len(h.byID) != mostEvents {
		t.Errorf("%d by id", len(h.byID))
	}
}

// Stderr and lists of all events together are bounded, and an event says if it was trimmed.
func TestHistoryTrims(t *testing.T) {
	var h History
	hooks := h.Hooks()
	line := strings.Repeat("x", 1<<10)
	for i := range mostEvents {
		id := fmt.Sprint("e", i)
		e := died(id, "files")
		for range 20 {
			e.Stderr = append(e.Stderr, line)
		}
		hooks.Happened(e)
		for range 100 {
			hooks.RequestLost(lossOf(id, "files", fmt.Sprint("s", i%50)))
		}
	}
	bytes := 0
	for _, k := range h.events {
		for _, line := range k.Stderr {
			bytes += len(line)
		}
		bytes += callSize * (len(k.lost) + len(k.Told))
	}
	if bytes > mostDetail || bytes != h.detail {
		t.Errorf("%d bytes are kept, %d counted", bytes, h.detail)
	}
	oldest, _ := h.Find("e0")
	newest, _ := h.Find("e999")
	if !oldest.Trimmed || oldest.Stderr != nil || oldest.Calls != nil || oldest.CallsLeftOut != 100 || oldest.Errors != 100 {
		t.Errorf("%+v", oldest)
	}
	if newest.Trimmed || len(newest.Stderr) != 20 || len(newest.Calls) != mostListed || newest.CallsLeftOut != 80 || newest.InFlight != 100 {
		t.Errorf("%+v", newest)
	}
}

func TestEventsAreServed(t *testing.T) {
	var h History
	for i := range 120 {
		h.Hooks().Happened(died(fmt.Sprint("e", i), "files"))
	}
	tcp, unix := serve(t, &Server{History: &h})
	for _, path := range []string{"/events", "/events/e1"} {
		if status, _ := tcp("GET", path); status != http.StatusForbidden {
			t.Errorf("%s over TCP without a token: %d", path, status)
		}
	}
	var list observe.Events
	status, body := unix("GET", "/events")
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 || len(list.Events) != usualEvents || list.LeftOut != 20 {
		t.Errorf("%d, %d events, %v", status, len(list.Events), err)
	}
	_, body = unix("GET", "/events?since=e117")
	if err := json.Unmarshal([]byte(body), &list); err != nil || ids(list) != "e119 e118" {
		t.Errorf("%s %v", body, err)
	}
	for _, limit := range []string{"0", "-1", "x", "1001"} {
		if status, _ := unix("GET", "/events?limit="+limit); status != http.StatusBadRequest {
			t.Errorf("limit %s: %d", limit, status)
		}
	}
	if status, body := unix("GET", "/events/none"); status != http.StatusNotFound || !strings.Contains(body, "no such event") {
		t.Errorf("%d %s", status, body)
	}
}

// A name may be anything, a URI too.
func TestExplanationsAreServed(t *testing.T) {
	tcp, unix := serve(t, &Server{Explain: func(name, as string) (*Explanation, error) {
		if as == "nobody" {
			return nil, errors.New("nobody is no client")
		}
		return &Explanation{Name: name, Client: as}, nil
	}})
	if status, _ := tcp("GET", "/explain/x"); status != http.StatusForbidden {
		t.Errorf("over TCP without a token: %d", status)
	}
	for path, want := range map[string]string{
		"/explain/files__write":                 `"name":"files__write",`,
		"/explain/file:%2F%2F%2Fa%2F..%2Fb%3Fc": `"name":"file:///a/../b?c",`,
		"/explain/a//b?as=token:ci":             `"name":"a//b","kind":"","answer":"","why":"","client":"token:ci",`,
	} {
		if status, body := unix("GET", path); status != http.StatusOK || !strings.HasPrefix(body, "{"+want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, path := range []string{"/explain/", "/explain/" + strings.Repeat("x", longestQuestion+1), "/explain/x?as=nobody"} {
		if status, _ := unix("GET", path); status != http.StatusBadRequest {
			t.Errorf("%.30s: %d", path, status)
		}
	}
}

// Long texts of others are cut, and the rest is not kept in memory.
func TestHistoryKeepsLittleOfLongTexts(t *testing.T) {
	var h History
	long := strings.Repeat("é", 1<<20)
	lost := lossOf("e1", "files", "s1")
	lost.Tool, lost.What, lost.Reason = long, long, long
	h.Hooks().RequestLost(lost)
	e := died("e2", "files")
	e.What, e.Error = long, long
	h.Hooks().Happened(e)
	h.Hooks().Happened(e)
	for _, k := range h.events {
		for _, text := range []string{k.What, k.Cause, k.Error, toolOf(k)} {
			if len(text) > longError || !utf8.ValidString(text) {
				t.Errorf("%s: a text of %d bytes", k.ID, len(text))
			}
			if text != "" && unsafe.StringData(text) == unsafe.StringData(long) {
				t.Errorf("%s: a part of a long text keeps all of it", k.ID)
			}
		}
	}
}

func toolOf(k *keptEvent) string {
	if len(k.lost) == 0 {
		return ""
	}
	return k.lost[0].Tool
}
