package session

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// Requests that only upstreams behind links that never were up could serve fail with the names of
// those links, and why they are not up. A client that would not see an upstream with the link's
// name must not learn that name.
func TestUnreachedNamesLinks(t *testing.T) {
	refused := Unknown{Link: "docs", End: jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused}, Failed: true}
	login := Unknown{Link: "wiki", End: *jsonrpc.LoginNeeded("mcp-proxy login wiki", nil), Failed: true}
	waits, out := "far has not connected yet (link lost)", "docs is unreachable: connection refused"
	for name, tt := range map[string]struct {
		unknown []Unknown
		rule    policy.Rule
		want    jsonrpc.ClosedError
	}{
		"accepting":      {farAway, policy.Rule{}, jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Says: waits}},
		"dialling":       {[]Unknown{refused}, policy.Rule{}, jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused, Says: out}},
		"lasting":        {[]Unknown{login}, policy.Rule{}, jsonrpc.ClosedError{Cause: jsonrpc.CauseLogin, Lasting: true, Says: "wiki needs a login: mcp-proxy login wiki"}},
		"several":        {append(farAway[:1:1], refused), policy.Rule{}, jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Says: waits + "; " + out}},
		"one lasting":    {[]Unknown{login, refused}, policy.Rule{}, jsonrpc.ClosedError{Cause: jsonrpc.CauseLogin, Says: "wiki needs a login: mcp-proxy login wiki; " + out}},
		"hidden":         {farAway, policy.Rule{Who: policy.Who{Any: true}, Tools: policy.Globs{Allow: []string{"a__*"}}}, jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost}},
		"one hidden":     {append(farAway[:1:1], refused), policy.Rule{Who: policy.Who{Any: true}, Tools: policy.Globs{Allow: []string{"docs__*"}}}, jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused, Says: out}},
		"allowed by all": {farAway, policy.Rule{Who: policy.Who{Any: true}, Tools: policy.Globs{Allow: []string{"*"}}}, jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Says: waits}},
	} {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			t.Run(name+", "+string(era), func(t *testing.T) {
				p := &Router{}
				if tt.rule.Who.Any {
					p.Policies = policiesOf(t, tt.rule)
				}
				inWorldOf(t, era, p, nil, func(w *world) {
					w.proxy.Update(nil, tt.unknown)
					w.initialize()
					time.Sleep(8 * time.Second) // for links that may still come up
					w.client.take()
					w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x__y"}}`)
					w.client.want(ccOf(1, -32603, "", tt.want, "not_sent"))
					_, got := w.took(listsTools)
					if want := ccOf(`"list"`, -32603, "", tt.want, "not_sent"); got != want {
						t.Errorf("the list: %s, want %s", got, want)
					}
				})
			})
		}
	}
}

// The log says with which error an upstream has answered that is left out of a list: bounded, and without the data.
func TestLogOfAnErrorInAList(t *testing.T) {
	var text strings.Builder
	router := &Router{Log: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	inWorld(t, router, []string{"bad", "b"}, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"bad": func(p *party, m *jsonrpc.Message) {
			if m.Method != "tools/list" {
				echo("bad")(p, m)
				return
			}
			refusal := `{"code":-32099,"message":"the database\nis locked ` + strings.Repeat("x", 5000) + `","data":{"key":"private"}}`
			p.conn.Send(&jsonrpc.Message{ID: m.ID, Error: json.RawMessage(refusal)})
		}}
		w.initialize()
		w.client.say(listsTools)
		synctest.Wait()
		w.client.take()
	})
	said := text.String()
	if !strings.Contains(said, `cause="error response"`) || !strings.Contains(said, `"the database\nis locked xx`) || !strings.Contains(said, "(-32099)") ||
		strings.Contains(said, "private") || len(said) > 1500 {
		t.Errorf("%d bytes: %s", len(said), said)
	}
}
