package main

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

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
			t.log.Warn("the files of the configuration cannot be watched", "err", err)
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
			t.log.Warn("the files of the configuration cannot be watched", "err", err)
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
