// Command notes is an example MCP server over stdio that keeps notes as text
// files in a directory.
//
// Tools add, find and delete notes. A resource lists them, a template reads one, and a prompt asks for a summary of one.
// It completes titles, and logs changes to the client.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"path/filepath"

	"github.com/mcp-proxy/mcp-proxy/examples/servers/server"
)

func main() {
	dir := flag.String("dir", filepath.Join(os.TempDir(), "mcp-proxy-notes"),
		"the `directory` of the notes; it is made if there is none")
	flag.Parse()
	n, err := open(*dir)
	if err != nil {
		log.Fatal(err)
	}
	if err := serverOf(n).Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
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
	return &notes{root: root}, nil
}

func serverOf(n *notes) *server.Server {
	const title, text = `"title": {"type": "string", "description": "letters, digits, spaces and .,_-"}`, `"text": {"type": "string"}`
	return &server.Server{
		Name: "notes", Version: "1.0.0",
		Instructions: "Notes survive this conversation. Look for a note before you write a new one.",
		Capabilities: map[string]any{"resources": struct{}{}, "prompts": struct{}{}, "completions": struct{}{}, "logging": struct{}{}},
		Tools: []server.Tool{{
			Name: "add", Description: "Adds a note, in place of one of that title.", Call: n.add,
			InputSchema: object(title+","+text, `"title", "text"`),
		}, {
			Name: "find", Description: "Finds the titles of all notes that contain a text.", Call: n.find,
			Annotations:  map[string]bool{"readOnlyHint": true},
			InputSchema:  object(`"text": {"type": "string", "description": "what to look for, in titles too, without regard to case"}`, `"text"`),
			OutputSchema: object(`"titles": {"type": "array", "items": {"type": "string"}}`, `"titles"`),
		}, {
			Name: "delete", Description: "Deletes a note.", Call: n.delete,
			InputSchema: object(title, `"title"`),
		}},
		Methods: map[string]server.Method{
			"resources/list": result(map[string]any{"resources": []any{map[string]string{
				"uri": "note:///", "name": "index", "description": "The titles of all notes.", "mimeType": "text/plain",
			}}}),
			"resources/templates/list": result(map[string]any{"resourceTemplates": []any{map[string]string{
				"uriTemplate": "note:///{title}", "name": "note", "description": "One note.", "mimeType": "text/plain",
			}}}),
			"resources/read": n.read,
			"prompts/list": result(map[string]any{"prompts": []any{map[string]any{
				"name": "summarize", "description": "Summarises a note.",
				"arguments": []any{map[string]any{"name": "title", "description": "the note's title", "required": true}},
			}}}),
			"prompts/get":         n.summarize,
			"completion/complete": n.complete,
			"logging/setLevel":    n.setLevel,
		},
	}
}

// object returns the schema of an object with properties.
func object(properties, required string) json.RawMessage {
	return json.RawMessage(`{"type": "object", "properties": {` + properties + `}, "required": [` + required + `], "additionalProperties": false}`)
}

// result returns a method that always has the same result.
func result(value any) server.Method {
	return func(context.Context, *server.Request) (any, error) { return value, nil }
}
