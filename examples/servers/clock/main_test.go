package main

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// connect returns a client of c, and the progress that it gets.
func connect(t *testing.T, c *clock) (*mcp.ClientSession, <-chan float64) {
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- c.server().Serve(t.Context(), in, out) }()
	progress := make(chan float64, 16)
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			progress <- req.Params.Progress
		},
	}).Connect(t.Context(), &mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); <-served })
	return client, progress
}

func TestNow(t *testing.T) {
	at := time.Date(2026, 1, 1, 23, 30, 0, 0, time.UTC)
	client, _ := connect(t, &clock{now: func() time.Time { return at }})
	for zone, want := range map[string]string{
		"":              "2026-01-01T23:30:00Z",
		"Europe/Vienna": "2026-01-02T00:30:00+01:00",
	} {
		res, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "now", Arguments: map[string]any{"zone": zone}})
		if err != nil || res.IsError {
			t.Fatalf("now in %q: %v, %v", zone, res, err)
		}
		if got := res.StructuredContent.(map[string]any)["time"]; got != want {
			t.Errorf("now in %q: %v, want %v", zone, got, want)
		}
	}
	res, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "now", Arguments: map[string]any{"zone": "Nowhere"}})
	if err != nil || !res.IsError {
		t.Errorf("unknown zone: %v, %v", res, err)
	}
}

func TestTimer(t *testing.T) {
	client, progress := connect(t, &clock{tick: time.Millisecond})
	params := &mcp.CallToolParams{Name: "timer", Arguments: map[string]any{"seconds": 3}}
	params.SetProgressToken("token")
	res, err := client.CallTool(t.Context(), params)
	if err != nil || res.IsError {
		t.Fatalf("timer: %v, %v", res, err)
	}
	if got := []float64{<-progress, <-progress, <-progress}; !slices.Equal(got, []float64{1, 2, 3}) {
		t.Errorf("progress %v", got)
	}
	res, err = client.CallTool(t.Context(), &mcp.CallToolParams{Name: "timer", Arguments: map[string]any{"seconds": 0}})
	if err != nil || !res.IsError {
		t.Errorf("timer of no length: %v, %v", res, err)
	}
}
