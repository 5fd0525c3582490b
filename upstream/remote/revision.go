package remote

import (
	"encoding/json"

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
	spoken := mcp.SpokenVersion(mcp.SupportedVersions(refusal), meta.Version)
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
