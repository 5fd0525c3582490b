package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// parseYAML parses one document. Anchors, aliases and merge keys work; every use
// of an alias counts against the budget.
func parseYAML(data []byte) (*Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return &Node{Kind: Null}, nil
	case err != nil:
		return nil, yamlError(err, data)
	}
	switch err := dec.Decode(&next); {
	case err == nil:
		return nil, fmt.Errorf("line %d: holds a second document", next.Line)
	case !errors.Is(err, io.EOF):
		return nil, yamlError(err, data)
	}
	return new(budget).yaml(&doc, 0)
}

var tabbed = lazyregexp.New(`(?m)^ *\t+[^\s#]`)

// yamlAdvice says what to do about errors that the parser states in its own terms.
var yamlAdvice = map[string]string{
	"found unknown escape character":                        `: in double quotes write \\ for a backslash, or use single quotes`,
	"found character that cannot start any token":           ": put a text that begins with @, % or ` in quotes",
	"did not find expected alphabetic or numeric character": quoteStar,
}

const quoteStar = ": put a text that begins with * or & in quotes"

// yamlError returns the error for a text that cannot be parsed, with its line and what to do. For a
// tab as indentation, the parser says only that it cannot start a token.
func yamlError(err error, data []byte) error {
	if at := tabbed.FindIndex(data); at != nil {
		return fmt.Errorf("line %d: begins with a tab: indent YAML with spaces", line(data, at[0]))
	}
	n, text := yamlMessage(err)
	advice := yamlAdvice[text]
	if strings.HasPrefix(text, "unknown anchor ") {
		advice = quoteStar
	}
	return fmt.Errorf("line %d: %s%s", yamlLine(data, n, text), text, advice)
}

// yamlMessage returns the line in an error of the parser, 0 for none, and what it says.
func yamlMessage(err error) (n int, text string) {
	text = strings.TrimPrefix(err.Error(), "yaml: ")
	if at, rest, ok := strings.Cut(text, ": "); ok {
		if _, err := fmt.Sscanf(at, "line %d", &n); err == nil {
			text = rest
		}
	}
	return n, text
}

// yamlLine returns the line of a mistake. The parser names none, the one before, or that in which
// the map or list around it begins. The mistake is in the last line of the shortest beginning
// of the text that has it, as all longer ones do.
func yamlLine(data []byte, from int, text string) int {
	lines := bytes.SplitAfter(data, []byte("\n"))
	from = max(from, 1)
	return from + sort.Search(max(len(lines)-from, 0), func(i int) bool {
		dec := yaml.NewDecoder(bytes.NewReader(bytes.Join(lines[:from+i], nil)))
		err := dec.Decode(new(yaml.Node))
		if err == nil {
			err = dec.Decode(new(yaml.Node)) // of a second document
		}
		if err == nil {
			return false
		}
		_, found := yamlMessage(err)
		return found == text
	})
}

// yaml converts a value to a node.
func (b *budget) yaml(y *yaml.Node, depth int) (*Node, error) {
	if err := b.spend(depth); err != nil {
		return nil, err
	}
	switch y.Kind {
	case yaml.DocumentNode:
		return b.yaml(y.Content[0], depth)
	case yaml.AliasNode:
		return b.yaml(y.Alias, depth+1) // deeper, so that a cycle exceeds the depth
	case yaml.SequenceNode:
		return b.yamlList(y, depth)
	case yaml.MappingNode:
		return b.yamlObject(y, depth)
	default:
		return scalarNode(y)
	}
}

func (b *budget) yamlList(y *yaml.Node, depth int) (*Node, error) {
	n := &Node{Kind: List}
	for _, c := range y.Content {
		item, err := b.yaml(c, depth+1)
		if err != nil {
			return nil, err
		}
		n.Items = append(n.Items, item)
	}
	return n, nil
}

func (b *budget) yamlObject(y *yaml.Node, depth int) (*Node, error) {
	n := &Node{Kind: Object}
	var merged []Member
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: keys must be plain text", key.Line)
		}
		value, err := b.yaml(y.Content[i+1], depth+1)
		if err != nil {
			return nil, err
		}
		if key.ShortTag() != "!!merge" {
			n.Members = append(n.Members, Member{Key: key.Value, Value: value})
			continue
		}
		more, ok := mergeable(value)
		if !ok {
			return nil, fmt.Errorf("line %d: << needs a map or a list of maps", key.Line)
		}
		merged = append(merged, more...)
	}
	return merge(n, merged), nil
}

// mergeable returns the members that a << merges, those with precedence first.
func mergeable(n *Node) (members []Member, ok bool) {
	switch n.Kind {
	case Object:
		return n.Members, true
	case List:
		for _, item := range n.Items {
			if item.Kind != Object {
				return nil, false
			}
			members = append(members, item.Members...)
		}
		return members, true
	}
	return nil, false
}

// merge adds the members whose keys n does not have. To override one is no mistake.
func merge(n *Node, merged []Member) *Node {
	has := make(map[string]bool)
	for _, m := range n.Members {
		has[m.Key] = true
	}
	for _, m := range merged {
		if !has[m.Key] {
			has[m.Key] = true
			n.Members = append(n.Members, m)
		}
	}
	return n
}

// scalarNode follows the core schema of YAML 1.2: dates, yes and no are text.
func scalarNode(y *yaml.Node) (*Node, error) {
	n := &Node{Text: y.Value}
	switch y.ShortTag() {
	case "!!str", "!!timestamp":
		n.Kind = Text
	case "!!int", "!!float":
		n.Kind = Number
	case "!!bool":
		n.Kind = Boolean
	case "!!null":
		n.Kind = Null
	case "!!merge": // "<<" as a value
		n.Kind = Text
	default:
		return nil, fmt.Errorf("line %d: the tag %q is not supported", y.Line, y.ShortTag())
	}
	return n, nil
}
