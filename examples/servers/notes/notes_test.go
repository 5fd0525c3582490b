package main

import (
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// connect returns a client of a server with the notes "Shopping list" and "Ideas".
func connect(t *testing.T) *mcp.ClientSession {
	n, err := open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- serverOf(n).Serve(t.Context(), in, out) }()
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); <-served; n.root.Close() })
	call(t, client, "add", note{"Shopping list", "milk"})
	call(t, client, "add", note{"Ideas", "a proxy"})
	return client
}

// call returns the text of a tool's result, or "error: " and its message.
func call(t *testing.T, client *mcp.ClientSession, name string, args any) string {
	t.Helper()
	res, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	text := res.Content[0].(*mcp.TextContent).Text
	if res.IsError {
		return "error: " + text
	}
	return text
}

func TestFind(t *testing.T) {
	client := connect(t)
	for text, want := range map[string]string{
		"MILK":  `{"titles":["Shopping list"]}`,
		"idea":  `{"titles":["Ideas"]}`,
		"honey": `{"titles":[]}`,
	} {
		if got := call(t, client, "find", map[string]any{"text": text}); got != want {
			t.Errorf("find %q: %s, want %s", text, got, want)
		}
	}
}

func TestDelete(t *testing.T) {
	client := connect(t)
	if got := call(t, client, "delete", map[string]any{"title": "Ideas"}); got != "Deleted: Ideas" {
		t.Error(got)
	}
	if got := call(t, client, "delete", map[string]any{"title": "Ideas"}); !strings.HasPrefix(got, "error: ") {
		t.Error("deleted twice: " + got)
	}
}

func TestTitles(t *testing.T) {
	client := connect(t)
	for _, title := range []string{"", "../escape", "a/b", ".hidden", strings.Repeat("a", 65)} {
		if got := call(t, client, "add", note{title, ""}); !strings.HasPrefix(got, "error: ") {
			t.Errorf("title %q: %s", title, got)
		}
	}
}

func TestResources(t *testing.T) {
	client := connect(t)
	for uri, want := range map[string]string{
		"note:///":                "Ideas\nShopping list",
		"note:///Shopping%20list": "milk",
	} {
		res, err := client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			t.Errorf("%s: %v", uri, err)
		} else if got := res.Contents[0].Text; got != want {
			t.Errorf("%s: %q, want %q", uri, got, want)
		}
	}
	if _, err := client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "note:///Nothing"}); err == nil {
		t.Error("a note that does not exist was read")
	}
}

func TestSummarize(t *testing.T) {
	client := connect(t)
	argument := mcp.CompleteParamsArgument{Name: "title", Value: "sho"}
	completed, err := client.Complete(t.Context(), &mcp.CompleteParams{
		Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "summarize"}, Argument: argument,
	})
	if err != nil || len(completed.Completion.Values) != 1 {
		t.Fatalf("completion: %v, %v", completed, err)
	}
	res, err := client.GetPrompt(t.Context(), &mcp.GetPromptParams{
		Name: "summarize", Arguments: map[string]string{"title": completed.Completion.Values[0]},
	})
	if err != nil {
		t.Fatal(err)
	}
	embedded := res.Messages[1].Content.(*mcp.EmbeddedResource).Resource
	if embedded.URI != "note:///Shopping%20list" || embedded.Text != "milk" {
		t.Errorf("embedded: %+v", embedded)
	}
}
