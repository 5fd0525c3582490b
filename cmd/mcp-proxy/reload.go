package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"log/slog"
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

// A takeover has a service take over what has changed in the configuration.
type takeover struct {
	// Static.
	ctx   context.Context                // done: nothing is taken over any more
	again func() (*config.Config, error) // reads the configuration as at the start; an error comes with the files read
	first *config.Config
	adopt func(*config.Config) error
	log   *slog.Logger

	mu sync.Mutex // held while the configuration is taken over
}

// onSignal takes over the configuration at each SIGHUP, until stop is called.
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

// now reads the configuration again and takes over what [proxy.Proxy.Reload] does. All else
// stays as it was at the start, of which the log tells, and so does everything if the configuration
// cannot be used. It returns the files that were read, or looked for; nil for none.
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
	if keys := t.first.Changed(cfg); len(keys) > 0 {
		t.log.Warn("changed settings need a restart", "keys", strings.Join(keys, ", "))
	}
	t.log.Info("configuration reloaded", "upstreams", len(cfg.Upstreams), "links", len(cfg.Links))
	return cfg.Read
}

// settled is how long files must stay the same before they are read: editors and
// Kubernetes change them in several steps.
const settled = 200 * time.Millisecond

// onChange takes over the configuration when one of the files that it was read from has
// changed, until stop is called. Their folders are watched, since a file may be replaced, or
// be behind a link that is.
func (t *takeover) onChange() (stop func(), err error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	before := contents(t.first.Read) // what changes from now on is seen, however late the rest starts
	var wg sync.WaitGroup
	wg.Go(func() { t.watch(w, before) })
	return func() {
		w.Close()
		wg.Wait()
	}, nil
}

// watch runs until w is closed. before is the sum of what the files had.
func (t *takeover) watch(w *fsnotify.Watcher, before [sha256.Size]byte) {
	files := t.first.Read
	t.addFolders(w, files)
	quiet := time.NewTimer(settled) // what has changed since the start is seen, too
	defer quiet.Stop()
	for {
		select {
		case _, open := <-w.Events:
			if !open {
				return
			}
			quiet.Reset(settled)
		case err, open := <-w.Errors:
			if !open {
				return
			}
			t.log.Warn("cannot watch the configuration files", "err", err)
			quiet.Reset(settled) // some changes may not have been told
		case <-quiet.C:
			now := contents(files)
			if now == before {
				continue
			}
			before = now
			if read := t.now(); read != nil && !slices.Equal(read, files) {
				files, before = read, [sha256.Size]byte{} // unknown: looked at once more
				quiet.Reset(settled)
			}
			t.addFolders(w, files)
		}
	}
}

// addFolders watches the folders of files, and of what they are links to.
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

// contents is a sum of what is in files. One that cannot be read has nothing.
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
