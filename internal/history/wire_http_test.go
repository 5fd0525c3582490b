package main

import (
	"context"
	"testing"
)

// A response can be dropped before the stream of a GET has begun.
func TestLoseBeforeListen(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	w := &posts{open: map[string]*response{"1": {stop: stop, last: "e1"}}}
	if !w.lose("1", true) || ctx.Err() == nil {
		t.Error("it is not dropped, or not to be resumed")
	}
}
