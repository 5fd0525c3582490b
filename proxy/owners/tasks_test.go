package owners

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The oldest task is forgotten first, with its progress token.
func TestTasksAreBounded(t *testing.T) {
	var ts Tasks[*conn]
	u := new(conn)
	for n := range int64(maxTasks + 1) {
		ts.Add(Task[*conn]{ID: fmt.Sprint(n), Conn: u, Key: TokenKey[*conn]{u, n}, Token: json.RawMessage(`1`)})
	}
	if len(ts.byID) != maxTasks || len(ts.byToken) != maxTasks || ts.byID["0"] != nil || ts.byID["1"] == nil {
		t.Error(len(ts.byID), len(ts.byToken))
	}
	ts.Add(Task[*conn]{ID: "1", Conn: u}) // listed: the token stays
	ts.End(new(conn), "1", true)          // another upstream's
	if ts.byToken[TokenKey[*conn]{u, 1}] == nil {
		t.Error("token is lost")
	}
	ts.End(u, "1", true)
	if ts.byToken[TokenKey[*conn]{u, 1}] != nil || ts.byID["1"] == nil {
		t.Error("task is lost, or its token is not")
	}
	long := strings.Repeat("x", mcp.MaxRouted-10)
	for n := range int64(maxTasks) {
		ts.Add(Task[*conn]{ID: fmt.Sprint("t", n, long), Own: long, Conn: u, Key: TokenKey[*conn]{u, -n}, Token: json.RawMessage(`1`)})
	}
	ts.Add(Task[*conn]{ID: long + long, Conn: u})
	kept := 0
	for _, x := range ts.byID {
		kept += x.size()
	}
	if kept != ts.bytes || kept > maxTaskBytes || kept < maxTaskBytes/2 || len(ts.byToken) > len(ts.order) || ts.byID[long+long] != nil {
		t.Errorf("%d bytes of %d tasks are kept, %d counted", kept, len(ts.order), ts.bytes)
	}
	if ts.Forget(u); ts.bytes != 0 || len(ts.byToken) != 0 {
		t.Errorf("of no tasks %d bytes are kept", ts.bytes)
	}
	ts.Add(Task[*conn]{ID: "late", Conn: &conn{hungUp: true}})
	ts.Forget(u)
	if len(ts.byID)+len(ts.byToken)+len(ts.order)+ts.bytes != 0 {
		t.Error("left:", len(ts.byID), len(ts.byToken), len(ts.order), ts.bytes)
	}
}
