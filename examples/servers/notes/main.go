// Command notes is an example MCP server over stdio that keeps notes as text
// files in a directory.
//
// Tools add, find and delete notes. A resource lists them, a template reads one, and a prompt asks for a summary of one.
// It completes titles, and logs changes to the client.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"path/filepath"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	dir := flag.String("dir", filepath.Join(os.TempDir(), "mcp-proxy-notes"),
		"the `directory` of the notes; it is made if there is none")
	flag.Parse()
	n, err := open(*dir)
	if err != nil {
		log.Fatal(err)
	}
	if err := server(n).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

func open(dir string) (*notes, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &notes{root}, nil
}

func server(n *notes) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "notes", Version: "1.0.0"}, &mcp.ServerOptions{
		Instructions:      "Notes survive this conversation. Look for a note before you write a new one.",
		CompletionHandler: n.complete,
	})
	mcp.AddTool(s, &mcp.Tool{Name: "add", Description: "Adds a note, in place of one of that title."}, n.add)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "find",
		Description: "Finds the titles of all notes that contain a text.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
	}, n.find)
	mcp.AddTool(s, &mcp.Tool{Name: "delete", Description: "Deletes a note."}, n.delete)
	s.AddResource(&mcp.Resource{
		URI: "note:///", Name: "index", Description: "The titles of all notes.", MIMEType: "text/plain",
	}, n.readIndex)
	s.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: "note:///{title}", Name: "note", Description: "One note.", MIMEType: "text/plain",
	}, n.readNote)
	s.AddPrompt(&mcp.Prompt{
		Name:        "summarize",
		Description: "Summarises a note.",
		Arguments:   []*mcp.PromptArgument{{Name: "title", Description: "the note's title", Required: true}},
	}, n.summarize)
	return s
}
