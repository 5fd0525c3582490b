package proxy

import (
	"encoding/json"
	"os"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
)

// noteKept notes in trials which lists of the same upstreams proxies have kept. The configuration is
// the original one of p, since what p changes for its trials may decide about lists. A sole upstream is
// not compared: its clients get its own lists.
func (p *Proxy) noteKept(cfg *config.Config, trials []*ops.Trial) {
	if len(cfg.Upstreams)+len(cfg.Links) < 2 {
		return
	}
	store := p.router.Catalog.Store
	local := lists.Catalog{Store: store, Log: p.log}
	var served []lists.Served
	for _, u := range cfg.Upstreams {
		if routeOf(u).Lazy {
			served = append(served, lists.Served{Name: u.Name, Digest: store.Digest(fingerprint(u))})
		}
	}
	local.Serve(served)
	for _, tr := range trials {
		from := &local
		if tr.Link != "" { // p has its digest from its host
			from = &p.router.Catalog
		}
		if e := from.Any(lists.Key{Upstream: tr.Upstream, Era: mcp.Legacy}); e != nil {
			tr.Kept, tr.KeptSince = elementsOf(e), e.Asked
		}
	}
}

// elementsOf returns the lists of an entry, by member of the result.
func elementsOf(e *lists.Entry) map[string][]json.RawMessage {
	all := make(map[string][]json.RawMessage)
	for k := range catalog.Kinds {
		if l := e.Lists[k]; l != nil {
			array, _ := jsonrpc.Member(l.Page, k.Member())
			all[k.Member()], _ = jsonrpc.Elements(array)
		}
	}
	return all
}

// present returns a directory if it exists: doctor does not create the default one.
func present(dir string) string {
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}
