//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// inside returns a pointer to an unexported field within a part of the proxy, at a path of names and
// indexes.
func inside[T any](part any, path ...string) *T {
	v := reflect.ValueOf(part)
	for _, name := range path {
		if v = reflect.Indirect(v); v.Kind() == reflect.Slice {
			i, _ := strconv.Atoi(name)
			v = v.Index(i)
		} else {
			v = v.FieldByName(name)
		}
	}
	return (*T)(v.Addr().UnsafePointer())
}

// leakChecked fails the tests if they leave goroutines or processes behind.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	os.Setenv("GORACE", "atexit_sleep_ms=0") // else each process takes a second to end
	state, err := os.MkdirTemp("", "mcp-proxy-state-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(state)
	os.Setenv("XDG_STATE_HOME", state)  // tests must not use the logins of the user
	os.Setenv("XDG_RUNTIME_DIR", state) // nor see the user's processes
	if cache, err := os.UserCacheDir(); err == nil && os.Getenv("GOCACHE") == "" {
		os.Setenv("GOCACHE", filepath.Join(cache, "go-build"))
	}
	os.Setenv("XDG_CACHE_HOME", os.DevNull) // nor share what servers list
	conntest.Parallel(6)
	code := l.m.Run()
	if err := goleak.Find(goleak.IgnoreTopFunction("os/signal.loop"), goleak.IgnoreTopFunction("os/signal.signal_recv")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if left := children(os.Getpid()); len(left) > 0 && code == 0 {
		fmt.Fprintln(os.Stderr, "processes left behind:", left)
		code = 1
	}
	return code
}

// children returns the processes whose parent is pid, on Linux. With a mark it returns only those that
// have it in their environment, and zombies, which have no environment.
func children(pid int, mark ...string) []string {
	var found []string
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		stat, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == fmt.Sprint(pid) {
			env, _ := os.ReadFile("/proc/" + d.Name() + "/environ")
			if len(mark) == 0 || fields[0] == "Z" || strings.Contains(string(env), mark[0]) {
				found = append(found, d.Name())
			}
		}
	}
	return found
}

// gone reports whether a process has ended; a zombie has not been reaped.
func gone(pid int) bool { return syscall.Kill(pid, 0) != nil }

// ended is gone for a process that is not our child: it may stay a zombie until its
// parent reaps it.
func ended(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z") || gone(pid)
}

// eventually waits until ok holds, for as long as a slow machine may take.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("not in 20 s: ", what)
}

// lines collects text that several goroutines write, and counts its lines.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
