package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gofrs/flock"
	"github.com/zalando/go-keyring"
)

// A Store keeps logins. Many processes use it at once: whoever changes a record has its
// lock, which goes with the process.
type Store struct {
	Dir     string // of files that nobody else may read, made when it is needed; "": there is no place
	Keyring bool   // the records are in the keyring of the operating system instead; the locks are files all the same
}

// DefaultDir returns where logins are kept: mcp-proxy/login in $XDG_STATE_HOME, else in
// ~/.local/state, and on macOS and Windows in the user's configuration directory. It is ""
// for a user without a home.
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

var errNoPlace = errors.New("there is no place to keep logins: neither XDG_STATE_HOME nor HOME is set")

// maxRecord bounds the bytes of a record.
const maxRecord = 1 << 20

// service is the name of our records in the keyring.
const service = "mcp-proxy login"

// place says where the login at a server is kept, for people.
func (s *Store) place(k key) string {
	if s.Keyring {
		return fmt.Sprintf("the system's keyring (%s, %s)", service, k.name())
	}
	return filepath.Join(s.Dir, k.name()+".json")
}

// load returns what is kept, which is empty for nothing. Errors name the place.
func (s *Store) load(k key) (*record, error) {
	if s.Dir == "" {
		return nil, errNoPlace
	}
	text, err := s.read(k)
	if err == nil {
		var r *record
		if r, err = readRecord(text); err == nil {
			return r, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", s.place(k), err)
}

func (s *Store) read(k key) ([]byte, error) {
	if s.Keyring {
		text, err := keyring.Get(service, k.name())
		if errors.Is(err, keyring.ErrNotFound) {
			return nil, nil
		}
		return []byte(text), err
	}
	file, err := os.Open(s.place(k))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, withoutPath(err)
	}
	defer file.Close()
	if err := private(file); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(file, maxRecord))
}

// private reports whether others may read a file.
func private(file *os.File) error {
	info, err := file.Stat()
	if err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("others can read it (mode %o): make it 0600, and log in again", info.Mode().Perm())
	}
	return err
}

// update changes what is kept, with its lock. Nothing is written if change fails, except
// with an error that is kept. ctx bounds the wait for the lock.
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
	return s.changed(k, r, change(r))
}

// A kept is the error of a change that is written all the same.
type kept struct{ error }

func (e kept) Unwrap() error { return e.error }

func (s *Store) changed(k key, r *record, err error) error {
	if _, keep := errors.AsType[kept](err); err != nil && !keep {
		return err
	}
	r.Version, r.Server, r.ClientID, r.Changed = version, k.server, k.clientID, time.Now()
	text, failed := json.MarshalIndent(r, "", "  ")
	if failed == nil {
		failed = s.write(k, text)
	}
	if failed != nil {
		return fmt.Errorf("%s: %w", s.place(k), failed)
	}
	return err
}

// lock waits until nobody else changes the record.
func (s *Store) lock(ctx context.Context, k key) (unlock func(), err error) {
	if s.Dir == "" {
		return nil, errNoPlace
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	f := flock.New(filepath.Join(s.Dir, k.name()+".lock"), flock.SetPermissions(0o600))
	if _, err := f.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	return func() { _ = f.Unlock() }, nil
}

// write replaces the record at once, so that nobody ever reads half of one.
func (s *Store) write(k key, text []byte) error {
	if s.Keyring {
		return keyring.Set(service, k.name(), string(text))
	}
	f, err := os.CreateTemp(s.Dir, k.name()+".*.new") // mode 0600
	if err != nil {
		return withoutPath(err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // unless it was renamed
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), s.place(k))
	}
	return withoutPath(err)
}

// remove forgets a record.
func (s *Store) remove(k key) error {
	if s.Keyring {
		err := keyring.Delete(service, k.name())
		if errors.Is(err, keyring.ErrNotFound) {
			return nil
		}
		return err
	}
	err := os.Remove(s.place(k))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return withoutPath(err)
}

// withoutPath returns what went wrong with a file that is named anyway.
func withoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
