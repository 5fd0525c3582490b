package main

import (
	"strings"
	"testing"
)

// TestPortAndListen: each adds an address, in any order.
func TestPortAndListen(t *testing.T) {
	for _, args := range []string{"--port 9 --listen unix:///a --port 10", "--listen 127.0.0.1:9 --listen unix:///a,127.0.0.1:10"} {
		cmd := newServe()
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if got, err := cmd.Flags().GetStringSlice("listen"); err != nil || strings.Join(got, " ") != "127.0.0.1:9 unix:///a 127.0.0.1:10" {
			t.Errorf("%s: %q, %v", args, got, err)
		}
	}
}
