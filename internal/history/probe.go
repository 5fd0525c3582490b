package main

import (
	"fmt"
	"os"
	"slices"
	"time"
)

// A feature is something that not every proxy passes on.
type feature struct {
	name string
	when func(y *way) bool
	ask  func(o *operation)
	seen What // by the client, or in the journal of the server
}

func always(*way) bool { return true }

// features are what is tried before a proxy is judged by it. "calls" have to work.
var features = []feature{
	{"calls", always, func(*operation) {}, Result},
	{"lists", always, func(o *operation) { o.Server = "" }, Result},
	{"progress", always, func(o *operation) { o.Progress, o.MS = 3, 100 }, Progress},
	{"cancellation", always, func(o *operation) { o.MS, o.CancelAfter = long, 200*time.Millisecond }, Cancelled},
	{"elicitation", always, func(o *operation) { o.Ask = elicitation }, Replied},
	{"sampling", always, func(o *operation) { o.Ask = sampling }, Replied},
	{"updates", func(y *way) bool { return y.one }, func(o *operation) { o.Do = "touch" }, Updated},
}

// probe returns the features that a way has not, without any fault, in two attempts each.
func (o options) probe(y *way) (lacks []string, err error) {
	dir, err := os.MkdirTemp(o.dir, "probe")
	if err != nil {
		return nil, err
	}
	w, err := newSmallWorld(dir, y, o.seed)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	for i, f := range features {
		if f.when(y) && !w.offers(f, 2*i) && !w.offers(f, 2*i+1) {
			lacks = append(lacks, f.name)
		}
	}
	return lacks, nil
}

// offers reports whether a way has a feature.
func (w *world) offers(f feature, n int) bool {
	o := &operation{Server: w.way.server(), call: call{Nonce: fmt.Sprintf("%s%d.0:0", checking, n)}}
	f.ask(o)
	w.try(o)
	journaled, _ := readJournals(w.journals()) // what cannot be read shows nothing
	return slices.ContainsFunc(append(w.rec.take(), journaled...), func(e Event) bool { return e.What == f.seen && e.Of == o.Nonce })
}
