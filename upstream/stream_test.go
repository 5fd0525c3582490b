package upstream

import "testing"

func TestEcho(t *testing.T) {
	r := newRig(t, fakeCommand())
	c := r.start("k")
	for i := range 100 {
		if m := c.call("echo", i); string(m.Result) == "" {
			t.Fatalf("got %s", m.Append(nil))
		}
	}
	c.Close()
	t.Log(c.returned())
	t.Log(r.log.lines)
}

func runHostRole() {}
