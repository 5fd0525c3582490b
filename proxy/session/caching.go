package session

import (
	"encoding/json"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A caching is how long and by whom a result may be kept (2026-07-28
// server/utilities/caching). The zero value is what is assumed of a result that
// does not say: for no time, by nobody but its client.
type caching struct {
	ttl    int64 // ms, never negative
	public bool
}

// A cachings makes the caching of an answer of those of its parts: the shortest
// time, and private if one of them is.
type cachings struct {
	merged caching
	some   bool // merged has a part
}

func (cs *cachings) add(c caching) {
	if !cs.some {
		*cs = cachings{c, true}
		return
	}
	cs.merged.ttl = min(cs.merged.ttl, c.ttl)
	cs.merged.public = cs.merged.public && c.public
}

// partial notes that a part is missing, of which nothing is known: the answer is
// stale when it is there.
func (cs *cachings) partial() { cs.add(caching{}) }

// maxTTL bounds a time that is passed on, so that no sum of it overflows: 10 years.
const maxTTL = 10 * 365 * 24 * 3600 * 1000

// takeCaching splits the members of a result in its caching, and those that are
// neither that nor resultType.
func takeCaching(members []member) (c caching, rest []member) {
	for _, m := range members {
		switch m.key {
		case "ttlMs":
			if ms, err := strconv.ParseFloat(string(m.value), 64); err == nil {
				c.ttl = int64(min(max(ms, 0), maxTTL))
			}
		case "cacheScope":
			scope, _ := jsonrpc.Unquote(m.value)
			c.public = scope == "public"
		case "resultType":
		default:
			rest = append(rest, m)
		}
	}
	return c, rest
}

// cachingOf reads the caching of a result.
func cachingOf(result json.RawMessage) caching {
	var members []member
	if jsonrpc.Each(result, func(k string, v json.RawMessage) { members = append(members, member{k, v}) }) != nil {
		return caching{}
	}
	c, _ := takeCaching(members)
	return c
}

// members are those that a complete, cacheable result of the modern era has.
func (c caching) members() []member {
	scope := `"private"`
	if c.public {
		scope = `"public"`
	}
	return []member{
		{"resultType", json.RawMessage(`"complete"`)},
		{"ttlMs", strconv.AppendInt(nil, c.ttl, 10)},
		{"cacheScope", json.RawMessage(scope)},
	}
}
