package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// adminSocket is the path of the socket where operators look into this process, which runs a
// command; "" if there is no directory for it. Dead sockets of others are removed.
func adminSocket(command string, log *slog.Logger) string {
	dir, err := adminDir()
	if err == nil {
		err = ownDir(dir)
	}
	if err != nil {
		log.Debug("no socket for operators", "err", err)
		return ""
	}
	sweep(dir)
	return filepath.Join(dir, fmt.Sprintf("%s-%d.sock", command, os.Getpid()))
}

// adminDir is the directory of the sockets of this user: mcp-proxy in the runtime directory,
// else mcp-proxy-UID in the temporary one.
func adminDir() (string, error) {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) { // its specification: relative ones are ignored
		return filepath.Join(dir, "mcp-proxy"), nil
	}
	uid := os.Getuid()
	if uid < 0 {
		return "", errors.New("this system has no socket for operators: set admin.listen")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("mcp-proxy-%d", uid)), nil
}

// ownDir makes a directory that nobody else can use, if it is not there. What is there must
// be one: in the temporary directory anybody may have made it, and could then pass for us.
func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir() || info.Mode().Perm() != 0o700 || !ours(info):
		return fmt.Errorf("%s is not a private directory of this user", dir)
	}
	return nil
}

// sockets are those in a directory.
func sockets(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "*.sock")) // the pattern is good
	return found
}

// sweep removes the sockets of processes that were killed. One that has just been made may
// not be listened at yet.
func sweep(dir string) {
	for _, path := range sockets(dir) {
		info, err := os.Lstat(path)
		if err == nil && time.Since(info.ModTime()) > time.Minute && isDead(path) {
			_ = os.Remove(path) // or somebody else has
		}
	}
}

// isDead reports whether nobody listens at a socket any more.
func isDead(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
