package link

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Headers of clients arrive in memory: those of Open in the handler's ctx, those of a message with that
// message alone. Another process can send none.
func TestHeaders(t *testing.T) {
	all := map[string][]string{"Authorization": {strings.Repeat(`"\`, 8<<10)}, "X-List": {"a", "", "b"}}
	for _, trusted := range []bool{true, false} {
		heard, came := make(chan map[string][]string, 1), make(chan *jsonrpc.Message, 3)
		near, far := Ring()
		p := joinOver(t, &Client{Trusted: trusted}, &Server{Trusted: trusted, Handle: func(ctx context.Context, _ Hello, c jsonrpc.Conn) error {
			heard <- jsonrpc.ForwardedIn(ctx)
			for {
				m, err := c.Recv()
				if err != nil {
					return err
				}
				came <- m
			}
		}}, near, far)
		opened := all
		if !trusted { // a longer one is refused
			opened = map[string][]string{"Authorization": {"secret"}}
		}
		c, err := p.client.Open(jsonrpc.WithForwarded(t.Context(), opened), hello)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		with, both := numbered(1), numbered(2)
		with.Forwarded = &jsonrpc.Forwarded{To: all}
		both.Forwarded, both.Related = &jsonrpc.Forwarded{From: all, To: map[string][]string{"X-Id": {"7"}}}, jsonrpc.IntID(7)
		without := numbered(3)
		without.Forwarded = &jsonrpc.Forwarded{From: all}
		if err := jsonrpc.SendAll(c, []*jsonrpc.Message{with, both, without}); err != nil {
			t.Fatal(err)
		}
		if got := await(t, heard); trusted != reflect.DeepEqual(got, all) || !trusted && got != nil {
			t.Errorf("trusted %v: the hello had %v", trusted, got)
		}
		for _, sent := range []*jsonrpc.Message{with, both, without} {
			got := await(t, came)
			if !bytes.Equal(got.Append(nil), sent.Append(nil)) || got.Related != sent.Related {
				t.Errorf("received %v, want %v", got, sent)
			}
			want := sent.Forwarded.To
			if !trusted || want == nil {
				if got.Forwarded != nil {
					t.Errorf("trusted %v: %s came with headers", trusted, sent.ID)
				}
			} else if got.Forwarded == nil || !reflect.DeepEqual(got.Forwarded.To, want) {
				t.Errorf("%s came with other headers", sent.ID)
			}
		}
	}
}
