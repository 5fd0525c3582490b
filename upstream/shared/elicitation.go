package shared

import (
	"encoding/json"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxElicited bounds the elicitations that are remembered of one client. Of those beyond
// the oldest is forgotten.
const maxElicited = 1024

// ElicitationOwners is who was given which elicitation, by its elicitationId: "MUST only send the
// notification to the client that initiated the elicitation request" (2025-11-25
// client/elicitation). Guarded by session.mu.
type elicitationOwners struct {
	byID map[string]*member
	of   map[*member][]string // the oldest first
}

// add remembers that m was given an elicitation, unless somebody was before.
func (el *elicitationOwners) add(m *member, id string) {
	if el.byID[id] != nil || m.gone || len(id) > mcp.MaxRouted {
		return
	}
	if el.byID == nil {
		el.byID, el.of = make(map[string]*member), make(map[*member][]string)
	}
	if ids := el.of[m]; len(ids) >= maxElicited {
		delete(el.byID, ids[0])
		el.of[m] = ids[1:]
	}
	el.byID[id] = m
	el.of[m] = append(el.of[m], id)
}

// addAll remembers what m was given in an error.
func (el *elicitationOwners) addAll(m *member, ids []string) {
	for _, id := range ids {
		el.add(m, id)
	}
}

// forget forgets a client that has left.
func (el *elicitationOwners) forget(m *member) {
	for _, id := range el.of[m] {
		delete(el.byID, id)
	}
	delete(el.of, m)
}

// elicitationsIn returns the ids of the elicitations that an error names.
func elicitationsIn(err json.RawMessage) (ids []string) {
	if err == nil || textIn(err, "code") != strconv.Itoa(mcp.CodeURLElicitation) {
		return nil
	}
	data := json.RawMessage(textIn(err, "data"))
	all, _ := jsonrpc.Elements(json.RawMessage(textIn(data, "elicitations")))
	for _, e := range all {
		if id, ok := jsonrpc.Unquote(json.RawMessage(textIn(e, "elicitationId"))); ok {
			ids = append(ids, id)
		}
	}
	return ids
}
