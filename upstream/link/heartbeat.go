package link

import (
	"fmt"
	"time"
)

// A Heartbeat finds a peer that is gone without a word. The zero value finds it
// within 15 s.
type Heartbeat struct {
	Every time.Duration // between two beats to the other side, which answers; zero means 5 s
	Dead  time.Duration // without a single byte from it; zero means 15 s
}

func (h Heartbeat) every() time.Duration { return orElse(h.Every, 5*time.Second) }
func (h Heartbeat) dead() time.Duration  { return orElse(h.Dead, 15*time.Second) }

const (
	beatLine   = notePrefix + `:` + version + `,"beat":true}` + "\n"  // asks for an answer
	answerLine = notePrefix + `:` + version + `,"beat":false}` + "\n" // is one
)

// news returns an announcement that has not been sent yet, nil if there is none,
// and a channel that is closed when there is another.
type news func() (line []byte, changed <-chan struct{})

// live begins what goes on as long as the link: this side's beats and news, nil
// if it has none, and the watch for the other side's silence.
func (c *control) live(h Heartbeat, n news) {
	if n == nil {
		n = func() ([]byte, <-chan struct{}) { return nil, nil }
	}
	c.link.controls.Go(func() { c.beat(h.every(), n) })
	c.link.controls.Go(func() { c.link.watch(h.dead()) })
}

// beat writes beats, answers to beats and news until the link ends.
func (c *control) beat(every time.Duration, n news) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		line, changed := n()
		if line == nil {
			select {
			case <-c.link.y.CloseChan():
				return
			case <-tick.C:
				line = []byte(beatLine)
			case <-c.asks:
				line = []byte(answerLine)
			case <-changed:
				continue
			}
		}
		if c.out.WriteLines(line) != nil {
			return // the link ends of it
		}
	}
}

// ask lets a beat be answered. One answer is enough for several.
func (c *control) ask() {
	select {
	case c.asks <- struct{}{}:
	default:
	}
}

// watch ends the link when nothing has come for too long. It needs no answer to
// a beat: what comes may be anything, so that a slow peer is not a dead one.
func (l *link) watch(dead time.Duration) {
	timer := time.NewTimer(dead)
	defer timer.Stop()
	for {
		select {
		case <-l.y.CloseChan():
			return
		case <-timer.C:
		}
		silence := l.silence()
		if silence >= dead {
			l.fail(fmt.Errorf("nothing heard for %v", silence.Round(time.Millisecond)))
			return
		}
		timer.Reset(dead - silence)
	}
}
