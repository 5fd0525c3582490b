package main

import (
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/examples/servers/server"
)

// notes are the files of a directory, with titles as file names. Several processes may share the directory.
type notes struct {
	root  *os.Root
	quiet atomic.Bool // the client wants no log messages of level info
}

var validTitle = regexp.MustCompile(`^[\pL\pN][\pL\pN .,_-]{0,63}$`)

type note struct {
	Title string `json:"title"`
	Text  string `json:"text"`
}

func (n *notes) add(_ context.Context, r *server.Request) (any, error) {
	var in note
	if err := r.Read(&in); err != nil {
		return nil, err
	}
	if !validTitle.MatchString(in.Title) {
		return nil, fmt.Errorf("%q cannot be a title", in.Title)
	}
	if err := n.root.WriteFile(in.Title, []byte(in.Text), 0o600); err != nil {
		return nil, err
	}
	return n.say(r, "Added: "+in.Title)
}

func (n *notes) find(_ context.Context, r *server.Request) (any, error) {
	var in note
	if err := r.Read(&in); err != nil {
		return nil, err
	}
	titles, err := n.titles()
	if err != nil {
		return nil, err
	}
	found := []string{}
	for _, title := range titles {
		text, err := n.root.ReadFile(title)
		if err != nil {
			continue // deleted in the meantime
		}
		if strings.Contains(strings.ToLower(title+"\n"+string(text)), strings.ToLower(in.Text)) {
			found = append(found, title)
		}
	}
	return server.Structured(map[string]any{"titles": found})
}

func (n *notes) delete(_ context.Context, r *server.Request) (any, error) {
	var in note
	if err := r.Read(&in); err != nil {
		return nil, err
	}
	if err := n.root.Remove(in.Title); err != nil {
		return nil, err
	}
	return n.say(r, "Deleted: "+in.Title)
}

// say returns text as a result, and logs it to the client.
func (n *notes) say(r *server.Request, text string) (any, error) {
	if n.quiet.Load() {
		return server.Text(text), nil
	}
	err := r.Notify("notifications/message", map[string]any{"level": "info", "logger": "notes", "data": text})
	return server.Text(text), err
}

func (n *notes) setLevel(_ context.Context, r *server.Request) (any, error) {
	var in struct {
		Level string `json:"level"`
	}
	if err := r.Read(&in); err != nil {
		return nil, err
	}
	n.quiet.Store(in.Level != "debug" && in.Level != "info")
	return struct{}{}, nil
}

// read reads the index or a note.
func (n *notes) read(_ context.Context, r *server.Request) (any, error) {
	var in struct {
		URI string `json:"uri"`
	}
	if err := r.Read(&in); err != nil {
		return nil, err
	}
	missing := &server.Error{Code: -32002, Message: "Resource not found", Data: in}
	uri, err := url.Parse(in.URI)
	if err != nil || uri.Scheme != "note" {
		return nil, missing
	}
	text := ""
	if title := strings.TrimPrefix(uri.Path, "/"); title != "" {
		file, err := n.root.ReadFile(title)
		if err != nil {
			return nil, missing
		}
		text = string(file)
	} else {
		titles, err := n.titles()
		if err != nil {
			return nil, err
		}
		text = strings.Join(titles, "\n")
	}
	return map[string]any{"contents": []any{contents(in.URI, text)}}, nil
}

func contents(uri, text string) map[string]string {
	return map[string]string{"uri": uri, "mimeType": "text/plain", "text": text}
}

func (n *notes) summarize(_ context.Context, r *server.Request) (any, error) {
	var in struct {
		Arguments note `json:"arguments"`
	}
	if err := r.Read(&in); err != nil {
		return nil, err
	}
	title := in.Arguments.Title
	text, err := n.root.ReadFile(title)
	if err != nil {
		return nil, &server.Error{Code: -32602, Message: fmt.Sprintf("there is no note %q", title)}
	}
	uri := url.URL{Scheme: "note", Path: "/" + title}
	says := func(content any) map[string]any { return map[string]any{"role": "user", "content": content} }
	return map[string]any{"messages": []any{
		says(map[string]string{"type": "text", "text": "Summarise this note in one sentence."}),
		says(map[string]any{"type": "resource", "resource": contents(uri.String(), string(text))}),
	}}, nil
}

// complete completes titles, which are the only arguments.
func (n *notes) complete(_ context.Context, r *server.Request) (any, error) {
	var in struct {
		Argument struct {
			Value string `json:"value"`
		} `json:"argument"`
	}
	if err := r.Read(&in); err != nil {
		return nil, err
	}
	titles, err := n.titles()
	if err != nil {
		return nil, err
	}
	values := slices.DeleteFunc(titles, func(title string) bool {
		return !strings.HasPrefix(strings.ToLower(title), strings.ToLower(in.Argument.Value))
	})
	shown := values[:min(len(values), 100)] // the specification's limit
	return map[string]any{"completion": map[string]any{
		"values": shown, "total": len(values), "hasMore": len(shown) < len(values),
	}}, nil
}

// titles returns the titles of all notes, sorted.
func (n *notes) titles() ([]string, error) {
	entries, err := fs.ReadDir(n.root.FS(), ".")
	if err != nil {
		return nil, err
	}
	titles := []string{}
	for _, entry := range entries {
		if entry.Type().IsRegular() {
			titles = append(titles, entry.Name())
		}
	}
	return titles, nil
}
