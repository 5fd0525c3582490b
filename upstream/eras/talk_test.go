package eras

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

var update = flag.Bool("update", false, "write what was received into testdata")

// playAll plays conversations; play returns what happened.
func playAll(t *testing.T, glob string, play func(t *testing.T, text string) string) {
	files, _ := filepath.Glob(glob)
	if len(files) == 0 {
		t.Fatal("no conversations")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var after string
			synctest.Test(t, func(t *testing.T) { after = play(t, string(text)) })
			if *update {
				if err := os.WriteFile(file, []byte(after), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A side is the test's end of a Pipe, with all messages that came on it.
type side struct {
	c   jsonrpc.Conn
	in  chan *jsonrpc.Message
	end chan error
}

func newSide(c jsonrpc.Conn) *side {
	s := &side{c, make(chan *jsonrpc.Message, 16384), make(chan error, 1)}
	go func() {
		for {
			m, err := c.Recv()
			if err != nil {
				s.end <- err
				return
			}
			s.in <- m
		}
	}()
	return s
}
