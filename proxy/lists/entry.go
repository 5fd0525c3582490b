package lists

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// An Entry is what an upstream said. It is immutable.
type Entry struct {
	Introduction json.RawMessage            // the result of initialize or server/discover
	Capabilities map[string]json.RawMessage // in the introduction
	Lists        [catalog.Kinds]*List       // nil: not known, because the list is private or too long
	Asked        time.Time                  // when the upstream was asked
	Outdated     bool                       // the upstream has changed a list since

	// Translated is whether the host has translated the answers of a server of the legacy era for a
	// client of the modern era. Such a server says nothing of caching: what its results say was added
	// by the host, and is for clients only. It notifies of changes.
	Translated bool
}

// NewEntry returns an entry without lists. The error says what is wrong with the capabilities; the
// entry is usable all the same.
func NewEntry(introduction json.RawMessage) (*Entry, error) {
	e := &Entry{Introduction: introduction, Capabilities: make(map[string]json.RawMessage), Asked: time.Now()}
	capabilities, err := jsonrpc.Member(introduction, "capabilities")
	if err == nil && capabilities != nil {
		err = jsonrpc.Each(capabilities, func(k string, v json.RawMessage) { e.Capabilities[k] = v })
	}
	versions, _ := jsonrpc.Member(introduction, "supportedVersions") // absent in the legacy era
	e.Translated = mcp.OnlyLegacy(versions)
	return e, err
}

// size returns the bytes of the entry.
func (e *Entry) size() int {
	n := len(e.Introduction)
	for _, l := range e.Lists {
		if l != nil {
			n += len(l.Page)
		}
	}
	return n
}

// equal reports whether the upstream said the same, byte for byte.
func (e *Entry) equal(other *Entry) bool {
	if !bytes.Equal(e.Introduction, other.Introduction) {
		return false
	}
	for k, l := range e.Lists {
		if !l.equal(other.Lists[k]) {
			return false
		}
	}
	return true
}

// A List is one list of an upstream. It is immutable.
type List struct {
	Page    json.RawMessage // as one page of the upstream
	Offered bool            // the upstream has such a list
	Table   *catalog.Table  // of what clients may see
	Rest    []jsonrpc.Value // other members of the page
	Caching catalog.Caching // modern era only
}

func (l *List) equal(other *List) bool {
	if l == nil || other == nil {
		return l == other
	}
	return l.Offered == other.Offered && bytes.Equal(l.Page, other.Page)
}

// Absent is the list of an upstream that has no such list.
func Absent() *List {
	t, _ := catalog.Index(catalog.Tools, nil, nil)
	return &List{Table: t}
}

// NewList returns a list of the upstream that was collected from its pages, with a table of what
// allows accepts. It returns nil if the list must not be kept for other clients.
func (e *Entry) NewList(k catalog.Kind, era mcp.Era, all *catalog.Collection, allows func(tool string) bool) *List {
	if era == mcp.Modern && !all.Caching.Public() && !e.Translated {
		return nil
	}
	members := []jsonrpc.Value{{Key: k.Member(), Text: jsonrpc.Array(all.Elements)}}
	if era == mcp.Modern {
		members = append(members, all.Caching.Members()...)
	}
	l, err := readList(k, era, jsonrpc.Set(nil, append(members, all.Rest...)...), allows)
	if err != nil { // impossible for what was collected
		return nil
	}
	return l
}

// readList returns the list in a page.
func readList(k catalog.Kind, era mcp.Era, page json.RawMessage, allows func(tool string) bool) (*List, error) {
	var all catalog.Collection
	if _, err := all.Add(era, k.Member(), page); err != nil {
		return nil, err
	}
	l := &List{Page: page, Offered: true, Rest: all.Rest, Caching: all.Caching}
	l.Table, _ = catalog.Index(k, all.Elements, func(name string) bool { return k != catalog.Tools || allows(name) })
	return l, nil
}

// An AskFunc asks an upstream and returns its result. The error of an error response is an
// [*AnswerError].
type AskFunc func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)

// An AnswerError is an error response of an upstream.
type AnswerError struct{ Wire json.RawMessage }

// Error implements error, for logs: bounded, and without the data.
func (e *AnswerError) Error() string {
	code, _ := jsonrpc.Member(e.Wire, "code")
	return fmt.Sprintf("%.1000s (%.20s)", jsonrpc.WhatOf(e.Wire), code)
}

// Unsupported reports whether the upstream does not know the method.
func (e *AnswerError) Unsupported() bool { return IsUnsupported(e.Wire) }

// IsUnsupported reports whether an error says that the upstream does not know the method.
func IsUnsupported(wire json.RawMessage) bool {
	code, _ := jsonrpc.Member(wire, "code")
	return string(code) == noMethod
}

// noMethod is [jsonrpc.CodeMethodNotFound] as it is written in an error.
const noMethod = "-32601"

// Errors of Collect.
var (
	ErrUnusable = errors.New("unusable list")
	ErrTooLong  = errors.New("overlong cursor")
)

// maxEmptyPages bounds the pages without elements of a list. Those with some are bounded by their bytes.
const maxEmptyPages = 1000

// Collect asks with a method for all pages of a list, a member of the results. It takes at most so
// many bytes as most says; the error for more, as for an invalid page, is an [ErrUnusable]. The meta is the _meta of its requests, nil for none. If
// the list goes on after the last page that it takes, the caching of the collection is partial: where a page comes
// again, or too many are empty. For a cursor that is too long the error is ErrTooLong, and the collection is usable.
func Collect(ctx context.Context, ask AskFunc, method, list string, era mcp.Era, meta json.RawMessage, most int) (all catalog.Collection, err error) {
	var cursor, before json.RawMessage
	size, empty, again := 0, 0, false
	for empty < maxEmptyPages {
		result, err := ask(ctx, method, catalog.ListParams(meta, cursor))
		if err != nil {
			return all, err
		}
		if size += len(result); size > most {
			return all, fmt.Errorf("%w: longer than twice limits.message", ErrUnusable)
		}
		if again && string(result) == string(before) {
			break
		}
		n := len(all.Elements)
		next, err := all.Add(era, list, result)
		switch {
		case err != nil:
			return all, ErrUnusable
		case next == nil:
			return all, nil
		case mcp.IsTooLong(next):
			all.Caching.Partial()
			return all, ErrTooLong
		}
		if len(all.Elements) == n {
			empty++
		}
		again = string(next) == string(cursor) // a server may use one cursor for all pages
		cursor, before = next, result
	}
	all.Caching.Partial()
	return all, nil
}
