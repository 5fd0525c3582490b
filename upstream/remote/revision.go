package remote

import (
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/mcp"
)

// A revision is a version of the modern era that a server refused, and one that it
// speaks.
type revision struct{ refused, spoken string }

// revise returns m in a version that both we and the server speak, as its error
// -32022 says; nil if there is none but the one of m. Later requests begin with it.
func (s *Server) revise(m *jsonrpc.Message, refusal json.RawMessage) *jsonrpc.Message {
	meta, err := mcp.ReadMeta(m.Params)
	if err != nil {
		return nil
	}
	spoken := spokenVersion(supported(refusal), meta.Version)
	if spoken == "" {
		return nil
	}
	s.revision.Store(&revision{meta.Version, spoken})
	return inVersion(m, spoken)
}

// revised returns m in the version that the server is known to want.
func (s *Server) revised(m *jsonrpc.Message) *jsonrpc.Message {
	r := s.revision.Load()
	if r == nil {
		return m
	}
	if meta, err := mcp.ReadMeta(m.Params); err != nil || meta.Version != r.refused {
		return m
	}
	return inVersion(m, r.spoken)
}

func inVersion(m *jsonrpc.Message, version string) *jsonrpc.Message {
	own := *m
	own.Params = mcp.SetMeta(m.Params, jsonrpc.Value{Key: mcp.KeyVersion, Text: jsonrpc.Quote(version)})
	return &own
}

// supported returns the versions in the data of an error -32022.
func supported(refusal json.RawMessage) []string {
	return texts(member(member(refusal, "data"), "supported"))
}

// texts returns the strings of an array; nil if it is none.
func texts(array json.RawMessage) (texts []string) {
	elements, err := jsonrpc.Elements(array)
	if err != nil {
		return nil
	}
	for _, e := range elements {
		if text, ok := jsonrpc.Unquote(e); ok {
			texts = append(texts, text)
		}
	}
	return texts
}

// spokenVersion returns the newest version of the modern era among versions that
// we speak, besides one; "" for none.
func spokenVersion(versions []string, besides string) string {
	i := slices.IndexFunc(mcp.ModernVersions, func(v string) bool { return v != besides && slices.Contains(versions, v) })
	if i < 0 {
		return ""
	}
	return mcp.ModernVersions[i]
}
