package jsonrpc_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestTable(t *testing.T) {
	type entry struct{ name string }
	table := jsonrpc.Table[int, *entry]{Max: 3}
	a, b, c, d := &entry{"a"}, &entry{"b"}, &entry{"c"}, &entry{"d"}
	add := func(k int, e *entry, want error) {
		t.Helper()
		if err := table.Add(k, e); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("add %s: %v, want %v", e.name, err, want)
		}
	}
	add(9, a, nil)
	add(9, b, jsonrpc.ErrInUse)
	add(5, b, nil)
	add(7, c, nil)
	add(1, d, jsonrpc.ErrFull)
	if table.Get(5) != b || table.Get(1) != nil || table.Len() != 3 {
		t.Error("Get or Len is wrong")
	}

	if table.Take(9, b) || !table.Take(9, a) || table.Take(9, a) {
		t.Error("Take removes only the very entry, and once")
	}
	add(9, d, nil) // the id is used again
	if table.Take(9, a) || table.Get(9) != d {
		t.Error("a late Take removed an entry that reused the id")
	}

	var order []string
	for k, e := range table.Each {
		order = append(order, e.name)
		if k == 7 && !table.Take(9, d) { // an entry that is still to come
			t.Error("cannot take while looking at all")
		}
	}
	if !slices.Equal(order, []string{"b", "c"}) {
		t.Errorf("Each: %v, want the order in which they came without what was taken", order)
	}
	if got := table.TakeIf(func(e *entry) bool { return e == c }); !slices.Equal(got, []*entry{c}) {
		t.Errorf("TakeIf: %v", got)
	}

	why := errors.New("why")
	add(1, a, nil)
	if got := table.Close(why); !slices.Equal(got, []*entry{b, a}) {
		t.Errorf("Close: %v, want all in the order in which they came", got)
	}
	add(2, c, why)
	if table.Close(errors.New("other")) != nil || table.Closed() != why {
		t.Error("the first Close counts, and takes all")
	}
}

func BenchmarkTable(b *testing.B) {
	var table jsonrpc.Table[int64, *int]
	v := new(int)
	for n := range int64(64) { // in flight
		_ = table.Add(-n, v)
	}
	b.ReportAllocs()
	for n := int64(1); b.Loop(); n++ {
		_ = table.Add(n, v)
		if !table.Take(n, v) {
			b.Fatal("not there")
		}
	}
}
