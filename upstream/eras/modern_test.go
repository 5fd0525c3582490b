package eras

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"context"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Clients of two principals call, cancel, return and leave at random, on a server that asks,
// answers, and dies at random. Nobody gets another client's answer, everything is answered once,
// and nothing is left behind.
func TestManyClientsAtOnce(t *testing.T) {
	var servers sync.WaitGroup
	b := &Bridge{Idle: 20 * time.Millisecond, SuspendFor: 100 * time.Millisecond,
		Open: func(_ context.Context, _, key string, _ mcp.Era) jsonrpc.Conn {
			near, far := jsonrpc.Pipe()
			servers.Go(func() { serveAtRandom(far, key[:1]) })
			return near
		}}
	var clients sync.WaitGroup
	for _, key := range []string{"a", "b"} {
		for i := range 4 {
			clients.Go(func() {
				for range 5 {
					useAtRandom(t, b, key, uint64(i))
				}
			})
		}
	}
	clients.Wait()
	b.Stop(context.Background())
	servers.Wait()
	conntest.Eventually(t, "no account is left", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.accounts) == 0
	})
}

// serveAtRandom is a server whose answers name their client and request.
func serveAtRandom(c jsonrpc.Conn, whose string) {
	defer c.Close()
	asked := make(map[string]*jsonrpc.Message) // calls, by the id of the question
	answer := func(m *jsonrpc.Message) {
		name, _ := jsonrpc.Member(m.Params, "name")
		c.Send(jsonrpc.NewResult(m.ID, []byte(`{"of":`+string(name)+`,"whose":"`+whose+`"}`)))
	}
	for n := 0; ; n++ {
		m, err := c.Recv()
		switch {
		case err != nil:
			return
		case m.Method == "initialize":
			c.Send(jsonrpc.NewResult(m.ID, []byte(benchWelcome)))
		case m.IsResponse():
			if call := asked[m.ID.String()]; call != nil {
				answer(call)
			}
		case !m.IsRequest():
		case rand.IntN(60) == 0:
			return
		case rand.IntN(4) == 0:
			id := jsonrpc.IntID(int64(n))
			asked[id.String()] = m
			c.Send(jsonrpc.NewRequest(id, "elicitation/create", []byte(`{"message":"m"}`)))
		default:
			answer(m)
		}
	}
}

// useAtRandom is one stream of a client of a principal.
func useAtRandom(t *testing.T, b *Bridge, key string, seed uint64) {
	near, far := jsonrpc.Pipe()
	done := make(chan error, 1)
	go func() { done <- b.Modern(context.Background(), "up", key, far) }()
	params := func(name string, more string) json.RawMessage {
		return json.RawMessage(`{"name":"` + name + `","_meta":{"` + mcp.KeyCapabilities + `":{"elicitation":{}}}` + more + `}`)
	}
	open := make(map[jsonrpc.ID]string) // names, by the id of the request
	next := int64(0)
	send := func(name, more string) {
		next++
		open[jsonrpc.IntID(next)] = name
		near.Send(jsonrpc.NewRequest(jsonrpc.IntID(next), "tools/call", params(name, more)))
	}
	for i := range 40 {
		send(fmt.Sprintf("%s%d.%d", key, seed, i), "")
		if rand.IntN(10) == 0 {
			delete(open, jsonrpc.IntID(next))
			near.Send(jsonrpc.NewNotification("notifications/cancelled", fmt.Appendf(nil, `{"requestId":%d}`, next)))
		}
		for len(open) > 8 || i == 39 && len(open) > 0 {
			m, err := conntest.RecvOrEnd(t, near)
			if err != nil {
				t.Errorf("the stream ended with %v", err)
				return
			}
			name, known := open[m.ID]
			delete(open, m.ID)
			of, _ := jsonrpc.Member(m.Result, "of")
			state, _ := jsonrpc.Member(m.Result, "requestState")
			whose, _ := jsonrpc.Member(m.Result, "whose")
			switch {
			case state != nil && rand.IntN(4) > 0:
				input, _ := jsonrpc.Member(m.Result, "inputRequests")
				responses := `{`
				jsonrpc.Each(input, func(key string, _ json.RawMessage) {
					if len(responses) > 1 {
						responses += ","
					}
					responses += `"` + key + `":{"action":"accept"}`
				})
				send(name, `,"requestState":`+string(state)+`,"inputResponses":`+responses+`}`)
			case m.Error != nil || state != nil || !known: // an end, one that does not come back, one cancelled too late
			case string(of) != `"`+name+`"` || string(whose) != `"`+key+`"`:
				t.Errorf("%s received %s", name, m.Result)
			}
		}
	}
	near.Close()
	<-done
}

// Rejected input costs little, whatever its form.
func TestLargeInputIsNotTakenApart(t *testing.T) {
	text := json.RawMessage(`{"inputResponses":{"q":{"a":[` + strings.Repeat("[],", 1<<20) + `0]}},"_meta":{}}`)
	allocations := testing.AllocsPerRun(2, func() {
		r, err := readModernRequest(mcp.ReadParams(mcp.MethodToolsCall, text))
		if err != nil || !r.answers() {
			t.Fatal("it has input")
		}
		canonicalIfShort(r.Input)
	})
	if allocations > 100 {
		t.Errorf("%g allocations", allocations)
	}
}
