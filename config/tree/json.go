package tree

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tailscale/hujson"
)

// parseJSON parses JSON with comments and trailing commas, which editors use.
func parseJSON(data []byte) (*Node, error) {
	v, err := hujson.Parse(data)
	if err != nil {
		return nil, jsonError(err, data)
	}
	return new(budget).json(v, 0)
}

// jsonError returns the error of the standard library for the same text, which is clearer.
func jsonError(err error, data []byte) error {
	at := len(data)
	if plain := json.Unmarshal(data, new(json.RawMessage)); plain != nil {
		err = plain
	}
	if se, ok := errors.AsType[*json.SyntaxError](err); ok {
		at = int(se.Offset)
	}
	return fmt.Errorf("line %d: %w", line(data, at), err)
}

// json converts a value to a node.
func (b *budget) json(v hujson.Value, depth int) (*Node, error) {
	if err := b.spend(depth); err != nil {
		return nil, err
	}
	switch v := v.Value.(type) {
	case *hujson.Array:
		n := &Node{Kind: List}
		for _, e := range v.Elements {
			item, err := b.json(e, depth+1)
			if err != nil {
				return nil, err
			}
			n.Items = append(n.Items, item)
		}
		return n, nil
	case *hujson.Object:
		n := &Node{Kind: Object}
		for _, m := range v.Members {
			value, err := b.json(m.Value, depth+1)
			if err != nil {
				return nil, err
			}
			n.Members = append(n.Members, Member{Key: m.Name.Value.(hujson.Literal).String(), Value: value})
		}
		return n, nil
	case hujson.Literal:
		kinds := map[hujson.Kind]Kind{'"': Text, '0': Number, 't': Boolean, 'f': Boolean}
		if kind, ok := kinds[v.Kind()]; ok {
			return &Node{Kind: kind, Text: v.String()}, nil
		}
	}
	return &Node{Kind: Null}, nil
}
