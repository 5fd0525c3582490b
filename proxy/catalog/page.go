package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// ListParams returns the params of a request for one page. Of the client's own params it keeps only
// _meta, because others could change the list, which later calls use.
func ListParams(meta, cursor json.RawMessage) json.RawMessage {
	var members [][]byte
	if meta != nil {
		members = append(members, slices.Concat([]byte(`"_meta":`), meta))
	}
	if cursor != nil {
		members = append(members, slices.Concat([]byte(`"cursor":`), cursor))
	}
	if members == nil {
		return nil
	}
	return slices.Concat([]byte{'{'}, bytes.Join(members, []byte{','}), []byte{'}'})
}

// A Collection is one list of one upstream, with all its pages.
type Collection struct {
	Elements []json.RawMessage
	Rest     []jsonrpc.Value // other members of the first page
	Caching  Caching         // of the pages; modern era only

	pages int // added so far
}

// Add adds a page, the result of a list request. It returns the cursor of the next page; nil for
// none.
func (c *Collection) Add(era mcp.Era, list string, result json.RawMessage) (cursor json.RawMessage, err error) {
	var array json.RawMessage
	var rest []jsonrpc.Value
	err = jsonrpc.Each(result, func(key string, value json.RawMessage) {
		switch key {
		case list:
			array = value
		case "nextCursor":
			cursor = value
		default:
			rest = append(rest, jsonrpc.Value{Key: key, Text: value})
		}
	})
	if err != nil {
		return nil, err
	}
	if array == nil {
		return nil, errors.New("no " + list)
	}
	elements, err := jsonrpc.Elements(array)
	if err != nil {
		return nil, err
	}
	if len(cursor) == 0 || cursor[0] != '"' {
		cursor = nil
	}
	if era == mcp.Modern {
		var said Caching
		said, rest = takeCaching(rest)
		c.Caching.Add(said)
	}
	if c.pages++; c.pages == 1 {
		c.Rest = rest
	}
	c.Elements = append(c.Elements, elements...)
	return cursor, nil
}
