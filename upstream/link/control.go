package link

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// versions are the versions of the link that this package speaks, the best first.
var versions = []int{1}

// maxVersions bounds the versions in a hello.
const maxVersions = 16

// Causes of a link's end besides those of its carrier.
var (
	errNotLink    = fault("not an mcp-proxy link")
	errLeft       = errors.New("ended by the other side")
	errHungUp     = errors.New("closed before the hello")
	errNoControl  = fault("the control stream must come first")
	errTwoControl = fault("a second control stream")
	errReplaced   = fault(jsonrpc.CauseReplaced.String())
	errFlood      = fault("too many streams")

	// errTakenOver ends a link at the host, for the cause of [errReplaced].
	errTakenOver = fmt.Errorf("another host has dialled the same link, perhaps with the same token; this one waits %v before it takes it back", replacedPause)
)

// A control is one end of a link's control stream. The proxy opens it before all others, and
// it stays open as long as the link.
type control struct {
	link *link
	y    *yamux.Stream
	in   *bufio.Reader       // owned by the reading goroutine
	out  *jsonrpc.LineWriter // used concurrently
	asks chan struct{}       // has an element if a beat must be answered; capacity 1
}

func newControl(l *link, y *yamux.Stream) *control {
	s := &stream{y: y, link: l}
	return &control{l, y, bufio.NewReader(s), jsonrpc.NewLineWriter(s), make(chan struct{}, 1)}
}

// line reads a line. One of more than limit bytes is an error.
func (c *control) line(limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := c.in.ReadSlice('\n')
		if line = append(line, part...); len(line) > limit {
			return nil, errLongAnnouncement
		}
		if err == nil {
			return line[:len(line)-1], nil
		}
		if err != bufio.ErrBufferFull {
			return nil, err
		}
	}
}

// controlHello returns {"mcp-proxy":1,"control":true,"versions":[1],"proxy":"…"}. The first
// member is the version of this line, which does not change with the versions of the link.
// The last is the proxy's id, if it has one.
func controlHello(proxy string) []byte {
	b := append(appendNote(nil, "control"), `true,"versions":[`...)
	b = append(append(b, joinInts(versions)...), ']')
	if proxy != "" {
		b = append(append(b, `,"proxy":`...), jsonrpc.Quote(proxy)...)
	}
	return append(b, "}\n"...)
}

// maxProxyID bounds the id of a proxy, in bytes.
const maxProxyID = 64

// proxyID returns the proxy's id in a hello, "" for none.
func proxyID(line []byte) string {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(line, jsonrpc.Span{}, at[:], "proxy") != nil {
		return ""
	}
	id, _ := jsonrpc.Unquote(at[0].Of(line))
	if len(id) > maxProxyID {
		return ""
	}
	return id
}

func joinInts(numbers []int) string {
	var b []byte
	for i, n := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(b)
}

// isControl reports whether a hello opens the control stream.
func isControl(line []byte) bool {
	var at [1]jsonrpc.Span
	err := jsonrpc.Find(line, jsonrpc.Span{}, at[:], "control")
	return err == nil && string(at[0].Of(line)) == "true"
}

// pickVersion returns the best version that a control hello offers and we
// speak. The error is a fault.
func pickVersion(line []byte) (int, error) {
	var at [2]jsonrpc.Span
	if !utf8.Valid(line) || jsonrpc.Find(line, jsonrpc.Span{}, at[:], "mcp-proxy", "versions") != nil {
		return 0, fault(errBadHello.Error())
	}
	if v := at[0].Of(line); string(v) != version {
		return 0, faultf("unknown version %s of the hello, the host speaks %s", shorten(string(v)), version)
	}
	elements, err := jsonrpc.Elements(at[1].Of(line))
	if err != nil || len(elements) > maxVersions {
		return 0, fault(errBadHello.Error())
	}
	var offered []string
	for _, e := range elements {
		offered = append(offered, string(e))
	}
	for _, v := range versions {
		if slices.Contains(offered, strconv.Itoa(v)) {
			return v, nil
		}
	}
	return 0, faultf("no common version of the link: the proxy speaks %s, the host %s",
		shorten(strings.Join(offered, ",")), joinInts(versions))
}

// pickedLine returns {"mcp-proxy":1,"ok":true,"version":1}.
func pickedLine(v int) []byte {
	return fmt.Appendf(appendNote(nil, "ok"), "true,\"version\":%d}\n", v)
}

// greet sends the hello of a proxy with this id and reads the answer.
func (c *control) greet(proxy string) error {
	if err := c.out.WriteLines(controlHello(proxy)); err != nil {
		return err
	}
	line, err := c.line(maxHello)
	switch {
	case err == errLongAnnouncement || err == nil && !isNote(line):
		return errNotLink
	case err != nil:
		return err
	}
	n, err := parseNote(line)
	switch {
	case err != nil:
		return errNotLink
	case n.refused != "":
		return fmt.Errorf("refused by the host: %s", n.refused)
	case !n.ok || !slices.Contains(versions, n.version):
		return faultf("the host picked version %d of the link, the proxy speaks %s", n.version, joinInts(versions))
	}
	return nil
}

// read reads lines until the end, and returns its cause. It calls announced and rejected,
// unless they are nil, with the lists that come. It ignores unknown lines, which are of a
// later version.
func (c *control) read(announced func([]Upstream), rejected func([]Rejection)) error {
	for {
		line, err := c.line(maxAnnouncement)
		if err != nil {
			return err
		}
		n, err := parseNote(line)
		switch {
		case err != nil || !isNote(line):
			return errNotLink
		case n.closed != nil && n.closed.Cause == jsonrpc.CauseReplaced:
			return fmt.Errorf("%w: %w", errLeft, errTakenOver)
		case n.closed != nil:
			return fmt.Errorf("%w: %s", errLeft, n.closed.Cause)
		case n.beat:
			c.ask()
		case n.upstreams != nil && announced != nil:
			upstreams, err := parseAnnouncement(n.upstreams)
			if err != nil {
				return err
			}
			announced(upstreams)
		case n.rejected != nil && rejected != nil:
			all, err := parseRejections(n.rejected)
			if err != nil {
				return err
			}
			rejected(all)
		}
	}
}

// bye sends the cause of the link's end to the other side, within byeTimeout.
func (c *control) bye(err error) {
	cause := errClosed.Cause
	if f, ok := errors.AsType[fault](err); ok {
		cause = jsonrpc.OtherCause(string(f))
	}
	c.y.SetWriteDeadline(time.Now().Add(byeTimeout))
	_ = c.out.WriteLines(closingLine(&jsonrpc.ClosedError{Cause: cause, Delivered: true}))
}

// refuse answers a hello with err, and ends the link when the proxy has closed it, after
// byeTimeout at the latest.
func (c *control) refuse(err error) {
	c.link.record(err)
	_ = c.out.WriteLines(refusalLine(err.Error())) // an error ends the link, too
	select {
	case <-c.link.y.CloseChan():
	case <-time.After(byeTimeout):
	}
	c.link.fail(err)
}

// end ends the link because of err, an error of c. It tells the other side, unless that has
// ended the link.
func (c *control) end(err error) {
	switch {
	case c.link.ending(): // err is a consequence
	case errors.Is(err, errLeft):
		c.link.fail(err)
	default:
		c.link.part(err, tellTimeout)
	}
}

// A Heartbeat finds a peer that is gone without closing the link. The zero value finds it
// within 15 s.
type Heartbeat struct {
	Every time.Duration // between two beats, which the other side answers; zero means 5 s
	Dead  time.Duration // without a byte from the other side until it counts as dead; zero means 15 s
}

func (h Heartbeat) every() time.Duration { return cmp.Or(h.Every, 5*time.Second) }
func (h Heartbeat) dead() time.Duration  { return cmp.Or(h.Dead, 15*time.Second) }

const (
	beatLine   = notePrefix + `:` + version + `,"beat":true}` + "\n"  // asks for an answer
	answerLine = notePrefix + `:` + version + `,"beat":false}` + "\n" // the answer
)

// live starts the goroutines that run as long as the link: one sends beats and the lines of
// b, and one watches for silence.
func (c *control) live(h Heartbeat, b *announcer) {
	c.link.controls.Go(func() { c.beat(h.every(), b) })
	c.link.controls.Go(func() { c.link.watch(h) })
}

// beat writes beats, answers to beats, and the lines of b until the link ends.
func (c *control) beat(every time.Duration, b *announcer) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for sent := []byte(nil); ; {
		line, changed := b.next(sent)
		if line != nil {
			sent = line
		} else {
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
			return // the error ends the link
		}
	}
}

// ask makes beat answer. One answer is enough for several beats.
func (c *control) ask() {
	select {
	case c.asks <- struct{}{}:
	default:
	}
}

// watch ends the link when nothing has come for too long. Any byte counts, so that a slow
// peer that does not answer a beat in time is not taken for dead.
func (l *link) watch(h Heartbeat) {
	watchdog := jsonrpc.Watchdog{Every: min(h.every(), h.dead()), Dead: h.dead()}
	timer := time.NewTimer(watchdog.Look(time.Now(), 0))
	defer timer.Stop()
	for {
		select {
		case <-l.y.CloseChan():
			return
		case <-timer.C:
		}
		silence := l.carrier.silence()
		wait := watchdog.Look(time.Now(), silence)
		if wait == 0 {
			l.fail(fmt.Errorf("no message for %v", silence.Round(time.Millisecond)))
			return
		}
		timer.Reset(wait)
	}
}

// strange returns the error of a link that ended before its hello.
func strange(err error) error {
	switch {
	case errors.Is(err, yamux.ErrInvalidVersion), errors.Is(err, yamux.ErrInvalidMsgType):
		return fmt.Errorf("%w: %w", errNotLink, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", errHungUp, err)
	}
	return err
}
