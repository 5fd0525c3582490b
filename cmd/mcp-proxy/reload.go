package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// A takeover reloads the configuration into a service.
type takeover struct {
	// Static.
	*start
	ctx   context.Context // when it is done, nothing is reloaded any more
	adopt func(*config.Config) error

	mu sync.Mutex // held during a reload
}

// onSignal reloads the configuration at each SIGHUP, until stop is called.
func (t *takeover) onSignal() (stop func()) {
	asked, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(asked, syscall.SIGHUP)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-asked:
				t.now()
			case <-done:
				return
			}
		}
	})
	return func() {
		signal.Stop(asked)
		close(done)
		wg.Wait()
	}
}

// now reads the configuration and applies what [proxy.Proxy.Reload] can. It logs the settings that need a
// restart. If the configuration has mistakes, nothing changes. It returns the files that were read, or that are
// missing; nil if ctx is done.
func (t *takeover) now() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return nil
	}
	cfg, err := t.again()
	if err == nil {
		err = t.adopt(cfg)
	}
	if err != nil {
		t.log.Error("configuration not reloaded", "err", err)
		return cfg.Read
	}
	if keys := t.cfg.Changed(cfg); len(keys) > 0 {
		t.log.Warn("changed settings need a restart", "keys", strings.Join(keys, ", "))
	}
	t.log.Info("configuration reloaded", "upstreams", len(cfg.Upstreams), "links", len(cfg.Links))
	return cfg.Read
}

// settled is how long files must stay unchanged before they are read: editors and
// Kubernetes change them in several steps.
const settled = 200 * time.Millisecond

// onChange reloads the configuration when one of its files changes, until stop is called. It watches
// the folders of the files: a file, or a symbolic link to it, may be replaced.
func (t *takeover) onChange() (stop func(), err error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	before := contents(t.cfg.Read) // here, so that a change before watch begins is noticed
	var wg sync.WaitGroup
	wg.Go(func() { t.watch(w, before) })
	return func() {
		w.Close()
		wg.Wait()
	}, nil
}

// watch runs until w is closed. before is the checksum of the files when they were read. Events only say when to
// look: other files in the folders may change all the time.
func (t *takeover) watch(w *fsnotify.Watcher, before [sha256.Size]byte) {
	files, seen := t.cfg.Read, before
	t.addFolders(w, files)
	next := time.NewTimer(settled) // finds what changed before the folders were watched
	defer next.Stop()
	due := true
	lookAgain := func() {
		if !due {
			due = true
			next.Reset(settled)
		}
	}
	for {
		select {
		case _, open := <-w.Events:
			if !open {
				return
			}
			lookAgain()
		case err, open := <-w.Errors:
			if !open {
				return
			}
			t.log.Warn("cannot watch the configuration files", "err", err)
			lookAgain() // events may be lost
		case <-next.C:
			due = false
			now := contents(files)
			changes := now != seen
			if seen = now; now == before {
				continue
			}
			lookAgain() // also after a reload: a link may lead to another folder now
			if changes {
				continue
			}
			before = now
			if read := t.now(); read != nil && !slices.Equal(read, files) {
				files, before = read, [sha256.Size]byte{} // other files: compare once more
			}
			t.addFolders(w, files)
		}
	}
}

// addFolders watches the folders of files, and of the files that they link to.
func (t *takeover) addFolders(w *fsnotify.Watcher, files []string) {
	add := func(file string) {
		if err := w.Add(filepath.Dir(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.log.Warn("cannot watch the configuration files", "err", err)
		}
	}
	for _, f := range files {
		add(f)
		if to, err := filepath.EvalSymlinks(f); err == nil {
			add(to)
		}
	}
}

// contents returns a checksum of files. A file that cannot be read counts as empty.
func contents(files []string) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, f := range files {
		data, _ := os.ReadFile(f)
		one := sha256.Sum256(data)
		h.Write(one[:])
	}
	copy(sum[:], h.Sum(nil))
	return sum
}
