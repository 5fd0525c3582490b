package main

import (
	"testing"
	"time"
)

// Children are counted while they run, and memory is that of a process itself.
func TestChildrenAndMemory(t *testing.T) {
	p, err := start([]string{"sh", "-c", "cat; :"}, true)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); p.children() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d children", p.children())
		}
	}
	own, err := p.private()
	all, errAll := p.rss()
	if err != nil || errAll != nil || own <= 0 || own > all {
		t.Errorf("%v of %v bytes are private: %v, %v", own, all, err, errAll)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if n := p.children(); n != 0 {
		t.Errorf("%d children of a process that has ended", n)
	}
}
