package main

import (
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// notes are the files of a directory, with titles as file names. Several processes may share the directory.
type notes struct {
	root *os.Root
}

var validTitle = regexp.MustCompile(`^[\pL\pN][\pL\pN .,_-]{0,63}$`)

type note struct {
	Title string `json:"title" jsonschema:"letters, digits, spaces and .,_-"`
	Text  string `json:"text"`
}

func (n *notes) add(ctx context.Context, req *mcp.CallToolRequest, in note) (*mcp.CallToolResult, any, error) {
	if !validTitle.MatchString(in.Title) {
		return nil, nil, fmt.Errorf("%q cannot be a title", in.Title)
	}
	if err := n.root.WriteFile(in.Title, []byte(in.Text), 0o600); err != nil {
		return nil, nil, err
	}
	return say(ctx, req, "Added: "+in.Title)
}

type query struct {
	Text string `json:"text" jsonschema:"what to look for, in titles too, without regard to case"`
}

type found struct {
	Titles []string `json:"titles"`
}

func (n *notes) find(_ context.Context, _ *mcp.CallToolRequest, in query) (*mcp.CallToolResult, found, error) {
	titles, err := n.titles()
	if err != nil {
		return nil, found{}, err
	}
	out := found{Titles: []string{}}
	for _, title := range titles {
		text, err := n.root.ReadFile(title)
		if err != nil {
			continue // deleted in the meantime
		}
		if strings.Contains(strings.ToLower(title+"\n"+string(text)), strings.ToLower(in.Text)) {
			out.Titles = append(out.Titles, title)
		}
	}
	return nil, out, nil
}

type titled struct {
	Title string `json:"title"`
}

func (n *notes) delete(ctx context.Context, req *mcp.CallToolRequest, in titled) (*mcp.CallToolResult, any, error) {
	if err := n.root.Remove(in.Title); err != nil {
		return nil, nil, err
	}
	return say(ctx, req, "Deleted: "+in.Title)
}

// say returns text as a result, and logs it to the client.
func say(ctx context.Context, req *mcp.CallToolRequest, text string) (*mcp.CallToolResult, any, error) {
	//lint:ignore SA1019 all versions in use have logging
	err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Logger: "notes", Data: text})
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, err
}

func (n *notes) readIndex(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	titles, err := n.titles()
	if err != nil {
		return nil, err
	}
	return contents(req.Params.URI, strings.Join(titles, "\n")), nil
}

func (n *notes) readNote(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri, err := url.Parse(req.Params.URI)
	if err != nil {
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	}
	text, err := n.root.ReadFile(strings.TrimPrefix(uri.Path, "/"))
	if err != nil {
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	}
	return contents(req.Params.URI, string(text)), nil
}

func contents(uri, text string) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: "text/plain", Text: text}}}
}

func (n *notes) summarize(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	title := req.Params.Arguments["title"]
	text, err := n.root.ReadFile(title)
	if err != nil {
		return nil, fmt.Errorf("there is no note %q", title)
	}
	uri := url.URL{Scheme: "note", Path: "/" + title}
	return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{
		{Role: "user", Content: &mcp.TextContent{Text: "Summarise this note in one sentence."}},
		{Role: "user", Content: &mcp.EmbeddedResource{Resource: contents(uri.String(), string(text)).Contents[0]}},
	}}, nil
}

// complete completes titles, which are the only arguments.
func (n *notes) complete(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	titles, err := n.titles()
	if err != nil {
		return nil, err
	}
	values := []string{}
	for _, title := range titles {
		if strings.HasPrefix(strings.ToLower(title), strings.ToLower(req.Params.Argument.Value)) {
			values = append(values, title)
		}
	}
	shown := values[:min(len(values), 100)] // the specification's limit
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{
		Values: shown, Total: len(values), HasMore: len(shown) < len(values),
	}}, nil
}

// titles returns the titles of all notes, sorted.
func (n *notes) titles() ([]string, error) {
	entries, err := fs.ReadDir(n.root.FS(), ".")
	if err != nil {
		return nil, err
	}
	var titles []string
	for _, entry := range entries {
		if entry.Type().IsRegular() {
			titles = append(titles, entry.Name())
		}
	}
	return titles, nil
}
