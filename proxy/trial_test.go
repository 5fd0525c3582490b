package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// However many upstreams there are, two start at a time.
func TestTrialsTwoAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const upstreams = 6
		dialled, goOn := make(chan struct{}, upstreams), make(chan struct{})
		all := newTrials(&config.Config{}, &hosting{host: &upstream.Host{}}, func(context.Context, string, string, mcp.Era) (jsonrpc.Conn, error) {
			dialled <- struct{}{}
			<-goOn
			return nil, errors.New("none")
		})
		for range upstreams {
			all.begin(t.Context(), &Trial{Upstream: "a", Transport: "http"})
		}
		for ended := range upstreams {
			synctest.Wait()
			if got, want := len(dialled), min(ended+2, upstreams); got != want {
				t.Errorf("%d had started when %d had ended, want %d", got, ended, want)
			}
			goOn <- struct{}{}
		}
		all.wg.Wait()
	})
}

// A slow trial beside another one is repeated alone, and the second time is reported.
func TestSlowTrialAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int32
		all := newTrials(&config.Config{}, &hosting{host: &upstream.Host{}}, nil)
		all.dial = func(_ context.Context, name, _ string, _ mcp.Era) (jsonrpc.Conn, error) {
			if n := open.Add(1); name == "slow" {
				time.Sleep(time.Duration(3+n) * time.Second)
			}
			near, far := jsonrpc.Pipe()
			go func() {
				defer open.Add(-1)
				for {
					m, err := far.Recv()
					if err != nil {
						return
					}
					if m.IsRequest() {
						far.Send(&jsonrpc.Message{ID: m.ID, Result: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}`)})
					}
				}
			}()
			return near, nil
		}
		held, err := all.dial(t.Context(), "other", "", mcp.Legacy)
		if err != nil {
			t.Fatal(err)
		}
		slowOne := &Trial{Upstream: "slow", Transport: "http"}
		all.begin(t.Context(), slowOne)
		all.wg.Wait()
		if slowOne.StartMs != 5000 {
			t.Errorf("beside another it took %v ms", slowOne.StartMs)
		}
		held.Close()
		all.all = append(all.all, &Trial{Upstream: "other", StartMs: 1})
		synctest.Wait()
		all.alone(t.Context())
		if !slowOne.OK() || slowOne.StartMs != 4000 {
			t.Errorf("alone it took %v ms: %s", slowOne.StartMs, slowOne.Failed)
		}
	})
}
