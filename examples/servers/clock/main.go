// Command clock is an example MCP server over server. It tells the time in every zone, and has a timer that reports
// progress and can be cancelled.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"
	_ "time/tzdata" // for machines without a zone database

	"github.com/mcp-proxy/mcp-proxy/examples/servers/server"
)

func main() {
	c := &clock{now: time.Now, tick: time.Second}
	if err := c.server().Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// A clock tells the time.
type clock struct {
	now  func() time.Time
	tick time.Duration // of the timer; a second, except in tests
}

func (c *clock) server() *server.Server {
	readOnly := map[string]bool{"readOnlyHint": true}
	return &server.Server{Name: "clock", Version: "1.0.0", Tools: []server.Tool{{
		Name:        "now",
		Description: "Tells the current time in a time zone.",
		Annotations: readOnly,
		InputSchema: json.RawMessage(`{"type": "object", "properties": {"zone": {"type": "string",
			"description": "a name from the IANA time zone database, such as Europe/Vienna; UTC if empty"}}, "additionalProperties": false}`),
		OutputSchema: json.RawMessage(`{"type": "object", "properties": {
			"time": {"type": "string", "description": "the time as RFC 3339 has it"}, "weekday": {"type": "string"}}, "required": ["time", "weekday"]}`),
		Call: c.tellNow,
	}, {
		Name:        "timer",
		Description: "Waits for some seconds and reports its progress.",
		Annotations: readOnly,
		InputSchema: json.RawMessage(`{"type": "object", "properties": {"seconds": {"type": "integer",
			"description": "how long to wait, from 1 to 3600"}}, "required": ["seconds"], "additionalProperties": false}`),
		Call: c.runTimer,
	}}}
}

func (c *clock) tellNow(_ context.Context, r *server.Request) (any, error) {
	var in struct {
		Zone string `json:"zone"`
	}
	if err := r.Read(&in); err != nil {
		return nil, err
	}
	zone, err := time.LoadLocation(in.Zone)
	if err != nil {
		return nil, err
	}
	t := c.now().In(zone)
	return server.Structured(map[string]string{"time": t.Format(time.RFC3339), "weekday": t.Weekday().String()})
}

// runTimer waits, and reports progress. If the client cancels the call it returns early; nobody gets the error.
func (c *clock) runTimer(ctx context.Context, r *server.Request) (any, error) {
	var in struct {
		Seconds int `json:"seconds"`
	}
	if err := r.Read(&in); err != nil {
		return nil, err
	}
	if in.Seconds < 1 || in.Seconds > 3600 {
		return nil, fmt.Errorf("%d seconds are not between 1 and 3600", in.Seconds)
	}
	tick := time.NewTicker(c.tick)
	defer tick.Stop()
	for passed := 1; passed <= in.Seconds; passed++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if err := r.Progress(passed, in.Seconds); err != nil {
			return nil, err
		}
	}
	return server.Text(fmt.Sprintf("%d seconds have passed.", in.Seconds)), nil
}
