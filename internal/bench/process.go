package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A process is a program under measurement.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.ReadCloser

	logs sync.WaitGroup // readLog
	urls chan string    // the first one that a server says it listens at; never closed

	mu  sync.Mutex // guards the fields below
	log strings.Builder
}

// cacheHome is where the programs keep what they know from earlier runs, which is nothing when a run of the
// benchmark begins. It does not change while programs run.
var cacheHome string

// start runs argv with the additional environment env. What it writes to stdout
// is for the caller to read, unless it is a server.
func start(argv []string, server bool, env ...string) (*process, error) {
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), urls: make(chan string, 1)}
	p.cmd.Env = append(append(os.Environ(), "XDG_CACHE_HOME="+cacheHome), env...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.logs.Go(func() { p.readLog(stderr) })
	if server {
		p.logs.Go(func() { p.readLog(p.out) })
	}
	return p, nil
}

var listening = regexp.MustCompile(`^listening on ([^ ,]+)`)

// readLog keeps what the process logs, for error messages, and looks for the
// URL in it. It ends with the process.
func (p *process) readLog(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		p.mu.Lock()
		p.log.WriteString(lines.Text() + "\n")
		p.mu.Unlock()
		if said := listening.FindStringSubmatch(lines.Text()); said != nil {
			select {
			case p.urls <- said[1]:
			default: // it is known already
			}
		}
	}
}

// address waits until a server says where it listens, and returns host and port.
func (p *process) address() (string, error) {
	said, err := p.url()
	if err != nil {
		return "", err
	}
	u, err := url.Parse(said)
	if err != nil {
		return "", err
	}
	return u.Host, nil
}

// url waits until a server says where it listens.
func (p *process) url() (string, error) {
	select {
	case u := <-p.urls:
		select {
		case p.urls <- u: // for whoever asks next
		default:
		}
		return u, nil
	case <-time.After(10 * time.Second):
		return "", errors.New("the server did not say where it listens")
	}
}

// A usage is what the kernel counts of processes; zeros where that cannot be told.
type usage struct {
	cpu, system time.Duration // system is part of cpu, in ticks of 10 ms
	// Context switches of all threads: because they waited, and because others had to run.
	waits, preempted float64
}

// plus returns the sum of u and so many times v.
func (u usage) plus(v usage, times float64) usage {
	n := time.Duration(times)
	return usage{u.cpu + n*v.cpu, u.system + n*v.system, u.waits + times*v.waits, u.preempted + times*v.preempted}
}

func (u usage) less(v usage) usage { return u.plus(v, -1) }

// usage returns that of the process until now.
func (p *process) usage() (u usage) {
	const exact = 2 // CPUCLOCK_SCHED: nanoseconds, where /proc has ticks
	var t unix.Timespec
	if unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|exact), &t) != nil {
		return u
	}
	u.cpu = time.Duration(t.Nano())
	stat, _ := os.ReadFile(p.proc("stat"))
	_, rest, _ := strings.Cut(string(stat), ") ")
	if fields := strings.Fields(rest); len(fields) > 12 { // from the third on: stime is the fifteenth
		ticks, _ := strconv.Atoi(fields[12])
		u.system = time.Duration(ticks) * 10 * time.Millisecond
	}
	threads, _ := filepath.Glob(p.proc("task/*/status"))
	for _, thread := range threads {
		u.waits += statusOf(thread, "voluntary_ctxt_switches")
		u.preempted += statusOf(thread, "nonvoluntary_ctxt_switches")
	}
	return u
}

// ownCPU returns how long processors have worked for this process.
func ownCPU() time.Duration {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// proc returns a path of the kernel's about the process.
func (p *process) proc(name string) string {
	return fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, name)
}

// statusOf returns a number in a status file of /proc, zero if it is not there.
func statusOf(path, key string) float64 {
	status, _ := os.ReadFile(path)
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			n, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return n
		}
	}
	return 0
}

// rss returns the resident memory of the process in bytes.
func (p *process) rss() (float64, error) { return p.memory("VmRSS") }

// anon returns the private memory of the process in bytes: what is not pages of files.
func (p *process) anon() (float64, error) { return p.memory("RssAnon") }

func (p *process) memory(key string) (float64, error) {
	if size := statusOf(p.proc("status"), key); size > 0 {
		return size * kib, nil
	}
	return 0, fmt.Errorf("the process has ended, or has no %s", key)
}

// files returns how many descriptors the process has open.
func (p *process) files() (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	return len(entries), err
}

// stop ends the process as an operator would, and kills it if that takes long.
func (p *process) stop() error {
	p.in.Close()
	p.cmd.Process.Signal(os.Interrupt)
	kill := time.AfterFunc(15*time.Second, func() { p.cmd.Process.Kill() })
	defer kill.Stop()
	p.logs.Wait()
	err := p.cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil // how it answers the signal is not our concern
	}
	return err
}

// explain adds the end of what the process logged to err.
func (p *process) explain(err error) error {
	if err == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	log := p.log.String()
	return fmt.Errorf("%w\n%s", err, log[max(0, len(log)-2000):])
}
