package tree

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/tailscale/hujson"
)

// parseJSON reads JSON as editors keep it: with comments and trailing commas.
func parseJSON(data []byte) (*Node, error) {
	if strict, err := hujson.Standardize(bytes.Clone(data)); err == nil {
		data = strict // what was taken out is blank now: all else stays in its line
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		at := len(data)
		if se, ok := errors.AsType[*json.SyntaxError](err); ok {
			at = int(se.Offset)
		}
		return nil, fmt.Errorf("line %d: %w", line(data, at), err)
	}
	p := jsonParser{dec: json.NewDecoder(bytes.NewReader(data))}
	p.dec.UseNumber()
	return p.value(0)
}

// A jsonParser walks tokens, since decoding into maps loses order and
// duplicates. The text is known to be well-formed.
type jsonParser struct {
	budget
	dec *json.Decoder
}

func (p *jsonParser) value(depth int) (*Node, error) {
	if err := p.spend(depth); err != nil {
		return nil, err
	}
	tok, err := p.dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := tok.(type) {
	case json.Delim:
		if t == '[' {
			return p.list(depth)
		}
		return p.object(depth)
	case string:
		return &Node{Kind: Text, Text: t}, nil
	case json.Number:
		return &Node{Kind: Number, Text: t.String()}, nil
	case bool:
		return &Node{Kind: Boolean, Text: strconv.FormatBool(t)}, nil
	default:
		return &Node{Kind: Null}, nil
	}
}

func (p *jsonParser) list(depth int) (*Node, error) {
	n := &Node{Kind: List}
	for p.dec.More() {
		item, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		n.Items = append(n.Items, item)
	}
	_, err := p.dec.Token() // ]
	return n, err
}

func (p *jsonParser) object(depth int) (*Node, error) {
	n := &Node{Kind: Object}
	for p.dec.More() {
		key, err := p.dec.Token()
		if err != nil {
			return nil, err
		}
		value, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		n.Members = append(n.Members, Member{Key: key.(string), Value: value})
	}
	_, err := p.dec.Token() // }
	return n, err
}
