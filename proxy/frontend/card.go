package frontend

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Server cards (SEP-2127, a draft: schema.ts and docs/discovery.md of its repository) say how to
// connect, before a client connects. They are made of the configuration and the request alone, and
// do not name the upstreams of /mcp.

// cardSuffix is where a server card is, below the path of Streamable HTTP. An upstream of this name
// would be hidden by the card, so config refuses it.
const cardSuffix = "/server-card"

const (
	cardPath    = "/mcp" + cardSuffix
	catalogPath = "/.well-known/ai-catalog.json"

	typeCard    = "application/mcp-server-card+json"
	typeCatalog = "application/ai-catalog+json"

	cardSchema = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
	cardName   = "mcp-proxy" // as in serverInfo
)

// A serverCard is the document that the schema calls ServerCard.
type serverCard struct {
	Schema      string       `json:"$schema"`
	Name        string       `json:"name"` // NAMESPACE/NAME, the first of them in the form of reverse DNS
	Version     string       `json:"version"`
	Description string       `json:"description"`
	Remotes     []cardRemote `json:"remotes"`
}

type cardRemote struct {
	Type     string       `json:"type"`
	URL      string       `json:"url"`
	Headers  []cardHeader `json:"headers,omitempty"`
	Versions []string     `json:"supportedProtocolVersions"`
}

// A cardInput is a value that a client asks its user for.
type cardInput struct {
	Description string `json:"description"`
	IsRequired  bool   `json:"isRequired"`
	IsSecret    bool   `json:"isSecret"`
}

type cardHeader struct {
	Name string `json:"name"`
	cardInput
	Value     string               `json:"value,omitempty"` // with {VARIABLE}
	Variables map[string]cardInput `json:"variables,omitempty"`
}

// An aiCatalog lists the cards of a domain. Ours has one.
type aiCatalog struct {
	Version string         `json:"specVersion"`
	Entries []catalogEntry `json:"entries"`
}

type catalogEntry struct {
	Identifier string `json:"identifier"`
	Type       string `json:"type"`
	URL        string `json:"url"`
}

// servePublicCard serves the card of /mcp, or the catalog that leads to it, to everybody with the
// right Host, and to pages of any origin. Other paths get false.
func (h *HTTP) servePublicCard(w http.ResponseWriter, r *http.Request) bool {
	path := r.URL.Path
	if path != cardPath && path != catalogPath {
		return false
	}
	if h.Guard.Admit(w, r) != nil {
		return true
	}
	header := w.Header()
	header.Set("Access-Control-Allow-Origin", "*")
	header.Set("Access-Control-Allow-Methods", "GET")
	header.Set("Access-Control-Allow-Headers", corsHeaders+", If-None-Match")
	header.Set("Access-Control-Expose-Headers", "ETag")
	switch {
	case r.Method == http.MethodOptions:
		header.Set("Access-Control-Max-Age", corsMaxAge)
		writeStatus(w, http.StatusNoContent)
	case path == cardPath:
		serveDocument(w, r, typeCard, "public", h.card(r, ""))
	default:
		serveDocument(w, r, typeCatalog, "public", h.catalog(r))
	}
	return true
}

// serveCard serves the card of /mcp/NAME to a client that may know NAME.
func (h *HTTP) serveCard(w http.ResponseWriter, r *http.Request, upstream string) {
	serveDocument(w, r, typeCard, "private", h.card(r, upstream))
}

// serveDocument serves a document that clients and, if it is public, caches may keep for an hour.
func serveDocument(w http.ResponseWriter, r *http.Request, media, cache string, document any) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		notAllowed(w, "GET, HEAD, OPTIONS")
		return
	}
	bound(w)
	text, _ := json.Marshal(document) // it has strings only
	sum := sha256.Sum256(text)
	header := w.Header()
	header.Set("Content-Type", media)
	header.Set("Cache-Control", cache+", max-age=3600")
	header.Set("ETag", `"`+hex.EncodeToString(sum[:12])+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}

func (h *HTTP) catalog(r *http.Request) aiCatalog {
	root := h.Guard.clients().Root(r)
	return aiCatalog{"1.0", []catalogEntry{{"urn:air:" + domain(root) + ":mcp:" + cardName, typeCard, root + cardPath}}}
}

// card returns the card of /mcp, or of /mcp/NAME.
func (h *HTTP) card(r *http.Request, upstream string) serverCard {
	root, headers := h.Guard.clients().Root(r), h.cardHeaders(r)
	labels := strings.Split(domain(root), ".")
	slices.Reverse(labels)
	c := serverCard{
		Schema: cardSchema, Name: strings.Join(labels, ".") + "/" + cardName, Version: h.Version,
		Description: "The MCP servers behind this address.",
	}
	versions := mcp.Versions
	if h.ServePrincipal == nil {
		versions = mcp.LegacyVersions
	}
	if upstream != "" {
		c.Name = strings.TrimSuffix(c.Name, cardName) + upstream
		c.Description = "An MCP server behind mcp-proxy."
		c.Remotes = []cardRemote{{"streamable-http", root + "/mcp/" + upstream, headers, versions}}
		return c
	}
	c.Remotes = []cardRemote{
		{"streamable-http", root + "/mcp", headers, versions},
		{"sse", root + "/sse", headers, mcp.LegacyVersions[len(mcp.LegacyVersions)-1:]},
	}
	return c
}

// cardHeaders says how clients authenticate. A client gets a token of an authorization server
// itself, and may have a certificate instead, so only a static token must come from its user.
func (h *HTTP) cardHeaders(r *http.Request) []cardHeader {
	clients := h.Guard.clients()
	proofs := clients.Proofs()
	token := cardHeader{Name: "Authorization", cardInput: cardInput{IsSecret: true, IsRequired: !proofs.Issuers && !proofs.Certificates}}
	switch {
	case proofs.Issuers:
		metadata := clients.Root(r) + identity.MetadataPath + strings.TrimSuffix(r.URL.Path, cardSuffix)
		token.Description = "Bearer and an access token of an authorization server in " + metadata
	case proofs.Tokens:
		token.Description, token.Value = "Bearer and a token of this proxy", "Bearer {token}"
		token.Variables = map[string]cardInput{"token": {"A token of this proxy", true, true}}
	default:
		return nil
	}
	if proofs.Certificates {
		token.Description += ", unless a TLS certificate identifies the client"
	}
	return []cardHeader{token}
}

// domain returns the DNS name in the URL of our root. An address has none, and no form in a card.
func domain(root string) string {
	u, err := url.Parse(root)
	if err != nil || !strings.Contains(u.Hostname(), ".") {
		return "localhost"
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		return "localhost"
	}
	return strings.ToLower(strings.Trim(u.Hostname(), "."))
}
