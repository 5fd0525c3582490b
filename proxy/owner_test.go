package proxy

import "testing"

func TestReadersAreBounded(t *testing.T) {
	var r readers
	l := &leg{}
	for n := range maxReaders {
		r.addLocked(digest{byte(n), byte(n >> 8)}, l)
	}
	if len(r) != maxReaders {
		t.Errorf("%d are remembered", len(r))
	}
	r.addLocked(digest{31: 1}, l)
	r.addLocked(digest{31: 2}, &leg{closed: true})
	if len(r) != 1 || r[digest{31: 1}] != l {
		t.Errorf("%d are remembered", len(r))
	}
}
