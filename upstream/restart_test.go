package upstream

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// roundOf goes through one round of a restart state as Attach does.
func roundOf(rs *restarts, how outcome, life time.Duration) (started bool) {
	r, wait := rs.enter(serverID{"u", "k", mcp.Legacy})
	defer r.leave()
	if wait == nil {
		r.ended(how, &jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(1)}, life)
	}
	return wait == nil
}

func TestBackOff(t *testing.T) {
	for _, row := range []struct {
		name  string
		how   outcome
		life  time.Duration
		count int // rounds without waiting
	}{
		{"start failures", startFailed, 0, 2},
		{"dies young", died, time.Second, 4},
		{"dies old", died, time.Minute, 100},
		{"intended", intended, time.Second, 100},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var rs restarts
				for i := range row.count {
					if !roundOf(&rs, row.how, row.life) {
						t.Fatalf("round %d has to wait", i)
					}
				}
				if ready := roundOf(&rs, row.how, row.life); ready != (row.count == 100) {
					t.Fatalf("after %d rounds: ready is %v", row.count, ready)
				}
				time.Sleep(time.Second)
				if !roundOf(&rs, intended, 0) { // the first back-off is at most 750 ms
					t.Fatal("still waiting")
				}
				if len(rs.all) != 0 {
					t.Error("a state without failures is kept")
				}
			})
		})
	}
}

func TestBackOffGrowsAndOthersAreUnaffected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rs restarts
		for range 20 {
			for !roundOf(&rs, startFailed, 0) {
				time.Sleep(100 * time.Millisecond)
			}
		}
		r := rs.all[serverID{"u", "k", mcp.Legacy}]
		for range 100 {
			if wait := time.Until(r.next); wait < 10*time.Second || wait > 31*time.Second {
				t.Fatalf("waits %v after 20 failures or more", wait)
			}
			time.Sleep(time.Until(r.next))
			roundOf(&rs, startFailed, 0)
		}
		if _, wait := rs.enter(serverID{"u", "other", mcp.Legacy}); wait != nil {
			t.Error("one client's bad luck is another's")
		}
	})
}

// While a command waits for everybody, a retry can help if the machine had no room for it.
func TestCommandThatCannotRunMayBeRetried(t *testing.T) {
	for fault, lasting := range map[process.Fault]bool{process.CannotRun: false, process.NoCommand: true} {
		var rs restarts
		for i := range commandFailures {
			r, _ := rs.enter(serverID{"u", fmt.Sprint(i), mcp.Legacy})
			r.commandFailed(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Lasting: lasting, Err: &process.StartError{Fault: fault}})
			r.leave()
		}
		if _, wait := rs.enter(serverID{"u", "k", mcp.Legacy}); wait == nil || wait.Lasting != lasting {
			t.Errorf("fault %d: %+v", fault, wait)
		}
	}
}

// A command that fails for everybody waits for everybody: one start at a time finds out whether
// it still fails, until one has answered or the upstream is another.
func TestCommandBackOffIsForAllClients(t *testing.T) {
	for name, mend := range map[string]func(rs *restarts, r *restart){
		"answered": func(_ *restarts, r *restart) { r.answered() },
		"replaced": func(rs *restarts, _ *restart) { rs.reset([]string{"u"}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var rs restarts
				keys := 0
				// start is that of a new client, which leaves when then has returned. It
				// reports whether it may start.
				start := func(then func(*restart)) bool {
					keys++
					r, wait := rs.enter(serverID{"u", fmt.Sprint(keys), mcp.Legacy})
					defer r.leave()
					if wait != nil && (wait.Cause != jsonrpc.ExitCause(3) || !wait.Lasting) {
						t.Errorf("waits because of %v", wait)
					}
					if wait == nil {
						then(r)
					}
					return wait == nil
				}
				fail := func(r *restart) { r.commandFailed(&jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(3)}) }
				stay := func(*restart) {
					if start(nil) {
						t.Error("two clients start it at once")
					}
				}
				for range commandFailures {
					if !start(fail) {
						t.Fatal("waits too soon")
					}
				}
				for range 20 {
					if start(fail) {
						t.Error("one of many clients starts it at once")
					}
				}
				starts := 0
				for range 600 { // a minute
					time.Sleep(100 * time.Millisecond)
					for range 5 {
						if start(fail) {
							starts++
						}
					}
				}
				if starts < 4 || starts > 12 {
					t.Errorf("%d starts within a minute", starts)
				}
				if _, wait := rs.enter(serverID{"other", "k", mcp.Legacy}); wait != nil {
					t.Error("another upstream waits, too")
				}
				time.Sleep(time.Minute)
				for range 3 { // whoever leaves before the start has come to an end finds out nothing
					if !start(stay) {
						t.Error("waits for a client that has left")
					}
				}
				start(func(r *restart) { mend(&rs, r) })
				for range 5 {
					if !start(func(*restart) {}) {
						t.Error("waits still")
					}
				}
			})
		})
	}
}

func TestFailuresOfDepartedClientsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rs restarts
		roundOf(&rs, startFailed, 0)
		if len(rs.status()) != 1 {
			t.Fatal("a failure is forgotten at once")
		}
		time.Sleep(remembered + time.Second)
		synctest.Wait()
		if left := rs.status(); len(left) != 0 {
			t.Errorf("states left: %v", left)
		}
	})
}

// An answer ends what failed before it, for the upstream and not for the key: others may fail
// for reasons of their own.
func TestAnAnswerEndsTheFailuresBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rs restarts
		roundOf(&rs, startFailed, 0)
		roundOf(&rs, startFailed, 0)
		r, _ := rs.enter(serverID{"u", "other", mcp.Legacy})
		failed := func() int { return rs.all[serverID{"u", "k", mcp.Legacy}].statusLocked().Failed }
		if failed() == 0 {
			t.Error("a failure is not told of")
		}
		r.answered()
		if failed() != 0 {
			t.Error("the upstream still fails")
		}
		if roundOf(&rs, startFailed, 0) {
			t.Error("the key need not wait any more")
		}
		time.Sleep(time.Second)
		roundOf(&rs, startFailed, 0)
		if failed() == 0 {
			t.Error("a new failure is not told of")
		}
		r.leave()
	})
}

// gone describes a server that has ended.
func gone(st *Status) {
	st.PID, st.Started, st.InFlight, st.Stderr = 1, time.Now(), 1, []string{"last words"}
}

func TestStatusHasNothingOfAServerThatIsGone(t *testing.T) {
	var rs restarts
	r, _ := rs.enter(serverID{"u", "k", mcp.Legacy})
	r.started(gone)
	r.ended(died, &jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed")}, 0)
	for _, when := range []string{"its stream is there", "its stream has left"} {
		if st := rs.status()[0]; st.Lives() || st.PID != 0 || st.InFlight != 0 || !st.Started.IsZero() || len(st.Stderr) != 1 || st.Failed == 0 {
			t.Errorf("%s: %+v", when, st)
		}
		if r.streams > 0 {
			r.leave()
		}
	}
	r.expire.Stop()
}
