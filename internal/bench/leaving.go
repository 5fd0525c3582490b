package main

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// cancels cancels a call.
func cancels(b programs, w way) (cells []cell, err error) {
	return cells, b.try(w, false, func(t *trial) error {
		k, _, err := t.hold(t.s.callers[0].conn, "c", 60_000)
		if err != nil {
			return err
		}
		at := time.Now()
		notice := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, k.id)
		if err := t.s.callers[1].conn.send(notice, 0, nil); err != nil {
			return err
		}
		cells = []cell{t.fate("c", at), {text: "none"}}
		if r := k.wait(500 * time.Millisecond); !r.none {
			cells[1].text = r.text
		}
		return nil
	})
}

// fateful is how long a server may take to hear of something, or to end in peace.
const fateful = 6 * time.Second

// fate says what becomes of the call with tag at the server.
func (t *trial) fate(tag string, at time.Time) cell {
	var e event
	var ok bool
	within(fateful, func() bool {
		e, ok = t.find(0, tag, "cancelled", "abandoned")
		return ok || len(t.running()) == 0
	})
	e, ok = t.find(0, tag, "cancelled", "abandoned") // it may have been its last word
	switch {
	case ok && e.what == "abandoned":
		return cell{"sees its connection closed", time.Since(at)}
	case ok:
		return cell{"is cancelled", time.Since(at)}
	case len(t.running()) == 0:
		return cell{text: "ends with the server"}
	}
	return cell{text: "goes on"}
}

// grave says when the last server ended, within limit.
func (t *trial) grave(at time.Time, limit time.Duration) cell {
	if t.way.remote() {
		if _, ok := t.find(limit, "", "deleted"); ok {
			return cell{text: "its session is deleted"}
		}
		return cell{text: "its session stays"}
	}
	if within(limit, func() bool { return len(t.running()) == 0 }) {
		return cell{"ended", time.Since(at)}
	}
	return cell{text: fmt.Sprintf("runs on after %s", limit)}
}

// obstinacy is how long a stubborn server is watched.
const obstinacy = 12 * time.Second

// twice sees what becomes of a way to a server, and at the same time to a stubborn one. There
// is no stubborn remote server.
func (b programs) twice(w way, see, stubborn func(*trial) error) error {
	var g errgroup.Group
	g.Go(func() error { return b.try(w, false, see) })
	if !w.remote() {
		g.Go(func() error { return b.try(w, true, stubborn) })
	}
	return g.Wait()
}

// leaves has the client leave with a call in flight.
func leaves(b programs, w way) ([]cell, error) {
	cells := []cell{{}, {}, {text: "–"}, {}}
	leave := func(t *trial, more func(at time.Time) error) error {
		if _, _, err := t.hold(t.s.callers[0].conn, "l", 60_000); err != nil {
			return err
		}
		at := time.Now()
		if err := t.leave(t.s.conns...); err != nil {
			return err
		}
		return more(at)
	}
	return cells, b.twice(w, func(t *trial) error {
		return leave(t, func(at time.Time) error {
			var g errgroup.Group
			g.Go(func() error { cells[0] = t.fate("l", at); return nil })
			g.Go(func() error { cells[1] = t.grave(at, fateful); return nil })
			g.Go(func() error { cells[3] = t.orphan(at); return nil })
			return g.Wait()
		})
	}, func(t *trial) error {
		return leave(t, func(at time.Time) error {
			var g errgroup.Group
			g.Go(func() error { cells[2] = t.grave(at, obstinacy); return nil })
			g.Go(func() error { t.orphan(at); return nil })
			return g.Wait()
		})
	})
}

// orphan says how the proxy that a client started ends when the client has left. A client
// waits for 2 s, sends SIGTERM, waits as long again, and sends SIGKILL.
func (t *trial) orphan(at time.Time) cell {
	p := t.proxy()
	if t.way.several {
		if p.ended() {
			return cell{text: "ended"}
		}
		return cell{text: "stays"}
	}
	for _, step := range []struct {
		sig  syscall.Signal
		text string
	}{{0, "ended"}, {syscall.SIGTERM, "needed SIGTERM"}, {syscall.SIGKILL, "needed SIGKILL"}} {
		p.cmd.Process.Signal(step.sig)
		if within(2*time.Second, p.ended) {
			return cell{step.text, time.Since(at)}
		}
	}
	return cell{text: "runs on"}
}

// terminated sends SIGTERM to the proxy while a call is in flight.
func terminated(b programs, w way) ([]cell, error) {
	cells := []cell{{}, {}, {}, {text: "–"}}
	terminate := func(t *trial) (call, time.Time, error) {
		k, _, err := t.hold(t.s.callers[0].conn, "t", 1000)
		if err != nil {
			return k, time.Time{}, err
		}
		return k, time.Now(), t.proxy().cmd.Process.Signal(syscall.SIGTERM)
	}
	return cells, b.twice(w, func(t *trial) error {
		k, at, err := terminate(t)
		if err != nil {
			return err
		}
		cells[0] = k.outcome()
		cells[1] = cell{text: fmt.Sprintf("runs on after %s", obstinacy)}
		if within(obstinacy, t.proxy().ended) {
			cells[1] = cell{"ended", time.Since(at)}
		}
		cells[2] = t.grave(at, fateful)
		return nil
	}, func(t *trial) error {
		_, at, err := terminate(t)
		if err != nil {
			return err
		}
		cells[3] = t.grave(at, obstinacy)
		return nil
	})
}

// together sees what two clients have to do with each other.
func together(b programs, w way) (cells []cell, err error) {
	return cells, b.try(w, false, func(t *trial) error {
		other, err := t.join()
		if err != nil {
			cells = []cell{{text: "the second client: " + told(err)}, {}, {}, {}}
			return nil
		}
		first := t.s.callers[0].conn
		cells = []cell{t.servers(first, other), t.sameID(first, other)}
		for _, happens := range []func() error{func() error { return t.leave(first) }, t.killThird} {
			k, _, err := t.hold(other, fmt.Sprint("stays", len(cells)), 500)
			if err != nil {
				cells = append(cells, cell{text: k.outcome().text})
				continue
			}
			if err := happens(); err != nil {
				return err
			}
			cells = append(cells, k.outcome())
		}
		return nil
	})
}

// killThird has one more client come, and kills its server.
func (t *trial) killThird() error {
	third, err := t.join()
	if err != nil {
		return err
	}
	_, pid, err := t.hold(third, "third", 60_000)
	if err != nil {
		return err
	}
	return kill(pid)
}

// outcome says whether k is answered.
func (k call) outcome() cell {
	if r := k.wait(bearable); !r.result {
		return cell{text: r.text}
	}
	return cell{text: "is answered"}
}

// servers says whether two clients have one.
func (t *trial) servers(a, b *conn) cell {
	one, two := t.call(a, "pid", "{}").wait(bearable), t.call(b, "pid", "{}").wait(bearable)
	switch {
	case !one.result || !two.result:
		return cell{text: one.text + "; " + two.text}
	case one.text == two.text:
		return cell{text: "one for both"}
	}
	return cell{text: "one each"}
}

// sameID says whether each client gets its own answer when both use the same id.
func (t *trial) sameID(a, b *conn) cell {
	const id = 1_000_000
	one := t.callAs(id, a, "wait", `{"tag":"one","ms":200}`)
	two := t.callAs(id, b, "wait", `{"tag":"two","ms":200}`)
	first, second := one.wait(bearable), two.wait(bearable)
	if strings.HasSuffix(first.text, "one") && strings.HasSuffix(second.text, "two") {
		return cell{text: "each gets its own answer"}
	}
	return cell{text: fmt.Sprintf("one gets %q, the other %q", first.text, second.text)}
}
