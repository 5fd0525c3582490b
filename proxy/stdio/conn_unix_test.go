//go:build unix

package stdio

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// The test binary is the process that a client starts, if this is set to one of
// the names in processes.
const processEnv = "STDIO_TEST_PROCESS"

// processes are the things that such a process does with its client. Their result is the last
// line on stderr.
var processes = map[string]func(s *Conn) string{
	// echo answers until the client has left.
	"echo": func(s *Conn) string {
		eof := false
		for {
			m, err := s.Recv()
			switch {
			case err == io.EOF:
				eof = true
			case err != nil:
				return fmt.Sprintf("eof=%v closed=%v", eof, errors.Is(err, jsonrpc.ErrClosed))
			default:
				s.Send(jsonrpc.NewResult(m.ID, []byte(`{}`)))
			}
		}
	},
	// flood sends to a client that does not read; Close ends that.
	"flood": func(s *Conn) string {
		var sent atomic.Int64
		end := make(chan error, 1)
		go func() {
			for {
				if err := s.Send(sized(10_000)); err != nil {
					end <- err
					return
				}
				sent.Add(1)
			}
		}()
		for last := int64(-1); last != sent.Load(); time.Sleep(100 * time.Millisecond) {
			last = sent.Load()
		}
		s.Close()
		return fmt.Sprintf("closed=%v", errors.Is(<-end, jsonrpc.ErrClosed))
	},
	// close ends while the client is silent.
	"close": func(s *Conn) string {
		s.Close()
		s.Close()
		_, err := s.Recv()
		return fmt.Sprintf("closed=%v", errors.Is(err, jsonrpc.ErrClosed))
	},
	// chatter writes to stdout and stderr until the client has left, and longer.
	"chatter": func(s *Conn) string {
		var err error
		for err == nil {
			err = s.Send(sized(10))
		}
		for range 10 {
			slog.Info("client is gone")
			s.Send(sized(10))
		}
		return fmt.Sprintf("closed=%v", errors.Is(err, jsonrpc.ErrClosed))
	},
}

func init() {
	process, ok := processes[os.Getenv(processEnv)]
	if !ok {
		return
	}
	said := process(New(os.Stdin, os.Stdout, jsonrpc.Limits{}))
	os.Stderr.WriteString(said + "\n")
	os.Exit(0)
}

// A clientProcess runs one of those on blocking descriptors, which most clients pass.
type clientProcess struct {
	cmd           *exec.Cmd
	stdin, stdout *os.File
	said          chan string
}

func startProcess(t *testing.T, name string) *clientProcess {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), conntest.Patience)
	t.Cleanup(cancel)
	p := &clientProcess{cmd: exec.CommandContext(ctx, os.Args[0]), said: make(chan string, 1)}
	p.cmd.Env = append(os.Environ(), processEnv+"="+name)
	in, out := p.pipes(t)
	p.cmd.Stdin, p.cmd.Stdout = in, out
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	out.Close()
	go func() {
		last := ""
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			last = lines.Text()
		}
		p.said <- last
	}()
	return p
}

func (p *clientProcess) pipes(t *testing.T) (in, out *os.File) {
	t.Helper()
	in, stdin, err1 := os.Pipe()
	stdout, out, err2 := os.Pipe()
	if err := errors.Join(err1, err2, unix.SetNonblock(int(in.Fd()), false), unix.SetNonblock(int(out.Fd()), false)); err != nil {
		t.Fatal(err)
	}
	p.stdin, p.stdout = stdin, stdout
	t.Cleanup(func() { stdin.Close(); stdout.Close() })
	return in, out
}

// wantEnd waits until the process has ended by itself with that line.
func (p *clientProcess) wantEnd(t *testing.T, said string) {
	t.Helper()
	got := <-p.said // CommandContext sees to the time
	if err := p.cmd.Wait(); err != nil || got != said {
		t.Errorf("process said %q, %v, want %q", got, err, said)
	}
}

const pingLine = `{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n"

// The usual end of a client: everything is answered, then the process ends.
func TestD02_ProcessHalfClose(t *testing.T) {
	p := startProcess(t, "echo")
	io.WriteString(p.stdin, strings.Repeat(pingLine, 3))
	p.stdin.Close()
	answers := bufio.NewScanner(p.stdout)
	for range 3 {
		if !answers.Scan() || !strings.Contains(answers.Text(), `"result"`) {
			t.Errorf("read %q", answers.Text())
		}
	}
	p.stdout.Close() // only now is the client gone
	p.wantEnd(t, "eof=true closed=true")
}

// Neither a broken stdout nor SIGPIPE from elsewhere kills the process.
func TestD01_ProcessSurvivesSIGPIPE(t *testing.T) {
	p := startProcess(t, "chatter")
	io.ReadFull(p.stdout, make([]byte, 10))
	p.stdout.Close()
	p.wantEnd(t, "closed=true")

	p = startProcess(t, "echo")
	answers := bufio.NewReader(p.stdout)
	for range 2 {
		io.WriteString(p.stdin, pingLine)
		if _, err := answers.ReadString('\n'); err != nil {
			t.Errorf("no answer: %v", err)
		}
		p.cmd.Process.Signal(unix.SIGPIPE) // the first answer shows that it is up
	}
	p.stdin.Close()
	p.stdout.Close()
	p.wantEnd(t, "eof=true closed=true")
}

// Some clients pass one pipe as stdout and stderr. Then logging writes to a broken pipe, too.
func TestD01_ProcessSurvivesBrokenStderr(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), conntest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), processEnv+"=chatter")
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	io.ReadFull(r, make([]byte, 10))
	r.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("process ended with %v", err)
	}
}

// A client that does not read blocks Send but not Close, although a blocking descriptor cannot be
// interrupted.
func TestProcessCloseUnblocksSend(t *testing.T) {
	startProcess(t, "flood").wantEnd(t, "closed=true")
}

// The goroutine that reads stdin cannot be stopped, and does not keep the process alive.
func TestProcessClosesWhileReading(t *testing.T) {
	startProcess(t, "close").wantEnd(t, "closed=true")
}

// After the end of stdin the client still gets its answers, and Recv returns when it has left.
func TestD02_StdioHalfClose(t *testing.T) {
	s, stdin, stdout := newConn(t)
	io.WriteString(stdin, `{"jsonrpc":"2.0","id":1,"method":"a"}`+"\n"+`{"jsonrpc":"2.0","id":2,"method":"b"}`)
	stdin.Close()
	for _, want := range []string{"a", "b"} { // the second without a newline
		if m := conntest.Recv(t, s); m.Method != want {
			t.Errorf("received %s, want %s", m.Append(nil), want)
		}
	}
	if _, err := conntest.RecvOrEnd(t, s); err != io.EOF {
		t.Fatalf("Recv at the end of stdin: %v, want io.EOF", err)
	}
	end := make(chan error, 1)
	go func() {
		_, err := s.Recv()
		end <- err
	}()
	lines := jsonrpc.NewLineReader(stdout, jsonrpc.Limits{})
	for id := range int64(3) {
		if err := s.Send(jsonrpc.NewResult(jsonrpc.IntID(id), []byte("{}"))); err != nil {
			t.Errorf("Send after the half-close: %v", err)
		}
		if m, err := lines.Read(); err != nil || m.ID != jsonrpc.IntID(id) {
			t.Errorf("client reads %v, %v", m, err)
		}
	}
	select {
	case err := <-end:
		t.Errorf("Recv returned %v while the client was there", err)
	default:
	}
	stdout.Close()
	if err := conntest.Await(t, "end of Recv", end); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Recv after stdout broke: %v", err)
	}
	if err := s.Send(jsonrpc.NewNotification("late", nil)); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send after stdout broke: %v", err)
	}
}

// Both ends close at once, with answers on the way: the client has left, whichever shows first.
func TestD01_StdioFullClose(t *testing.T) {
	s, stdin, stdout := newConn(t)
	stdin.Close()
	stdout.Close()
	if _, err := conntest.RecvOrEnd(t, s); err != io.EOF {
		t.Errorf("Recv: %v, want io.EOF", err)
	}
	wantGone(t, s)
}

// A broken stdout is noticed on everything that a client may have passed.
func TestPollBroken(t *testing.T) {
	for name, pair := range map[string]func() (near, far *os.File, err error){
		"Pipe":   func() (near, far *os.File, err error) { far, near, err = os.Pipe(); return },
		"Socket": socketPair,
	} {
		near, far, err := pair()
		if err != nil {
			t.Fatal(err)
		}
		if broken, ok := pollBroken(near); broken || !ok {
			t.Errorf("%s: broken %v, ok %v while it is read", name, broken, ok)
		}
		far.Close()
		if broken, ok := pollBroken(near); !broken || !ok {
			t.Errorf("%s: broken %v, ok %v after nobody reads", name, broken, ok)
		}
		near.Close()
		if _, ok := pollBroken(near); ok {
			t.Errorf("%s: a closed file can be polled", name)
		}
	}
}

func socketPair() (near, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far"), nil
}
