package catalog

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Caching says how long a result may be cached, and by whom (2026-07-28
// server/utilities/caching). The zero value is for a result that does not say: it must not be
// cached, and is private to its client.
type Caching struct {
	ttl    int64 // ms, never negative
	public bool
	some   bool // has at least one part
}

// Add adds the caching of one more part of an answer. The shortest time wins, and the answer is
// private if one of its parts is.
func (c *Caching) Add(part Caching) {
	if !c.some {
		*c = Caching{part.ttl, part.public, true}
		return
	}
	c.ttl = min(c.ttl, part.ttl)
	c.public = c.public && part.public
}

// Partial notes that a part is missing, which makes the answer stale when it comes.
func (c *Caching) Partial() { c.Add(Caching{}) }

// Public reports whether the answer may be kept for other clients. An answer that does not say so is
// private.
func (c *Caching) Public() bool { return c.public }

// Fresh reports whether the answer may still be used.
func (c Caching) Fresh() bool { return c.ttl > 0 }

// Aged returns the caching of an answer that was given some time ago.
func (c Caching) Aged(by time.Duration) Caching {
	c.ttl = max(c.ttl-max(by, 0).Milliseconds(), 0)
	return c
}

// Private makes the answer private to its client.
func (c *Caching) Private() { c.public = false }

// Private returns a result that is not public, adding the scope if it does not say.
func Private(result json.RawMessage) json.RawMessage {
	raw, err := glance(result, "cacheScope")
	if scope, _ := jsonrpc.Unquote(raw); err == nil && scope != "public" {
		return result
	}
	return jsonrpc.Set(result, jsonrpc.Value{Key: "cacheScope", Text: json.RawMessage(`"private"`)})
}

// Aged returns a result as it may be cached some time after it was given, or not at all if it is
// outdated.
func Aged(result json.RawMessage, by time.Duration, outdated bool) json.RawMessage {
	given := CachingOf(result)
	now := given.Aged(by)
	if outdated {
		now.ttl = 0
	}
	if now.ttl == given.ttl {
		return result
	}
	return jsonrpc.Set(result, jsonrpc.Value{Key: "ttlMs", Text: strconv.AppendInt(nil, now.ttl, 10)})
}

// maxTTL bounds times that are passed on to 10 years, so that no sum overflows.
const maxTTL = 10 * 365 * 24 * 3600 * 1000

// takeCaching removes the caching and resultType from the members of a result.
func takeCaching(members []jsonrpc.Value) (c Caching, rest []jsonrpc.Value) {
	for _, m := range members {
		switch m.Key {
		case "ttlMs":
			if ms, err := strconv.ParseFloat(string(m.Text), 64); err == nil {
				c.ttl = int64(min(max(ms, 0), maxTTL))
			}
		case "cacheScope":
			scope, _ := jsonrpc.Unquote(m.Text)
			c.public = scope == "public"
		case "resultType":
		default:
			rest = append(rest, m)
		}
	}
	return c, rest
}

// CachingOf returns the caching of a result.
func CachingOf(result json.RawMessage) Caching {
	var members []jsonrpc.Value
	if jsonrpc.Each(result, func(k string, v json.RawMessage) { members = append(members, jsonrpc.Value{Key: k, Text: v}) }) != nil {
		return Caching{}
	}
	c, _ := takeCaching(members)
	return c
}

// Members returns the members of a complete, cacheable result of the modern era.
func (c Caching) Members() []jsonrpc.Value {
	scope := `"private"`
	if c.public {
		scope = `"public"`
	}
	return []jsonrpc.Value{
		{Key: "resultType", Text: json.RawMessage(`"complete"`)},
		{Key: "ttlMs", Text: strconv.AppendInt(nil, c.ttl, 10)},
		{Key: "cacheScope", Text: json.RawMessage(scope)},
	}
}
