package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// An Event is a line of a history: what a client or the nemesis did or saw, or what a server's
// journal says.
type Event struct {
	At   int64  `json:"at"` // nanoseconds of the monotonic clock, which all processes share
	By   string `json:"by"` // a client, a server with its process ("own/812"), or "nemesis"
	What What   `json:"what"`
	Of   string `json:"of,omitempty"` // the nonce of the operation
	Text string `json:"text,omitempty"`
}

// What is the kind of an Event.
type What string

// What clients do and see. Text is given in brackets.
const (
	Join     What = "join"     // a client is about to connect [its kind]
	Sent     What = "sent"     // is about to send an operation [an operation, as JSON]
	Result   What = "result"   // got a result [the structured content]
	Failed   What = "failed"   // got an error [the error object]
	Cancel   What = "cancel"   // is about to cancel, or has done so ["sent"]
	Lost     What = "lost"     // has dropped the connection of its response, which it will not resume
	Progress What = "progress" // got progress [its number and message]
	Logged   What = "logged"   // got a log message
	Question What = "question" // was asked something [the method]
	Follows  What = "follows"  // is subscribed to the thing of a server [the server], or to changes of the list of tools ["tools"]
	Updated  What = "updated"  // got an update of the thing of a server [the server], which the operation caused, or of that list ["tools"]
	Left     What = "left"     // is about to leave [in which way]
	Gone     What = "gone"     // has left
	Broken   What = "broken"   // its connection ended, and it did not do that [the error]
	Hangs    What = "hangs"    // waits in vain [for what]; also the proxy, if it does not stop
	Odd      What = "odd"      // got what belongs to nothing that it knows
)

// What servers do.
const (
	Began     What = "began"     // a request [the tool]
	Asked     What = "asked"     // its client something
	Replied   What = "replied"   // got the reply [the nonce in it]
	Refused   What = "refused"   // got an error instead of the reply [the error]
	Effect    What = "effect"    // did what the call asks for, once
	Ended     What = "ended"     // is about to answer
	Cancelled What = "cancelled" // a request was cancelled
	Started   What = "started"

	Subscription What = "subscription" // began or ended [the method]
	Stopped      What = "stopped"      // its stdin ended
)

// What the configuration says.
const (
	Denies  What = "denies"  // to a principal what a server has [the principal, the server, and its tool or "*" for all]
	Removes What = "removes" // a server [the server; then the server and "done"]
	Adds    What = "adds"    // one that it has removed, likewise
)

// What the nemesis does.
const (
	Replicated What = "replicated" // says first that there are several proxies [how many]
	Kept       What = "kept"       // finds that a session is there, or is not, against what its key says [how]

	Fault What = "fault" // begins with a fault [what, to whom]
	Over  What = "over"  // has ended it [as there]
	Quiet What = "quiet" // has ended all [how long clients wait now]
)

func (e Event) String() string {
	return fmt.Sprintf("%12.6f  %-14s %-9s %-10s %s", float64(e.At)/1e9, e.By, e.What, e.Of, e.Text)
}

// now is the time of events: that of the machine since its start.
func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // fails for an unknown clock only
	return t.Nano()
}

// A recorder collects the events of this process. It may be used by many goroutines.
type recorder struct {
	clock func() int64 // called with mu held

	mu     sync.Mutex
	events []Event
}

func (r *recorder) add(by string, what What, of, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, Event{r.clock(), by, what, of, text})
}

// take returns the events so far.
func (r *recorder) take() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Event(nil), r.events...)
}

// drain returns the events so far, and forgets them.
func (r *recorder) drain() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.events
	r.events = nil
	return all
}

// hang says of each client that is not gone what it waits for.
func (r *recorder) hang() {
	doing := map[string]string{}
	for _, e := range r.take() {
		switch e.What {
		case Join:
			doing[e.By] = "to connect"
		case Sent:
			doing[e.By] = "for outcomes"
		case Left:
			doing[e.By] = "to leave with " + e.Text
		case Gone, Hangs:
			delete(doing, e.By)
		}
	}
	for client, what := range doing {
		r.add(client, Hangs, "", what)
	}
}

// A journal is where one server process writes down what it does.
type journal struct {
	by   string
	keep func(by string, what What, of, text string)
}

func (j *journal) add(what What, of, text string) { j.keep(j.by, what, of, text) }

// A journalFile keeps the journal of a process. Each line is one write, so that a killed process
// leaves whole lines.
type journalFile struct {
	mu   sync.Mutex
	file *os.File
}

// openJournal opens the journal of this process, whose name has its start: on a busy machine another server
// of a long history gets the same process id.
func openJournal(dir, name string) (*journal, error) {
	self := fmt.Sprintf("%d.%d", os.Getpid(), time.Now().UnixMilli()%1e6)
	f, err := os.OpenFile(filepath.Join(dir, name+"-"+self+".jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &journal{name + "/" + self, (&journalFile{file: f}).add}, nil
}

// writerOf returns the process id of the server whose journal a file is.
func writerOf(file string) string {
	pid, _, _ := strings.Cut(file[strings.LastIndexByte(file, '-')+1:], ".")
	return pid
}

func (j *journalFile) add(by string, what What, of, text string) {
	line, err := json.Marshal(Event{now(), by, what, of, text})
	if err != nil {
		panic(err) // strings only
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		fmt.Fprintln(os.Stderr, "journal:", err)
		os.Exit(1)
	}
}

// readJournals returns the events of all server processes.
func readJournals(dir string) ([]Event, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all []Event
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		for lines.Scan() {
			var e Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, e)
		}
	}
	return all, nil
}
