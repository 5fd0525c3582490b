package mcp

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Abilities are what servers may ask of a client, according to its capabilities.
type Abilities struct {
	Roots, Sampling, SamplingTools bool

	Form, URL bool // modes of elicitation
}

// ReadAbilities reads the capabilities of a client, in either era. If they are ambiguous it returns
// an error and no Abilities.
func ReadAbilities(capabilities json.RawMessage) (Abilities, error) {
	if capabilities == nil {
		return Abilities{}, nil
	}
	var top [3]jsonrpc.Span
	err := jsonrpc.Find(capabilities, jsonrpc.Span{}, top[:], "roots", "sampling", "elicitation")
	if err != nil {
		return Abilities{}, err
	}
	can := Abilities{Roots: !top[0].IsZero(), Sampling: !top[1].IsZero()}
	if can.Sampling {
		tools, err := jsonrpc.Member(top[1].Of(capabilities), "tools")
		if err != nil {
			return Abilities{}, err
		}
		can.SamplingTools = tools != nil
	}
	if top[2].IsZero() {
		return can, nil
	}
	var modes [2]jsonrpc.Span
	if err := jsonrpc.Find(capabilities, top[2], modes[:], "form", "url"); err != nil {
		return Abilities{}, err
	}
	can.URL = !modes[1].IsZero()
	can.Form = !modes[0].IsZero() || !can.URL // "an empty object is equivalent to declaring support for form mode only"
	return can, nil
}

// Refuses returns why a client cannot be asked this, nil if it can: "servers MUST NOT send
// elicitation requests with modes that are not supported by the client", and a proxy that declares
// more than the client does must enforce that for the servers. It refuses only methods that depend
// on a declaration of the client.
func (can Abilities) Refuses(method string, params json.RawMessage) *jsonrpc.Error {
	able := true
	switch method {
	case MethodRootsList:
		able = can.Roots
	case MethodSample:
		if able = can.Sampling; able && !can.SamplingTools && wantsTools(params) {
			return jsonrpc.InvalidParams("the client does not take tools")
		}
	case MethodElicit:
		able = can.Form || can.URL
		if able && !can.takesMode(params) {
			return jsonrpc.InvalidParams("the client does not take this mode")
		}
	}
	if !able {
		return jsonrpc.MethodNotFound(method)
	}
	return nil
}

// takesMode reports whether a client supports the mode of an elicitation, which defaults to a form.
// An ambiguous mode needs both.
func (can Abilities) takesMode(params json.RawMessage) bool {
	mode, err := jsonrpc.Member(params, "mode")
	name, _ := jsonrpc.Unquote(mode)
	switch {
	case err != nil:
		return can.Form && can.URL
	case name == "url":
		return can.URL
	}
	return can.Form
}

func wantsTools(params json.RawMessage) bool {
	var at [2]jsonrpc.Span
	err := jsonrpc.Find(params, jsonrpc.Span{}, at[:], "tools", "toolChoice")
	return err != nil || !at[0].IsZero() || !at[1].IsZero()
}
