package link

import (
	"bufio"
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

// versions are those of the link that this package speaks, the best first.
var versions = []int{1}

// maxVersions bounds what a hello may offer.
const maxVersions = 16

// Why links end, besides what happens to their carriers.
var (
	errNotLink    = fault("not an mcp-proxy link")
	errLeft       = errors.New("ended by the other side")
	errHungUp     = errors.New("closed before the hello")
	errNoControl  = fault("the control stream must come first")
	errTwoControl = fault("a second control stream")
	errReplaced   = fault(jsonrpc.CauseReplaced.String())
	errFlood      = fault("too many streams")
)

// A control is one end of a link's control stream, the first that the proxy
// opens. It stays open as long as the link.
type control struct {
	link *link
	y    *yamux.Stream
	in   *bufio.Reader       // owned by who reads
	out  *jsonrpc.LineWriter // for several
	asks chan struct{}       // has one when a beat has come that is to be answered; capacity 1
}

func newControl(l *link, y *yamux.Stream) *control {
	s := &stream{y: y, link: l}
	return &control{l, y, bufio.NewReader(s), jsonrpc.NewLineWriter(s), make(chan struct{}, 1)}
}

// line reads a line of at most limit bytes. A longer one is the end.
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

// controlHello is {"mcp-proxy":1,"control":true,"versions":[1],"proxy":"…"}. The
// first member is the version of the line itself, and stays as it is when there are
// more versions of what follows. The last is the proxy's id, if it has one.
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

// proxyID returns the id of the proxy that says a hello; "" if it does not say.
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

// greet says hello for a proxy of that id and reads the answer.
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

// A controlHandler gets what the other side says on the control stream. What is nil is ignored.
type controlHandler struct {
	announced func([]Upstream)
	rejected  func([]Rejection)
}

// read reads lines until the end, and returns its cause. What it does not know
// is of a later version, and ignored.
func (c *control) read(to controlHandler) error {
	for {
		line, err := c.line(maxAnnouncement)
		if err != nil {
			return err
		}
		n, err := parseNote(line)
		switch {
		case err != nil || !isNote(line):
			return errNotLink
		case n.closed != nil:
			return fmt.Errorf("%w: %s", errLeft, n.closed.Cause)
		case n.beat:
			c.ask()
		case n.upstreams != nil && to.announced != nil:
			upstreams, err := parseAnnouncement(n.upstreams)
			if err != nil {
				return err
			}
			to.announced(upstreams)
		case n.rejected != nil && to.rejected != nil:
			rejected, err := parseRejections(n.rejected)
			if err != nil {
				return err
			}
			to.rejected(rejected)
		}
	}
}

// bye tells the other side why the link ends, if it can be told in time.
func (c *control) bye(err error) {
	cause := errClosed.Cause
	if f, ok := errors.AsType[fault](err); ok {
		cause = jsonrpc.OtherCause(string(f))
	}
	c.y.SetWriteDeadline(time.Now().Add(byeTimeout))
	_ = c.out.WriteLines(closingLine(&jsonrpc.ClosedError{Cause: cause, Delivered: true}))
}

// refuse answers a hello with err, and ends the link when the proxy has heard it.
func (c *control) refuse(err error) {
	c.link.record(err)
	_ = c.out.WriteLines(refusalLine(err.Error())) // if that fails, so does the link
	select {
	case <-c.link.y.CloseChan():
	case <-time.After(byeTimeout):
	}
	c.link.fail(err)
}

// end ends the link because of err, from c. It tells the other side, if that is
// not what err came from.
func (c *control) end(err error) {
	switch {
	case c.link.ending(): // err is a consequence
	case errors.Is(err, errLeft):
		c.link.fail(err)
	default:
		c.link.part(err, tellTimeout)
	}
}

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

// pendingLine returns a line that has not been sent yet, nil if there is none, and a channel that
// is closed when there is another.
type pendingLine func() (line []byte, changed <-chan struct{})

// live begins what goes on as long as the link: beats and news to the other side, and
// the watch for its silence.
func (c *control) live(h Heartbeat, n pendingLine) {
	c.link.controls.Go(func() { c.beat(h.every(), n) })
	c.link.controls.Go(func() { c.link.watch(h) })
}

// beat writes beats, answers to beats and news until the link ends.
func (c *control) beat(every time.Duration, n pendingLine) {
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
		silence := l.silence()
		wait := watchdog.Look(time.Now(), silence)
		if wait == 0 {
			l.fail(fmt.Errorf("no message for %v", silence.Round(time.Millisecond)))
			return
		}
		timer.Reset(wait)
	}
}

// strange returns what it means that a link ended before anybody said hello on it.
func strange(err error) error {
	switch {
	case errors.Is(err, yamux.ErrInvalidVersion), errors.Is(err, yamux.ErrInvalidMsgType):
		return fmt.Errorf("%w: %w", errNotLink, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", errHungUp, err)
	}
	return err
}
