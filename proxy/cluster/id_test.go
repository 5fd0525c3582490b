package cluster

import (
	"strings"
	"testing"
)

func keySetOf(t testing.TB, secrets ...byte) *keySet {
	t.Helper()
	var lines []string
	for _, b := range secrets {
		lines = append(lines, hexOf(b))
	}
	set, err := parseKeys(strings.Join(lines, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestIDs(t *testing.T) {
	me, old := newInstance(), keySetOf(t, 1)
	id := old.newID(me)
	if strings.Count(id, ".") != 2 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) || len(id) > maxID {
		t.Errorf("id %q", id)
	}
	if other := old.newID(me); other == id {
		t.Error("two ids are the same")
	}
	for _, keys := range []*keySet{old, keySetOf(t, 1, 2), keySetOf(t, 2, 1)} {
		if instance, ok := keys.instanceOf(id); !ok || instance != me {
			t.Errorf("got %q, %v", instance, ok)
		}
	}
	if _, ok := keySetOf(t, 2, 3).instanceOf(id); ok {
		t.Error("the key was taken away")
	}
	if _, ok := old.instanceOf(keySetOf(t, 2, 1).newID(me)); ok {
		t.Error("the first key signs")
	}
}

func TestInventedIDs(t *testing.T) {
	keys := keySetOf(t, 1)
	id := keys.newID(newInstance())
	for i := range id {
		for _, c := range []byte{'A', '7', '.', 0, id[i] ^ 1, id[i] | 0x20} {
			if c == id[i] {
				continue
			}
			bad := id[:i] + string(rune(c)) + id[i+1:]
			if _, ok := keys.instanceOf(bad); ok {
				t.Errorf("accepted %q for %q", bad, id)
			}
		}
		if _, ok := keys.instanceOf(id[:i]); ok {
			t.Errorf("accepted %q", id[:i])
		}
	}
	for _, bad := range []string{"", ".", "..", "a.b.", id + " ", id + "=", " " + id, id + "." + id} {
		if _, ok := keys.instanceOf(bad); ok {
			t.Errorf("accepted %q", bad)
		}
	}
}

func FuzzID(f *testing.F) {
	keys := keySetOf(f, 1, 2)
	const signed = "AAAAAAAAAAAAA.BBBBBBBBBBBBBBBBBBBBBBBBBB" // the same in each process of the fuzzer
	id := signed + "." + keys.all[1].sign(signed)
	for _, seed := range []string{"", "..", id, id[1:], id[:len(id)-1], strings.Repeat(".", 200)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		instance, ok := keys.instanceOf(text)
		if ok && text != id { // a MAC of 64 bits was guessed
			t.Errorf("accepted %q of %q", text, instance)
		}
		if !ok && text == id {
			t.Error("refused an id")
		}
	})
}
