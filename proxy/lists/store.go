package lists

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/gofrs/flock"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// Files of a store.
const (
	entriesFile = "catalog.json"
	keyFile     = "catalog.key" // of the digests
	lockFile    = "catalog.lock"

	format   = 1                   // of entriesFile; others are ignored
	maxFile  = 128 << 20           // bytes of entriesFile
	forgotIn = 30 * 24 * time.Hour // entries of other proxies are dropped when they are that old
)

// A Store is the directory of a catalog. Several proxies may use it at once.
type Store struct {
	dir string // "": nothing is kept between runs
	key []byte
}

// NoStore returns a store that keeps nothing between runs.
func NoStore() *Store { return &Store{key: newKey()} }

// newKey returns a key for digests.
func newKey() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return key
}

// OpenStore returns the store in a directory, which it creates if necessary.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, secretfile.WithoutPath(err)
	}
	s := &Store{dir: dir}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	s.key, err = os.ReadFile(s.file(keyFile))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(s.key) != sha256.Size {
		s.key = newKey()
		err = secretfile.Replace(s.file(keyFile), s.key)
	}
	if err != nil {
		return nil, secretfile.WithoutPath(err)
	}
	return s, nil
}

func (s *Store) file(name string) string { return filepath.Join(s.dir, name) }

// lock takes the lock of the directory, which ends with the process.
func (s *Store) lock() (unlock func(), err error) {
	f := flock.New(s.file(lockFile), flock.SetPermissions(0o600))
	if err := f.Lock(); err != nil {
		return nil, secretfile.WithoutPath(err)
	}
	return func() { _ = f.Unlock() }, nil
}

// Digest returns the digest of an upstream's configuration. It says nothing about the configuration
// to those who do not have the key of the store.
func (s *Store) Digest(configuration []byte) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write(configuration)
	return hex.EncodeToString(mac.Sum(nil))
}

// A record is an entry in the file. Bytes of servers are strings, so that they do not change.
type record struct {
	Digest       string            `json:"digest"`
	Era          mcp.Era           `json:"era"`
	Caps         catalog.Digest    `json:"-"`
	CapsText     string            `json:"capabilities"`
	Asked        time.Time         `json:"asked"`
	Introduction string            `json:"introduction"`
	Lists        map[string]string `json:"lists"` // by method; "" for a list that the upstream does not have
}

// recordOf returns the record of an entry.
func recordOf(k Key, u *Served, e *Entry) record {
	r := record{
		Digest: u.Digest, Era: k.Era, Caps: k.Caps, CapsText: hex.EncodeToString(k.Caps[:]), Asked: e.Asked,
		Introduction: string(e.Introduction), Lists: make(map[string]string),
	}
	for k, l := range e.Lists {
		switch {
		case l == nil:
		case l.Offered:
			r.Lists[catalog.Kind(k).Method()] = string(l.Page)
		default:
			r.Lists[catalog.Kind(k).Method()] = ""
		}
	}
	return r
}

// isText reports whether JSON can keep the bytes of a record.
func (r *record) isText() bool {
	ok := utf8.ValidString(r.Introduction)
	for _, page := range r.Lists {
		ok = ok && utf8.ValidString(page)
	}
	return ok
}

// entry returns the entry of a record for an upstream, nil if it is unusable.
func (r *record) entry(u *Served) *Entry {
	e, err := NewEntry(json.RawMessage(r.Introduction))
	if err != nil {
		return nil
	}
	e.Asked = r.Asked
	for k := range catalog.Kinds {
		page, known := r.Lists[k.Method()]
		switch {
		case !known:
		case page == "":
			e.Lists[k] = Absent()
		default:
			l, err := readList(k, r.Era, json.RawMessage(page), u.allows)
			if err != nil {
				return nil
			}
			e.Lists[k] = l
		}
	}
	return e
}

// same identifies a record in the file.
func (r *record) same() [3]string { return [3]string{r.Digest, string(r.Era), r.CapsText} }

// contents are those of entriesFile.
type contents struct {
	Version int      `json:"version"`
	Entries []record `json:"entries"`
}

// load returns the records of the file. An unusable file has none. One of the future, from when the clock was wrong,
// would never be old.
func (s *Store) load(log *slog.Logger) []record {
	if s.dir == "" {
		return nil
	}
	text, err := os.ReadFile(s.file(entriesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var c contents
	if err == nil && len(text) > maxFile {
		err = errors.New("it is too long")
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && c.Version != format {
		err = fmt.Errorf("it has version %d", c.Version)
	}
	if err != nil {
		log.Debug("catalog file ignored", "err", secretfile.WithoutPath(err))
		return nil
	}
	now, usable := time.Now(), c.Entries[:0]
	for _, r := range c.Entries {
		n, err := hex.Decode(r.Caps[:], []byte(r.CapsText)[:min(len(r.CapsText), 2*len(r.Caps))])
		if err == nil && n == len(r.Caps) && !r.Asked.After(now) {
			usable = append(usable, r)
		}
	}
	return usable
}

// save replaces the records with these digests, and keeps those of other proxies. Of two records of
// the same thing the later one stays.
func (s *Store) save(records []record) error {
	if s.dir == "" {
		return nil
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	at := make(map[[3]string]int)
	var all []record
	add := func(r record) {
		i, seen := at[r.same()]
		switch {
		case !r.isText():
		case !seen:
			at[r.same()] = len(all)
			all = append(all, r)
		case r.Asked.After(all[i].Asked):
			all[i] = r
		}
	}
	for _, r := range records {
		add(r)
	}
	size := 0
	for _, r := range s.load(slog.New(slog.DiscardHandler)) {
		if size += len(r.Introduction); time.Since(r.Asked) > forgotIn {
			continue
		}
		for _, page := range r.Lists {
			size += len(page)
		}
		if size < maxBytes {
			add(r)
		}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(contents{format, all}); err != nil {
		return err
	}
	return secretfile.Replace(s.file(entriesFile), text.Bytes())
}
