// Command clock is an example MCP server over stdio. It tells the time in every zone, and has a timer that reports
// progress and can be cancelled.
package main

import (
	"context"
	"fmt"
	"log"
	"time"
	_ "time/tzdata" // for machines without a zone database

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	c := &clock{now: time.Now, tick: time.Second}
	if err := c.server().Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

// A clock tells the time.
type clock struct {
	now  func() time.Time
	tick time.Duration // of the timer; a second, except in tests
}

func (c *clock) server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "clock", Version: "1.0.0"}, nil)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "now",
		Description: "Tells the current time in a time zone.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
	}, c.tellNow)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "timer",
		Description: "Waits for some seconds and reports its progress.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
	}, c.runTimer)
	return s
}

type nowInput struct {
	Zone string `json:"zone,omitempty" jsonschema:"a name from the IANA time zone database, such as Europe/Vienna; UTC if empty"`
}

type nowOutput struct {
	Time    string `json:"time" jsonschema:"the time as RFC 3339 has it"`
	Weekday string `json:"weekday"`
}

func (c *clock) tellNow(_ context.Context, _ *mcp.CallToolRequest, in nowInput) (*mcp.CallToolResult, nowOutput, error) {
	zone, err := time.LoadLocation(in.Zone)
	if err != nil {
		return nil, nowOutput{}, err
	}
	t := c.now().In(zone)
	return nil, nowOutput{Time: t.Format(time.RFC3339), Weekday: t.Weekday().String()}, nil
}

type timerInput struct {
	Seconds int `json:"seconds" jsonschema:"how long to wait, from 1 to 3600"`
}

// runTimer waits, and reports progress. If the client cancels the call it returns early; nobody gets the error.
func (c *clock) runTimer(ctx context.Context, req *mcp.CallToolRequest, in timerInput) (*mcp.CallToolResult, any, error) {
	if in.Seconds < 1 || in.Seconds > 3600 {
		return nil, nil, fmt.Errorf("%d seconds are not between 1 and 3600", in.Seconds)
	}
	tick := time.NewTicker(c.tick)
	defer tick.Stop()
	for passed := 1; passed <= in.Seconds; passed++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		if err := report(ctx, req, passed, in.Seconds); err != nil {
			return nil, nil, err
		}
	}
	text := fmt.Sprintf("%d seconds have passed.", in.Seconds)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
}

// report sends progress to the client, if it asked for it.
func report(ctx context.Context, req *mcp.CallToolRequest, passed, total int) error {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	return req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
		ProgressToken: token,
		Progress:      float64(passed),
		Total:         float64(total),
	})
}
