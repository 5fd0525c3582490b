package replay

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// maxCompared bounds the exchanges that are searched for the nearest.
	maxCompared = 10_000

	// maxDifferences bounds the differences that an error names.
	maxDifferences = 3

	// maxParams bounds the params in an error, in bytes.
	maxParams = 4 << 10
)

// reasonNotRecorded is the reason in the data of the errors of this package.
const reasonNotRecorded = "not_recorded"

// notRecorded is the data of the error for a request that has no equal.
type notRecorded struct {
	Reason  string   `json:"reason"`
	Nearest *nearest `json:"nearest,omitzero"`
	Differs []string `json:"differs,omitzero"` // paths of members of params
}

// A nearest is the recorded request that is most similar to a request.
type nearest struct {
	Line   int             `json:"line"` // in the file
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitzero"` // left out if they are large
}

// refuse returns the error for a question that has no equal.
func (r *Recording) refuse(q question) *jsonrpc.Error {
	x, differs := r.nearest(q)
	if !r.speaks(q.era) {
		return jsonrpc.MethodNotFound(q.method) // as a server of the other era answers
	}
	if x == nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Data: notRecorded{Reason: reasonNotRecorded}, Message: fmt.Sprintf(
			"Not in the recording: %s. It has %s", q.method, strings.Join(r.methods(q.era), ", "))}
	}
	near := &nearest{Line: x.line, Method: x.question.method}
	if params := textOf(x.question.params); x.question.params != nil && len(params) <= maxParams {
		near.Params = json.RawMessage(params)
	}
	var says, paths []string
	for _, d := range differs {
		says, paths = append(says, d.String()), append(paths, d.path)
	}
	if more := len(says) - maxDifferences; more > 0 {
		says = append(says[:maxDifferences], fmt.Sprintf("and %d more", more))
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Data: notRecorded{reasonNotRecorded, near, paths}, Message: fmt.Sprintf(
		"Not in the recording: %s. The nearest is in line %d: %s", q.what(), x.line, strings.Join(says, ", "))}
}

// nearest returns the exchange of the same method and era that differs least, nil if there
// is none. The same name or URI counts more than the number of differences.
func (r *Recording) nearest(q question) (best *exchange, least []difference) {
	about := mcp.MethodOf(q.method).Key
	same := func(x *exchange) bool { return textOf(x.question.params[about]) == textOf(q.params[about]) }
	compared := make(map[string]bool)
	for _, x := range r.exchanges {
		if x.question.era != q.era || x.question.method != q.method || compared[x.question.key()] || len(compared) == maxCompared {
			continue
		}
		compared[x.question.key()] = true
		differs := differ(nil, "", q.params, x.question.params)
		switch {
		case best != nil && same(best) && !same(x):
		case best == nil, same(x) && !same(best), len(differs) < len(least):
			best, least = x, differs
		}
	}
	return best, least
}

// unanswered returns the error for a request whose recorded equal has no answer.
func unanswered(line int) *jsonrpc.Error {
	return &jsonrpc.Error{
		Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf("The recording has no answer to this: see line %d", line),
		Data: notRecorded{Reason: reasonNotRecorded},
	}
}
