// Command talker asks a server what the tests in interop ask of all, as a client
// of the Go SDK: talker ERA TARGET…, where the target is a URL or a command. What
// it was told it says on stdout, as one JSON object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var versions = map[string]string{"legacy": "2025-11-25", "modern": "2026-07-28"}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 || versions[os.Args[1]] == "" {
		log.Fatal("usage: talker legacy|modern URL|COMMAND…")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	said, err := talk(ctx, versions[os.Args[1]], os.Args[2:])
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		log.Fatal(err)
	}
}

// A talker has one session, and notes what comes beside answers.
type talker struct {
	session *mcp.ClientSession
	changes chan struct{} // full: enough is known
	steps   chan float64
}

func talk(ctx context.Context, version string, target []string) (map[string]any, error) {
	t := talker{changes: make(chan struct{}, 1), steps: make(chan float64, 100)}
	client := mcp.NewClient(&mcp.Implementation{Name: "talker", Version: "1.0.0"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": req.Params.Message}}, nil
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			select {
			case t.changes <- struct{}{}:
			default:
			}
		},
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			t.steps <- req.Params.Progress
		},
	})
	var err error
	t.session, err = client.Connect(ctx, transport(target), &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return nil, err
	}
	defer t.session.Close()
	return t.everything(ctx)
}

func transport(target []string) mcp.Transport {
	if strings.HasPrefix(target[0], "http:") {
		return &mcp.StreamableClientTransport{Endpoint: target[0]}
	}
	return &mcp.CommandTransport{Command: exec.Command(target[0], target[1:]...)}
}

func (t *talker) everything(ctx context.Context) (map[string]any, error) {
	said := map[string]any{}
	for name, ask := range map[string]func(context.Context) (any, error){
		"tools": t.tools, "changed": t.changed, "said": t.echo, "asked": t.asked, "steps": t.progress, "error": t.failure,
	} {
		var err error
		if said[name], err = ask(ctx); err != nil {
			return nil, errors.Join(errors.New(name), err)
		}
	}
	var err error
	said["cancelled"], err = t.cancelled(ctx) // last, for its progress comes late
	return said, err
}

func (t *talker) tools(ctx context.Context) (any, error) {
	names := []string{}
	for tool, err := range t.session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		if tool.Name != "appears" {
			names = append(names, tool.Name)
		}
	}
	return names, nil
}

func (t *talker) changed(ctx context.Context) (any, error) {
	if _, err := t.call(ctx, "test_trigger_tool_change", nil); err != nil {
		return nil, err
	}
	select {
	case <-t.changes:
		return true, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (t *talker) echo(ctx context.Context) (any, error) {
	return t.call(ctx, "echo", map[string]any{"text": "h\u00e9 \U0001f44b"})
}

func (t *talker) asked(ctx context.Context) (any, error) {
	text, err := t.call(ctx, "ask", map[string]any{"message": "Who?"})
	return json.RawMessage(text), err
}

func (t *talker) progress(ctx context.Context) (any, error) {
	params := &mcp.CallToolParams{Name: "work", Arguments: map[string]any{"steps": 3, "hold": false}}
	params.SetProgressToken("progress")
	if _, err := t.session.CallTool(ctx, params); err != nil {
		return nil, err
	}
	steps := []float64{}
	for range 3 {
		select {
		case at := <-t.steps:
			steps = append(steps, at)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return steps, nil
}

func (t *talker) failure(ctx context.Context) (any, error) {
	res, err := t.session.CallTool(ctx, &mcp.CallToolParams{Name: "fail", Arguments: map[string]any{}})
	var refused *jsonrpc.Error
	switch {
	case errors.As(err, &refused):
		said := map[string]any{"code": refused.Code, "message": refused.Message, "data": refused.Data}
		return said, nil
	case err != nil:
		return nil, err
	}
	return map[string]any{"isError": res.IsError, "text": text(res)}, nil
}

// cancelled gives up a call once it is at work, and waits for the server to hear of it.
func (t *talker) cancelled(ctx context.Context) (bool, error) {
	before, err := t.call(ctx, "cancelled", nil)
	if err != nil {
		return false, err
	}
	held, giveUp := context.WithCancel(ctx)
	params := &mcp.CallToolParams{Name: "work", Arguments: map[string]any{"steps": 1, "hold": true}}
	params.SetProgressToken("cancelled")
	go func() { <-t.steps; giveUp() }()
	if _, err := t.session.CallTool(held, params); err == nil {
		return false, errors.New("a call that was given up has a result")
	}
	for {
		now, err := t.call(ctx, "cancelled", nil)
		if err != nil || number(now) > number(before) {
			return true, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (t *talker) call(ctx context.Context, name string, arguments map[string]any) (string, error) {
	if arguments == nil {
		arguments = map[string]any{}
	}
	res, err := t.session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		return "", err
	}
	return text(res), nil
}

func text(res *mcp.CallToolResult) string {
	if len(res.Content) == 0 {
		return ""
	}
	first, _ := res.Content[0].(*mcp.TextContent)
	if first == nil {
		return ""
	}
	return first.Text
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
