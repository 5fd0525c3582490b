package tree

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// parseTOML builds the tree from the parser's expressions, which only the unstable interface
// of the library returns. The stable one decodes into maps, which lose the order of upstreams,
// all duplicates but the first, and how scalars were written. The decoder still checks the whole
// document for all other rules of TOML.
func parseTOML(data []byte) (*Node, error) {
	p := tomlParser{implied: make(map[*Node]bool)}
	root := p.table(false)
	bad := p.document(root, data)
	if p.limit != nil {
		return nil, p.limit
	}
	if p.duplicates && bad == nil {
		return root, nil // the decoder would report only the first
	}
	if err := toml.Unmarshal(data, new(map[string]any)); err != nil {
		return nil, tomlError(err)
	}
	return root, bad
}

func tomlError(err error) error {
	what := strings.TrimPrefix(err.Error(), "toml: ")
	if de, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, _ := de.Position()
		return fmt.Errorf("line %d: %s", row, what)
	}
	return errors.New(what)
}

type tomlParser struct {
	budget
	implied    map[*Node]bool // for every table: only deeper [headers] have named it so far, and its own may follow
	duplicates bool
	limit      error // the bound that the document exceeds
}

func (p *tomlParser) table(implied bool) *Node {
	n := &Node{Kind: Object}
	p.implied[n] = implied
	return n
}

func (p *tomlParser) document(root *Node, data []byte) error {
	var up unstable.Parser
	up.Reset(data)
	table, depth := root, 0
	for up.NextExpression() {
		e := up.Expression()
		keys := tomlKeys(e)
		var err error
		switch e.Kind {
		case unstable.KeyValue:
			err = p.keyValue(table, keys, e.Value(), depth)
		case unstable.Table:
			table, err = p.header(root, keys, false)
			depth = len(keys)
		case unstable.ArrayTable:
			table, err = p.header(root, keys, true)
			depth = len(keys) + 1
		}
		if err != nil {
			return err
		}
	}
	return up.Error()
}

func tomlKeys(e *unstable.Node) []string {
	var keys []string
	for it := e.Key(); it.Next(); {
		keys = append(keys, string(it.Node().Data))
	}
	return keys
}

// put adds a member, also if the key is a duplicate: place reports that.
func (p *tomlParser) put(table *Node, key string, value *Node) {
	p.duplicates = p.duplicates || table.Has(key)
	table.Members = append(table.Members, Member{Key: key, Value: value})
}

// descend returns the table at keys, and creates the missing ones. Of an array of tables it takes
// the last one.
func (p *tomlParser) descend(table *Node, keys []string, implied bool) (*Node, error) {
	for i, key := range keys {
		next := table.Get(key)
		if next == nil {
			if err := p.count(i); err != nil {
				return nil, err
			}
			next = p.table(implied)
			p.put(table, key, next)
		}
		if next.Kind == List && len(next.Items) > 0 {
			next = next.Items[len(next.Items)-1]
		}
		if _, isTable := p.implied[next]; !isTable {
			return nil, fmt.Errorf("%s already has a value", strings.Join(keys[:i+1], "."))
		}
		table = next
	}
	return table, nil
}

// header returns the table of a [header]; with array, of a new item of the array.
func (p *tomlParser) header(root *Node, keys []string, array bool) (*Node, error) {
	last := len(keys) - 1
	parent, err := p.descend(root, keys[:last], true)
	if err != nil {
		return nil, err
	}
	n := parent.Get(keys[last])
	if n != nil && !array && p.implied[n] {
		p.implied[n] = false
		return n, nil
	}
	table := p.table(false)
	switch {
	case !array:
		p.put(parent, keys[last], table)
		return table, p.count(last)
	case n == nil || n.Kind != List:
		n = &Node{Kind: List}
		p.put(parent, keys[last], n)
	}
	n.Items = append(n.Items, table)
	return table, p.count(last + 1)
}

func (p *tomlParser) keyValue(table *Node, keys []string, u *unstable.Node, depth int) error {
	last := len(keys) - 1
	table, err := p.descend(table, keys[:last], false)
	if err != nil {
		return err
	}
	value, err := p.value(u, depth+len(keys))
	if err != nil {
		return err
	}
	p.put(table, keys[last], value)
	return nil
}

func (p *tomlParser) count(depth int) error {
	if err := p.spend(depth); err != nil {
		p.limit = err
	}
	return p.limit
}

func (p *tomlParser) value(u *unstable.Node, depth int) (*Node, error) {
	if err := p.count(depth); err != nil {
		return nil, err
	}
	switch u.Kind {
	case unstable.Array:
		n := &Node{Kind: List}
		for it := u.Children(); it.Next(); {
			item, err := p.value(it.Node(), depth+1)
			if err != nil {
				return nil, err
			}
			n.Items = append(n.Items, item)
		}
		return n, nil
	case unstable.InlineTable:
		n := p.table(false)
		for it := u.Children(); it.Next(); {
			if err := p.keyValue(n, tomlKeys(it.Node()), it.Node().Value(), depth); err != nil {
				return nil, err
			}
		}
		return n, nil
	}
	return tomlScalar(u), nil
}

func tomlScalar(u *unstable.Node) *Node {
	s := string(u.Data)
	switch u.Kind {
	case unstable.Bool:
		return &Node{Kind: Boolean, Text: s}
	case unstable.Integer: // 1_000 and 0x1F are integers only in TOML
		if i, err := strconv.ParseInt(s, 0, 64); err == nil {
			s = strconv.FormatInt(i, 10)
		}
		return &Node{Kind: Number, Text: s}
	case unstable.Float:
		return &Node{Kind: Number, Text: s}
	}
	return &Node{Kind: Text, Text: s}
}
