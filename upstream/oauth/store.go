package oauth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/zalando/go-keyring"

	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

const (
	recordVersion = 1       // changes only when an older program would misread a record
	maxRecord     = 1 << 20 // bytes
	service       = "mcp-proxy login"
)

var (
	// errOver is the error of a refresh when there is nothing left to refresh.
	errOver    = errors.New("the login has ended")
	errUnsaved = errors.New("cannot be saved")
	errNoPlace = errors.New("no place to store logins: neither XDG_STATE_HOME nor HOME is set")
)

// A Store keeps logins. Many processes use it at once: a process locks a record to change it. The lock ends with the
// process.
type Store struct {
	Dir     string // holds the files, which only the user can read, and is created when needed; "": no place to store
	Keyring bool   // keep the records in the keyring of the operating system; the locks are files all the same

	replace func(path string, text []byte) error // nil: secretfile.Replace

	mu      sync.Mutex     // guards the field below
	unsaved map[key]record // that could not be saved, as on a full disk, with what is nowhere else: load returns them
}

// DefaultDir returns the default Dir: mcp-proxy/login in $XDG_STATE_HOME, else in ~/.local/state, and on macOS and
// Windows in the user's configuration directory. It is "" for a user without a home.
func DefaultDir() string {
	base := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		base = filepath.Join(home, ".local", "state")
		if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
			base, err = os.UserConfigDir()
		}
		if err != nil {
			return ""
		}
	}
	return filepath.Join(base, "mcp-proxy", "login")
}

// A key identifies a login: a server, and the configured client id, so that two accounts at one server do not mix.
type key struct{ server, clientID string }

// name is the unique name of the file. It starts with the host, so that people find it.
func (k key) name() string {
	sum := sha256.Sum256([]byte(k.server + "\n" + k.clientID))
	host := ""
	if u, err := url.Parse(k.server); err == nil {
		host = strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
				return r
			}
			return '_'
		}, u.Host)
	}
	return host[:min(len(host), 80)] + "-" + hex.EncodeToString(sum[:8])
}

// A record is what the store keeps of a login. Everything in it belongs to one issuer and resource, and goes to no
// other issuer (2026-07-28 basic/authorization).
type record struct {
	Version  int         `json:"version"`
	Server   string      `json:"server"` // for people, as is ClientID
	ClientID string      `json:"clientId,omitempty"`
	Issuer   string      `json:"issuer,omitempty"`
	Resource string      `json:"resource,omitempty"`
	Client   *client     `json:"client,omitempty"`
	Token    *token      `json:"token,omitempty"`
	Scopes   []string    `json:"scopes,omitempty"` // of the last token, if it has ended: the next login asks for them
	Failed   *setback    `json:"failed,omitempty"` // nil: the last login succeeded
	Changed  time.Time   `json:"changed,omitzero"`
	saved    time.Time   // Changed, of the record in the store
	stamp    fs.FileInfo // as of Store.stamp, before it was read
}

// A setback is a failed login. Other processes that waited for it do not try again.
type setback struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"` // in our own words
}

// parseRecord parses a record. No text makes an empty one.
func parseRecord(text []byte) (*record, error) {
	var r record
	var of struct {
		Version int `json:"version"`
	}
	switch {
	case text == nil:
		return &r, nil
	case json.Unmarshal(text, &of) == nil && of.Version > recordVersion:
		return nil, errors.New("was written by a later version of mcp-proxy")
	case json.Unmarshal(text, &r) != nil || r.Version != recordVersion: // the error may quote it
		return nil, errors.New("is damaged: delete it, and log in again")
	}
	r.saved = r.Changed
	now := time.Now() // a clock that was wrong makes nothing recent until it is that time
	if r.Failed != nil && r.Failed.At.After(now) {
		r.Failed = nil
	}
	if r.Token != nil && r.Token.Granted.After(now) {
		r.Token.Granted = time.Time{}
	}
	return &r, nil
}

// of reports whether the record is about the issuer and resource of a place.
func (r *record) of(p *place) bool { return r.Issuer == p.Server.Issuer && r.Resource == p.Resource }

// adopt makes the record one of a place. It drops what belongs to another.
func (r *record) adopt(p *place) {
	if !r.of(p) {
		r.Issuer, r.Resource, r.Client, r.Token, r.Scopes = p.Server.Issuer, p.Resource, nil, nil, nil
	}
}

// granted returns the scopes of the token, or of the last one.
func (r *record) granted() []string {
	if r.Token != nil {
		return r.Token.Scopes
	}
	return r.Scopes
}

// where says where a login is kept: its file, or for people the keyring.
func (s *Store) where(k key) string {
	if s.Keyring {
		return fmt.Sprintf("the system's keyring (%s, %s)", service, k.name())
	}
	return filepath.Join(s.Dir, k.name()+".json")
}

// lockPath is the file whose lock is that of a record. With a keyring its time says when the record changed.
func (s *Store) lockPath(k key) string { return filepath.Join(s.Dir, k.name()+".lock") }

// stamp returns a file that looks different if a process has changed or removed the record since, nil for none.
func (s *Store) stamp(k key) (fs.FileInfo, error) {
	path := s.where(k)
	if s.Keyring {
		path = s.lockPath(k)
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return info, secretfile.WithoutPath(err)
}

// load returns a record, which is empty if there is none. Errors name the place.
func (s *Store) load(k key) (*record, error) {
	if s.Dir == "" {
		return nil, errNoPlace
	}
	stamp, err := s.stamp(k)
	var text []byte
	if err == nil {
		text, err = s.read(k)
	}
	if err == nil {
		var r *record
		if r, err = parseRecord(text); err == nil {
			r = s.latest(k, r)
			r.stamp = stamp
			return r, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", s.where(k), err)
}

// latest returns the unsaved record that follows r, else r. A record that another process has changed meanwhile counts
// more than an unsaved one.
func (s *Store) latest(k key, r *record) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.unsaved[k]; ok && u.saved.Equal(r.saved) {
		return &u
	}
	delete(s.unsaved, k)
	return r
}

// isUnsaved reports whether a record could not be saved.
func (s *Store) isUnsaved(k key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.unsaved[k]
	return ok
}

// setUnsaved keeps r as the unsaved record, or none if r is nil.
func (s *Store) setUnsaved(k key, r *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r == nil:
		delete(s.unsaved, k)
	case s.unsaved == nil:
		s.unsaved = map[key]record{k: *r}
	default:
		s.unsaved[k] = *r
	}
}

func (s *Store) read(k key) ([]byte, error) {
	if s.Keyring {
		text, err := keyring.Get(service, k.name())
		if errors.Is(err, keyring.ErrNotFound) {
			return nil, nil
		}
		return []byte(text), err
	}
	file, err := os.Open(s.where(k))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, secretfile.WithoutPath(err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("others can read it (mode %o): make it 0600, and log in again", info.Mode().Perm())
	}
	return io.ReadAll(io.LimitReader(file, maxRecord))
}

// update locks a record, changes it and saves it. It saves nothing if change fails, except with errOver. If it cannot
// save the record, it keeps it for load and returns errUnsaved. ctx bounds the wait for the lock.
func (s *Store) update(ctx context.Context, k key, change func(*record) error) error {
	unlock, err := s.lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.load(k)
	if err != nil {
		return err
	}
	err = change(r)
	if err != nil && !errors.Is(err, errOver) {
		return err
	}
	r.Version, r.Server, r.ClientID, r.Changed = recordVersion, k.server, k.clientID, time.Now()
	text, failed := json.MarshalIndent(r, "", "  ")
	if failed == nil {
		failed = s.write(k, text)
	}
	if failed != nil {
		s.setUnsaved(k, r)
		return fmt.Errorf("%s: %w: %w", s.where(k), errUnsaved, failed)
	}
	s.setUnsaved(k, nil)
	return err
}

// lock waits for the lock of a record.
func (s *Store) lock(ctx context.Context, k key) (unlock func(), err error) {
	f, err := s.lockFile(s.lockPath(k))
	if err != nil {
		return nil, err
	}
	if _, err := f.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	return func() { _ = f.Unlock() }, nil
}

// lockLogin takes the lock that a process holds while it prompts a person to log in. unlock is nil if another process
// has it.
func (s *Store) lockLogin(k key) (unlock func(), err error) {
	f, err := s.lockFile(filepath.Join(s.Dir, k.name()+".login.lock"))
	if err != nil {
		return nil, err
	}
	locked, err := f.TryLock()
	if err != nil || !locked {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Unlock() }, nil
}

func (s *Store) lockFile(path string) (*flock.Flock, error) {
	if s.Dir == "" {
		return nil, errNoPlace
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	return flock.New(path, flock.SetPermissions(0o600)), nil
}

// write replaces a record atomically.
func (s *Store) write(k key, text []byte) error {
	if s.Keyring {
		defer s.touch(k)
		return keyring.Set(service, k.name(), string(text))
	}
	if s.replace != nil {
		return s.replace(s.where(k), text)
	}
	return secretfile.Replace(s.where(k), text)
}

// touch makes the stamp of a record in the keyring a new one.
func (s *Store) touch(k key) {
	now := time.Now()
	_ = os.Chtimes(s.lockPath(k), now, now)
}

// remove deletes a record, if there is one.
func (s *Store) remove(k key) (err error) {
	s.setUnsaved(k, nil)
	if s.Keyring {
		defer s.touch(k)
		err = keyring.Delete(service, k.name())
	} else {
		err = os.Remove(s.where(k))
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, keyring.ErrNotFound) {
		return nil
	}
	return secretfile.WithoutPath(err)
}
