package cluster

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"strings"
)

// An id is INSTANCE.RANDOM.MAC, in visible ASCII:
//
//	R4KQ2ZB7XWNTE.3NQJ6YFAVLXMPD4C2HGTKSR5ZW.QJ5T2M7XKBNFA
//
// RANDOM has 128 bits or more, MAC the first 64 of an HMAC-SHA256 over INSTANCE.RANDOM.
const (
	instanceLen = 13 // characters of base32: 65 bits
	macLen      = 8  // bytes
	maxID       = 128
)

// newInstance returns a random name for this process.
func newInstance() string { return rand.Text()[:instanceLen] }

// newID returns an id that instance made.
func (s *keySet) newID(instance string) string {
	signed := instance + "." + rand.Text()
	return signed + "." + s.all[0].sign(signed)
}

// instanceOf returns which instance made an id, or false if none did that has one of our keys. It looks at nothing
// else before the MAC is verified.
func (s *keySet) instanceOf(id string) (instance string, ok bool) {
	i := strings.LastIndexByte(id, '.')
	if i < 0 || len(id) > maxID {
		return "", false
	}
	signed, mac := id[:i], id[i+1:]
	for _, k := range s.all {
		if subtle.ConstantTimeCompare([]byte(k.sign(signed)), []byte(mac)) == 1 {
			instance, _, ok = strings.Cut(signed, ".")
			return instance, ok
		}
	}
	return "", false
}

// sign returns the MAC of text.
func (k key) sign(text string) string {
	h := hmac.New(sha256.New, k.mac)
	h.Write([]byte(text))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)[:macLen])
}
