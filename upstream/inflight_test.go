package upstream

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func message(t *testing.T, text string) *jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Decode([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

// TestRelated drives an inFlight: ">" goes to the upstream, "<" comes from it.
func TestRelated(t *testing.T) {
	question, progress := `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`, `{"jsonrpc":"2.0","method":"notifications/progress"}`
	call := func(id int) string { return fmt.Sprintf(`>{"jsonrpc":"2.0","id":%d,"method":"x"}`, id) }
	answer := func(id int) string { return fmt.Sprintf(`<{"jsonrpc":"2.0","id":%d,"result":{}}`, id) }
	result := func(id, task string) string {
		return `>{"jsonrpc":"2.0","id":` + id + `,"method":"tasks/result","params":{"taskId":"` + task + `"}}`
	}
	about := func(task string) string {
		return `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"` + task + `"}}}}`
	}
	for _, row := range []struct {
		name  string
		moves []string
		last  string
		want  string
	}{
		{"none", nil, question, ""},
		{"the only one", []string{call(1)}, question, "1"},
		{"the newest", []string{call(1), call(2), call(3), answer(3)}, question, "2"},
		{"answered", []string{call(1), answer(1)}, question, ""},
		{"progress has its token", []string{call(1)}, progress, ""},
		{"cancelled", []string{call(1), call(2), `>{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`}, question, "1"},
		{"a list is no work", []string{call(1), `>{"jsonrpc":"2.0","id":2,"method":"tools/list"}`}, question, "1"},
		{"nothing but a list", []string{`>{"jsonrpc":"2.0","id":2,"method":"tools/list"}`}, question, "2"},
		{"about a task", []string{result("1", "t"), result("2", "u"), call(3)}, about("t"), "1"},
		{"about a task without a tasks/result", []string{result("1", "t"), call(3)}, about("u"), "3"},
		{"batch", []string{`>[` + call(4)[1:] + `,` + call(5)[1:] + `]`}, `[` + question + `]`, "5"},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := newInFlight(false, false, true)
			for _, move := range row.moves {
				if m := message(t, move[1:]); move[0] == '>' {
					f.toServer(m)
				} else {
					f.fromServer(m)
				}
			}
			m := message(t, row.last)
			f.fromServer(m)
			if m.Related.String() != row.want {
				t.Errorf("related to %q, want %q", m.Related, row.want)
			}
		})
	}
}

// In the modern era only what names no call is attributed, and only to the only call.
func TestRelatedInTheModernEra(t *testing.T) {
	const log = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`
	call := func(id int) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call"}`, id) }
	const listens = `{"jsonrpc":"2.0","id":9,"method":"subscriptions/listen"}`
	for _, row := range []struct {
		name, message string
		related       int64 // as the connection says
		sent          []string
		want          string
	}{
		{"none", log, 0, nil, ""},
		{"the only one", log, 0, []string{call(1)}, "1"},
		{"beside a subscription", log, 0, []string{listens, call(1)}, "1"},
		{"nothing but a subscription", log, 0, []string{listens}, ""},
		{"several", log, 0, []string{call(1), call(2)}, ""},
		{"named", log, 9, []string{listens, call(1)}, "9"},
		{"progress has its token", `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`, 0, []string{call(1)}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := newInFlight(true, false, true)
			for _, m := range row.sent {
				f.toServer(message(t, m))
			}
			m := message(t, row.message)
			if row.related != 0 {
				m.Related = jsonrpc.IntID(row.related)
			}
			f.fromServer(m)
			if m.Related.String() != row.want {
				t.Errorf("related to %q, want %q", m.Related, row.want)
			}
		})
	}
}

func TestLastWords(t *testing.T) {
	const ask = `<{"jsonrpc":"2.0","id":"q","method":"ask"}`
	const closed = `>{"jsonrpc":"2.0","id":"q","error":{"code":-32000,"message":"Connection closed","data":{"reason":"connection_closed"}}}`
	const cancel = `>{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
	x := func(id int) string { return fmt.Sprintf(`>{"jsonrpc":"2.0","id":%d,"method":"x"}`, id) }
	for _, row := range []struct {
		name  string
		moves []string
		want  []string // methods and ids, in order
	}{
		{"nothing open", nil, nil},
		{"initialize", []string{`>{"jsonrpc":"2.0","id":1,"method":"initialize"}`}, nil},
		{"initialize, which somebody cancels", []string{`>{"jsonrpc":"2.0","id":1,"method":"initialize"}`,
			`>{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`}, nil},
		{"question", []string{x(1), ask}, []string{`"id":"q","error"`}},
		{"question, and calls that cannot wait for it", []string{x(1), `>{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, ask, x(3)},
			[]string{`"id":"q","error"`, `"requestId":2,`, `"requestId":3,`}},
		{"question on the stream of a call", []string{x(1), x(2), `@2` + ask}, []string{`"id":"q","error"`, `"requestId":1,`}},
		{"question of a task", []string{x(1), `>{"jsonrpc":"2.0","id":2,"method":"tasks/result","params":{"taskId":"a"}}`,
			`<{"jsonrpc":"2.0","id":"q","method":"ask","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"a"}}}}`},
			[]string{`"id":"q","error"`, `"requestId":1,`}},
		{"question that got the one error", []string{x(1), ask, closed}, nil},
		{"question that got the one error, and the call its answer", []string{x(1), ask, closed, `<{"jsonrpc":"2.0","id":1,"result":{}}`, x(1)},
			[]string{`"requestId":1,`}},
		{"question that got an error of the client", []string{x(1), ask, `>{"jsonrpc":"2.0","id":"q","error":{"code":-32000,"message":"no","data":{"reason":"bored"}}}`},
			[]string{`"requestId":1,`}},
		{"question of a call that was cancelled", []string{x(1), ask, cancel}, nil},
		{"question of one of two calls, of which one was cancelled", []string{x(1), x(2), ask, cancel}, []string{`"id":"q","error"`}},
		{"question answered", []string{`<{"jsonrpc":"2.0","id":"q","method":"ask"}`, `>{"jsonrpc":"2.0","id":"q","result":{}}`}, nil},
		{"question withdrawn", []string{`<{"jsonrpc":"2.0","id":"q","method":"ask"}`,
			`<{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}`}, nil},
		{"already cancelled", []string{`>{"jsonrpc":"2.0","id":1,"method":"x"}`,
			`>{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`}, nil},
		{"task finished by a notification", []string{`>{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{}}}`,
			`<{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"a","status":"working"}}}`,
			`<{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"a","status":"failed"}}`}, nil},
		{"task that was finished at once", []string{`>{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{}}}`,
			`<{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"a","status":"completed"}}}`}, nil},
		{"task that works", []string{`>{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{}}}`,
			`<{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"a","status":"working"}}}`,
			`>{"jsonrpc":"2.0","id":2,"method":"x"}`},
			[]string{`"requestId":2,`, `"id":3,"method":"tasks/cancel","params":{"taskId":"a"}`}},
		{"an ordinary result that has a task", []string{`>{"jsonrpc":"2.0","id":1,"method":"tools/call"}`,
			`<{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"a","status":"working"}}}`}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := newInFlight(false, false, false)
			for _, move := range row.moves {
				move, related := cutRelated(move)
				m := message(t, move[1:])
				m.Related = related
				if move[0] == '>' {
					f.toServer(m)
				} else {
					f.fromServer(m)
				}
			}
			var got []string
			for _, m := range f.lastWords() {
				got = append(got, string(m.Append(nil)))
			}
			if len(got) != len(row.want) {
				t.Fatalf("got %q, want %q", got, row.want)
			}
			for i := range got {
				if !strings.Contains(got[i], row.want[i]) {
					t.Errorf("line %d is %s, want %s", i, got[i], row.want[i])
				}
			}
		})
	}
}

// cutRelated takes "@2" from the beginning of a move: 2 is what it is related to.
func cutRelated(move string) (string, jsonrpc.ID) {
	if move[0] != '@' {
		return move, jsonrpc.ID{}
	}
	return move[2:], jsonrpc.IntID(int64(move[1] - '0'))
}

func TestTasksAreBounded(t *testing.T) {
	f := newInFlight(false, false, false)
	for i := range maxTasks + 10 {
		f.toServer(message(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"task":{}}}`, i)))
		f.fromServer(message(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"task":{"taskId":"%d","status":"working"}}}`, i, i)))
	}
	if f.tasks.Len() != maxTasks || f.calls.Len() != 0 {
		t.Errorf("%d tasks, %d calls", f.tasks.Len(), f.calls.Len())
	}
}
