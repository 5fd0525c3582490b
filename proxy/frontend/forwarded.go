package frontend

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxForwarded bounds the bytes of the headers of one request that upstreams get.
const maxForwarded = 16 << 10

// forwarded reads the headers of r that upstreams get. If they cannot be forwarded, it refuses r
// and returns false.
func (h *HTTP) forwarded(w http.ResponseWriter, r *http.Request, c *caller) bool {
	if h.Forwards == nil {
		return true
	}
	all := h.Forwards(c.upstream)
	if len(all) == 0 {
		return true
	}
	from, size := make(map[string][]string), 0
	user := sha256.New()
	for _, f := range all {
		values := r.Header[f.Name]
		if values == nil {
			continue
		}
		if f.User {
			c.user = f.Name // replaced below
			user.Write([]byte(f.Name + strconv.Itoa(len(values))))
		}
		for _, v := range values {
			if !isPlain(v) {
				refuse(w, http.StatusBadRequest, f.Name+" has characters that are not forwarded")
				return false
			}
			size += len(f.Name) + len(v)
			from[f.Name] = append(from[f.Name], strings.Clone(v)) // the rest of the request is not kept
			if f.User {
				user.Write([]byte(":" + strconv.Itoa(len(v)) + v))
			}
		}
	}
	if size > maxForwarded {
		refuse(w, http.StatusRequestHeaderFieldsTooLarge, "the headers for upstreams are longer than 16 KiB")
		return false
	}
	if len(from) > 0 {
		c.forwarded = &jsonrpc.Forwarded{From: from}
	}
	if c.user != "" {
		c.user = base64.RawURLEncoding.EncodeToString(user.Sum(nil))
	}
	return true
}

// isPlain reports whether a value is ASCII without control characters.
func isPlain(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r > '~' })
}
