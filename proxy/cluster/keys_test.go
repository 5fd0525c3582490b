package cluster

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// secretOf returns a key of 32 bytes.
func secretOf(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

func hexOf(b byte) string { return hex.EncodeToString(secretOf(b)) }

func TestParseKeys(t *testing.T) {
	one, two := secretOf(0xfb), secretOf(2)
	for text, want := range map[string][][]byte{
		hex.EncodeToString(one):                                         {one},
		strings.ToUpper(hex.EncodeToString(one)):                        {one},
		base64.StdEncoding.EncodeToString(one):                          {one},
		base64.RawStdEncoding.EncodeToString(one):                       {one},
		base64.URLEncoding.EncodeToString(one):                          {one},
		base64.RawURLEncoding.EncodeToString(one):                       {one},
		"# old and new\r\n\r\n " + hexOf(2) + "\t\r\n" + hexOf(0xfb):    {two, one},
		hexOf(2) + "\n" + base64.StdEncoding.EncodeToString(two):        {two},
		hex.EncodeToString(append(one, two...)) + "\n":                  {append(one[:32:32], two...)},
		strings.Repeat("# "+strings.Repeat("x", 80)+"\n", 9) + hexOf(2): {two},
	} {
		set, err := parseKeys(text)
		if err != nil || len(set.all) != len(want) {
			t.Errorf("%q: %v, %v", text, set, err)
			continue
		}
		for i, secret := range want {
			k, err := newKey(secret)
			if err != nil || !bytes.Equal(set.all[i].gossip, k.gossip) || !bytes.Equal(set.all[i].mac, k.mac) || !set.all[i].authority.certificate.Equal(k.authority.certificate) {
				t.Errorf("%q: key %d is another (%v)", text, i, err)
			}
		}
	}
}

// Replicas do not exchange what they derive, so that it must be the same in every version.
func TestDerivedKeysStay(t *testing.T) {
	k, err := newKey(secretOf(1))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(k.gossip, k.mac) || bytes.Equal(k.mac, k.authority.private.Seed()) {
		t.Error("two derived keys are the same")
	}
	got := hex.EncodeToString(k.gossip[:4]) + " " + hex.EncodeToString(k.mac[:4]) + " " + hex.EncodeToString(k.authority.private.Seed()[:4])
	if want := "6a8b6d9b 2873320a 084c7626"; got != want {
		t.Errorf("derived %s, want %s", got, want)
	}
	again, _ := newKey(secretOf(1))
	if !bytes.Equal(again.authority.certificate.Raw, k.authority.certificate.Raw) {
		t.Error("the authority's certificate is not deterministic")
	}
}

func TestBadKeyFiles(t *testing.T) {
	many := ""
	for b := range byte(maxKeys + 1) {
		many += hexOf(b) + "\n"
	}
	for text, want := range map[string]string{
		"":                                  "is empty",
		"\n\n":                              "is empty",
		"# none\n \n#":                      "has no key",
		hexOf(1) + "\n\nsecret words\n":     "line 3: is neither hex nor base64",
		"# x\n" + hexOf(1)[:62]:             "line 2: the key has 31 bytes, want 32 or more",
		strings.Repeat("Ab+/", 10) + "A\n":  "line 1: is neither hex nor base64",
		strings.Repeat("Ab+/", 10) + "AA\n": "line 1: the key has 31 bytes, want 32 or more",
		many:                                "has more than 16 keys",
	} {
		file := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(Options{KeyFile: file})
		if err == nil || err.Error() != "cluster.keyFile "+file+": "+want {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := New(Options{KeyFile: "no-such-file"}); err == nil || !strings.Contains(err.Error(), "cluster.keyFile no-such-file: ") {
		t.Error(err)
	}
}

// writeKeys replaces a key file, with a time that differs from the last.
func writeKeys(t *testing.T, file string, lines ...string) {
	t.Helper()
	next := file + ".next"
	if err := os.WriteFile(next, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
}

func TestKeysFollowTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	writeKeys(t, file, hexOf(1))
	k, err := newKeys(file, "ME")
	if err != nil {
		t.Fatal(err)
	}
	expect := func(changed bool, n int, why string) {
		t.Helper()
		got, _ := k.refresh()
		if got != changed || len(k.current.Load().all) != n {
			t.Errorf("%s: changed %v, %d keys; want %v, %d", why, got, len(k.current.Load().all), changed, n)
		}
	}
	expect(false, 1, "the same")
	writeKeys(t, file, hexOf(2), hexOf(1))
	expect(true, 2, "one more")
	os.Chtimes(file, time.Now(), time.Now())
	expect(false, 2, "only the time")
	os.Remove(file)
	expect(false, 2, "no file")
	writeKeys(t, file, hexOf(2), "half a l")
	expect(false, 2, "a bad file")
	writeKeys(t, file, hexOf(2))
	expect(true, 1, "one less")
}
