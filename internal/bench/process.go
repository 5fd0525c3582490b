package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
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

// start runs argv with the additional environment env. What it writes to stdout
// is for the caller to read, unless it is a server.
func start(argv []string, server bool, env ...string) (*process, error) {
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), urls: make(chan string, 1)}
	p.cmd.Env = append(os.Environ(), env...)
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

// cpu returns how long processors have worked for the process; zero if that cannot be told here.
func (p *process) cpu() time.Duration {
	const exact = 2 // CPUCLOCK_SCHED: nanoseconds, where /proc has ticks
	var t unix.Timespec
	if unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|exact), &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// rss returns the resident memory of the process in bytes.
func (p *process) rss() (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("the process has ended, or has no VmRSS")
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
