//go:build unix

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// recording makes a command keep what it reads, and returns how to get it.
func recording(t *testing.T, command *process.Command) (lines func() []string) {
	path := filepath.Join(t.TempDir(), "record")
	command.Env = append(command.Env, recordEnv+"="+path)
	return func() []string {
		text, _ := os.ReadFile(path)
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
}

// expectLines compares the last lines of got.
func expectLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) < len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i, line := range got[len(got)-len(want):] {
		if line != want[i] {
			t.Errorf("line %d from the end: got %s, want %s", len(want)-i, line, want[i])
		}
	}
}

func cancelled(id jsonrpc.ID) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s,"reason":"client disconnected"}}`, id)
}

const lostQuestion = `{"jsonrpc":"2.0","id":%d,"error":{"code":-32000,"message":"Connection closed: this session is over","data":{"reason":"connection_closed","phase":"in_flight","retryable":false}}}`

func TestMessagesPassUnchanged(t *testing.T) {
	c := newRig(t, fakeCommand()).start("k")
	params := `{"n":1,"big":9007199254740993,"dup":1,"dup":2,"s":"\ud800 \u00e9"}`
	m := c.wait(c.sendParams("echo", params))
	if string(m.Result) != params {
		t.Errorf("got %s, want %s", m.Result, params)
	}
}

// D05, D06: the error for the question is all that the calls hear which may wait for
// it; one that came later is cancelled.
func TestD05_OneStimulusForEachCall(t *testing.T) {
	command := fakeCommand()
	lines := recording(t, &command)
	c := newRig(t, command).start("k")
	c.call("echo", 1)
	c.send("hang", 0)
	second := c.send("ask", 7)
	if q := c.recv(); q.Method != "roots/list" || q.Related != second {
		t.Fatalf("got %s related to %s", q.Append(nil), q.Related)
	}
	third := c.send("hang", 0)
	c.Close()
	if err := c.returned(); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Error(err)
	}
	expectLines(t, lines(), fmt.Sprintf(lostQuestion, 7), cancelled(third), "EOF")
}

func TestD06_NoGrandchildSurvives(t *testing.T) {
	t.Parallel()
	for _, traits := range []string{"obedient", "ignores-eof", "ignores-eof,ignores-term"} {
		t.Run(traits, func(t *testing.T) {
			command := fakeCommand(traits)
			command.StopGrace = 100 * time.Millisecond
			r := newRig(t, command)
			c := r.start("k")
			pid := pidOf(t, c.call("pid", 0))
			grandchild := pidOf(t, c.call("grandchild", 0))
			c.Close()
			c.returned()
			if alive(pid) {
				t.Error("the process lives on")
			}
			eventually(t, "the grandchild is gone", func() bool { return !alive(grandchild) })
			if w := r.log.at(slog.LevelWarn); len(w) > 0 {
				t.Errorf("an intended stop warns: %v", w)
			}
		})
	}
}

func TestD06_TermComesBeforeKill(t *testing.T) {
	t.Parallel()
	command := fakeCommand("ignores-eof", "obeys-term")
	command.StopGrace = time.Second // the second step has to suffice for the process to say so
	lines := recording(t, &command)
	c := newRig(t, command).start("k")
	c.Close()
	c.returned()
	expectLines(t, lines(), "TERM")
}

func pidOf(t testing.TB, m *jsonrpc.Message) int {
	t.Helper()
	pid, err := strconv.Atoi(string(m.Result))
	if err != nil || !alive(pid) {
		t.Fatalf("no living process: %s", m.Append(nil))
	}
	return pid
}

func TestD06_TasksAreCancelledAsTasks(t *testing.T) {
	command := fakeCommand()
	lines := recording(t, &command)
	c := newRig(t, command).start("k")
	for n := range 3 {
		c.wait(c.sendParams("task", fmt.Sprintf(`{"task":{"ttl":1},"n":%d}`, n)))
	}
	c.wait(c.sendParams("tasks/get", `{"x":1,"taskId":"t1"}`)) // says that it is completed
	waits := c.sendParams("tasks/result", `{"taskId":"t2"}`)
	c.sendParams("hang", `{"task":{}}`) // has no task yet: nothing can be cancelled
	c.Close()
	c.returned()
	cancel := `{"jsonrpc":"2.0","id":%d,"method":"tasks/cancel","params":{"taskId":"t%d"}}`
	expectLines(t, lines(), cancelled(waits), fmt.Sprintf(cancel, 8, 0), fmt.Sprintf(cancel, 9, 2), "EOF")
}

func TestD07_KilledWithCallsInFlight(t *testing.T) {
	r := newRig(t, fakeCommand())
	c := r.start("k")
	for range 5 {
		c.send("hang", 0)
	}
	c.send("kill", 0)
	c.ends("signal: killed", true)
	r.warned("upstream ended unexpectedly", 6)
	if m, err := c.Recv(); err == nil {
		t.Errorf("got %s after the end", m.Append(nil))
	}
	c.returned()
	r.start("k").call("echo", 1) // at once
}

func TestD08_CleanExitIsAnEnd(t *testing.T) {
	r := newRig(t, fakeCommand())
	c := r.start("k")
	c.send("hang", 0)
	c.send("exit", 0)
	c.ends("exit status 0", true)
	r.warned("upstream ended unexpectedly", 2)
}

// An answer that was cut short is none: the end of the process is the cause.
func TestD08_CutShort(t *testing.T) {
	c := newRig(t, fakeCommand()).start("k")
	c.send("cut", 3)
	c.ends("exit status 3", true)
}

func TestD08_LastWordsAreDelivered(t *testing.T) {
	c := newRig(t, fakeCommand()).start("k")
	c.send("answer-and-exit", 500)
	for i := range 500 {
		if m := c.recv(); m.Method != "x" || !strings.HasPrefix(string(m.Params), fmt.Sprintf(`{"n":%d,`, i)) {
			t.Fatalf("message %d is %.60s", i, m.Append(nil))
		}
	}
	c.wait(jsonrpc.IntID(c.next))
	c.ends("exit status 0", true)
}

func TestD09_GrandchildHoldsStdout(t *testing.T) {
	command := fakeCommand()
	command.StopGrace = time.Hour // nothing waits for it
	r := newRig(t, command)
	c := r.start("k")
	pid := pidOf(t, c.call("grandchild", 0))
	c.send("exit", 3)
	c.ends("exit status 3", true)
	c.returned()
	eventually(t, "the grandchild is gone", func() bool { return !alive(pid) })
	r.warned("upstream ended unexpectedly", 1)
}

func TestRaceO_GrandchildNeverFallsSilent(t *testing.T) {
	t.Parallel()
	command := fakeCommand()
	command.StopGrace = time.Second
	r := newRig(t, command)
	c := r.start("k")
	c.call("chatter", 0)
	c.recv() // it has begun
	c.send("exit", 3)
	heard := 0
	for ; ; heard++ {
		if _, err := c.Recv(); err != nil {
			break
		}
	}
	if heard < 5 { // a chatter every 20 ms, for a second
		t.Errorf("heard %d chatters after the exit: the last words are lost", heard)
	}
	c.ends("exit status 3", true)
	c.returned()
}

// A grandchild that has left the group, and writes on, keeps neither the calls nor the host waiting.
func TestRaceO_GrandchildLeavesTheGroup(t *testing.T) {
	t.Parallel()
	for name, dies := range map[string]bool{"the server ends": true, "the client leaves": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fakeCommand())
			c := r.start("k")
			c.send("orphan", 0)
			answer := c.recv()
			for !answer.IsResponse() {
				answer = c.recv()
			}
			pid := pidOf(t, answer)
			t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
			if !dies {
				c.Close()
				c.returned()
			} else {
				c.send("exit", 3)
				for _, err := c.Recv(); err == nil; _, err = c.Recv() {
				}
				c.ends("exit status 3", true)
				c.returned()
			}
			if !alive(pid) { // it writes for 10 s
				t.Error("the end waited for the grandchild")
			}
		})
	}
}

func TestD10_StdoutClosedWhileItLives(t *testing.T) {
	t.Parallel()
	command := fakeCommand("ignores-eof")
	command.StopGrace = 100 * time.Millisecond
	r := newRig(t, command)
	c := r.start("k")
	pid := pidOf(t, c.call("pid", 0))
	c.send("close-stdout", 0)
	c.ends("stdout closed", true)
	c.returned()
	if alive(pid) {
		t.Error("the process lives on")
	}
	r.warned("upstream ended unexpectedly", 1)
}

func TestStdinClosedWhileItLives(t *testing.T) {
	t.Parallel()
	command := fakeCommand()
	command.StopGrace = 100 * time.Millisecond
	r := newRig(t, command)
	c := r.start("k")
	c.send("close-stdin", 0)
	go func() {
		for c.Send(jsonrpc.NewNotification("x", nil)) == nil {
			time.Sleep(time.Millisecond)
		}
	}()
	c.ends("stdin closed", true)
	c.returned()
	r.warned("upstream ended unexpectedly", 1)
}

// fill sends until somebody holds it up or the stream ends.
func fill(c *client, total int) (sent chan struct{}) {
	sent = make(chan struct{})
	pad := json.RawMessage(`{"pad":"` + strings.Repeat("p", 32<<10) + `"}`)
	go func() {
		defer close(sent)
		for n := 0; n < total; n += len(pad) {
			if c.Send(jsonrpc.NewNotification("x", pad)) != nil {
				return
			}
		}
	}()
	return sent
}

func TestD12_StopsReading(t *testing.T) {
	t.Parallel()
	command := fakeCommand()
	command.WriteTimeout, command.StopGrace = 200*time.Millisecond, 100*time.Millisecond
	r := newRig(t, command)
	c := r.start("k")
	c.call("stop-reading", 0)
	c.send("hang", 0)
	fill(c, 64<<20)
	c.ends("write timeout", true)
	c.returned()
	r.warned("upstream ended unexpectedly", 1)
}

func TestD12_BusyReaderIsLeftAlone(t *testing.T) {
	t.Parallel()
	command := fakeCommand()
	command.WriteTimeout = 3 * time.Second
	r := newRig(t, command)
	c := r.start("k")
	c.call("read-slowly", 0)
	<-fill(c, 3<<20) // takes it longer than one WriteTimeout
	c.Send(jsonrpc.NewNotification("last", nil))
	if m := c.recv(); m.Method != "got-last" {
		t.Errorf("got %s", m.Append(nil))
	}
}

func TestD12_AnswersPassWhileStdinIsFull(t *testing.T) {
	t.Parallel()
	command := fakeCommand()
	command.StopGrace = 100 * time.Millisecond
	c := newRig(t, command).start("k")
	c.call("chatter", 0)
	c.send("stop-reading", 0)
	fill(c, 64<<20)
	time.Sleep(50 * time.Millisecond) // for the backlog to fill; without it the test is weaker, not wrong
	for range 100 {
		c.recv()
	}
}

func TestRaceP_ClientLeavesWhileStdinIsFull(t *testing.T) {
	command := fakeCommand()
	command.WriteTimeout, command.StopGrace = time.Hour, 100*time.Millisecond
	c := newRig(t, command).start("k")
	c.call("stop-reading", 0)
	c.send("hang", 0)
	<-fill(c, 256<<10)
	c.Close()
	c.returned()
}

func TestRaceP_ForcedWhileTheBacklogIsFull(t *testing.T) {
	t.Parallel()
	command := fakeCommand()
	command.WriteTimeout, command.StopGrace = time.Hour, time.Hour
	c := newRig(t, command).start("k")
	c.call("stop-reading", 0)
	fill(c, 64<<20)
	time.Sleep(50 * time.Millisecond) // for the backlog to fill; without it the test is weaker, not wrong
	c.cancel()
	c.returned()
}

func TestD19_LateDoubleAndUnknownAnswers(t *testing.T) {
	r := newRig(t, fakeCommand())
	c := r.start("k")
	id := c.send("twice", 0)
	c.wait(id)
	c.wait(id) // the proxy drops it
	if m := c.recv(); m.ID != jsonrpc.IntID(99999) {
		t.Fatalf("got %s", m.Append(nil))
	}
	c.wait(c.send("echo", 1))
	if w := r.log.at(slog.LevelWarn); len(w) > 0 {
		t.Error(w)
	}
}

func TestD21_ClientLeavesDuringInitialize(t *testing.T) {
	command := fakeCommand("mute")
	lines := recording(t, &command)
	r := newRig(t, command)
	c := r.attach("k")
	c.send("initialize", 0)
	eventually(t, "initialize arrives", func() bool { return strings.Contains(lines()[0], "initialize") })
	c.Close()
	c.returned()
	if got := lines(); len(got) != 2 || got[1] != "EOF" {
		t.Errorf("the server got %q", got)
	}
	if left := r.host.Status(); len(left) > 0 {
		t.Errorf("claims left: %v", left)
	}
}

// What a server was, nobody has to be told once its client knows that it is gone.
func TestStatusOfAnEndedServer(t *testing.T) {
	r := newRig(t, fakeCommand())
	c := r.start("k")
	c.send("hang", 0)
	eventually(t, "a call", func() bool { return r.host.Status()[0].InFlight == 1 })
	c.Send(jsonrpc.NewRequest(jsonrpc.IntID(1000), "kill", nil))
	c.ends("signal: killed", true)
	if st := r.host.Status()[0]; st.Lives() || st.PID != 0 || st.InFlight != 0 || st.Failed == 0 || st.Event == "" {
		t.Errorf("status %+v", st)
	}
}

func TestForced(t *testing.T) {
	t.Parallel()
	command := fakeCommand("ignores-eof", "ignores-term", "grandchild")
	command.StopGrace = time.Hour
	c := newRig(t, command).start("k")
	pid := pidOf(t, c.call("pid", 0))
	c.send("hang", 0)
	c.cancel()
	c.ends("host stopped", true)
	c.returned()
	if alive(pid) {
		t.Error("the process lives on")
	}
}

func TestForcedInTheMiddleOfAStop(t *testing.T) {
	t.Parallel()
	command := fakeCommand("ignores-eof", "ignores-term")
	command.StopGrace = time.Hour
	r := newRig(t, command)
	c := r.start("k")
	c.Close()
	eventually(t, "the stop begins", func() bool {
		all := r.host.Status()
		return len(all) == 1 && all[0].State == StateStopping
	})
	c.cancel()
	c.returned()
}

// TestD16_AllEndsAtOnce closes a stream, kills its process and cancels its
// context in one moment: one outcome.
func TestD16_AllEndsAtOnce(t *testing.T) {
	for _, procs := range []int{1, 2, 8} {
		t.Run(fmt.Sprint("GOMAXPROCS=", procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			r := newRig(t, fakeCommand())
			for i := range 67 {
				c := r.start(strconv.Itoa(i))
				c.send("hang", 0)
				go func() {
					c.Send(jsonrpc.NewRequest(jsonrpc.IntID(1000), "kill", nil)) // may come too late
				}()
				go c.Close()
				if i%2 == 0 {
					go c.cancel()
				}
				if err := c.returned(); !errors.Is(err, jsonrpc.ErrClosed) {
					t.Fatal(err)
				}
				c.cancel()
			}
			if w := len(r.log.at(slog.LevelWarn)); w > 67 {
				t.Errorf("%d warnings for 67 ends", w)
			}
		})
	}
}

// TestD07_Repeated kills a process while calls are being sent.
func TestD07_Repeated(t *testing.T) {
	for _, procs := range []int{1, 2, 8} {
		t.Run(fmt.Sprint("GOMAXPROCS=", procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			r := newRig(t, fakeCommand())
			const rounds = 67
			for i := range rounds {
				c := r.start(strconv.Itoa(i)) // a claim of its own: no back-off
				c.send("kill", 0)
				for c.Send(jsonrpc.NewRequest(jsonrpc.IntID(1000), "hang", json.RawMessage(`{"n":1}`))) == nil {
				}
				c.ends("signal: killed", true)
				c.returned()
			}
			if w := len(r.log.at(slog.LevelWarn)); w != rounds {
				t.Errorf("%d warnings for %d ends", w, rounds)
			}
		})
	}
}

func TestD50_ThousandCallsInFlight(t *testing.T) {
	r := newRig(t, fakeCommand())
	c := r.start("k")
	for range 1000 {
		c.send("hang", 0)
	}
	c.send("kill", 0)
	c.ends("signal: killed", true)
	r.warned("upstream ended unexpectedly", 1001)
}

func TestAttachAfterTheEnd(t *testing.T) {
	r := newRig(t, fakeCommand())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, far := jsonrpc.Pipe()
	var closed *jsonrpc.ClosedError
	if err := attach(ctx, r.host, "fake", "k", mcp.Legacy, far); !errors.As(err, &closed) || closed.Delivered {
		t.Error(err)
	}
	if err := attach(t.Context(), r.host, "other", "k", mcp.Legacy, far); !errors.As(err, &closed) || closed.Cause != jsonrpc.CauseChanged {
		t.Error(err)
	}
}
