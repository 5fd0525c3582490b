package observe

import (
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An Event is an unexpected end of a server, of requests to one, or of a link, or a change of another replica. Its id is
// in the errors that it caused, and in its log line.
type Event struct {
	EventLine
	Era   string `json:"era,omitzero"`   // of the streams to the server
	Host  bool   `json:"host"`           // the host behind Link has seen the end, and knows more
	Error string `json:"error,omitzero"` // as in the log

	// Of the server's process, or of the session with a remote one.
	PID        int       `json:"pid,omitzero"`
	ExitStatus *int      `json:"exitStatus,omitempty"` // nil if it did not exit by itself
	Signal     string    `json:"signal,omitzero"`      // that killed it
	Began      time.Time `json:"began,omitzero"`       // when it started; of a link: when it came up; of a replica: when it joined
	Stderr     []string  `json:"stderr,omitempty"`     // its last lines
	Unusable   int       `json:"unusable,omitzero"`    // lines on its stdout that were no message

	// Of several at once.
	Streams   int      `json:"streams,omitzero"`    // that ended together
	Requests  int      `json:"requests,omitzero"`   // that failed together
	Sessions  int      `json:"sessions,omitzero"`   // that were moved, adopted, yielded or lost together
	Upstreams []string `json:"upstreams,omitempty"` // behind the link

	// The effect on clients. Lists are cut, and the rest is counted.
	Calls        []LostRequest `json:"calls,omitempty"` // in flight there, the oldest first
	CallsLeftOut int           `json:"callsLeftOut,omitzero"`
	Told         []Told        `json:"told,omitempty"` // clients that got its error
	ToldLeftOut  int           `json:"toldLeftOut,omitzero"`

	// Before and after it.
	Failures int         `json:"failures,omitzero"` // in a row, with this one
	State    string      `json:"state,omitzero"`    // of the upstream because of them: waiting or crash loop
	Next     time.Time   `json:"next,omitzero"`     // no start before; zero for any time
	Starts   int         `json:"starts,omitzero"`   // of the upstream in this process until now
	Started  time.Time   `json:"started,omitzero"`  // the last start, if it was after the event
	Before   []EventLine `json:"before,omitempty"`  // the last events of the same upstream or link, the newest first

	Trimmed bool `json:"trimmed,omitzero"` // stderr and lists were dropped to make room for newer events
}

// An EventLine is an event in a list.
type EventLine struct {
	ID       string    `json:"id"`
	Time     time.Time `json:"time"` // when it was seen
	Kind     EventKind `json:"kind"`
	Upstream string    `json:"upstream,omitzero"` // "" if a link ended
	Link     string    `json:"link,omitzero"`     // that ended, or that leads to the upstream
	Replica  string    `json:"replica,omitzero"`  // that joined, left or died, or that had or has the sessions
	Session  string    `json:"session,omitzero"`  // that the server belonged to, as in the log
	What     string    `json:"what"`              // one sentence, as in the errors
	Cause    string    `json:"cause"`             // as in the errors: "signal: killed"
	Class    string    `json:"class"`             // of the cause, as in metrics: "killed"
	InFlight int       `json:"inFlight"`          // unanswered requests, as far as they are known here
	Errors   int       `json:"errors"`            // requests of clients that got its error, also later ones
}

// An EventKind is what ended, in one word.
type EventKind string

// Kinds of events.
const (
	ServerEnded     EventKind = "ended"       // a server that had answered before
	ServerNotBegun  EventKind = "not_started" // a server that had not answered yet
	RequestsFailed  EventKind = "requests"    // a remote server did not answer requests
	LoginRefused    EventKind = "refused"     // a remote server wants other credentials, or a login
	ClientTooSlow   EventKind = "too_slow"    // a client of a shared server, which continues
	LinkEnded       EventKind = "link"
	StoppedInUse    EventKind = "stopped"     // an intended end while requests were in flight
	NotOffered      EventKind = "not_offered" // a proxy does not offer an upstream that a host announces
	ReplicaJoined   EventKind = "replica_joined"
	ReplicaLeft     EventKind = "replica_left"
	ReplicaDied     EventKind = "replica_died"
	ReplicaLost     EventKind = "replica_lost"     // the link to it was lost, or could not be made
	SessionsMoved   EventKind = "sessions_moved"   // another replica has moved sessions here
	SessionsAdopted EventKind = "sessions_adopted" // sessions were continued here, since their replica has died
	SessionsYielded EventKind = "sessions_yielded" // sessions ended here, since another replica had continued them
	SessionsLost    EventKind = "sessions_lost"    // nobody has sessions any more whose replica is gone
	HeardOf         EventKind = "heard"            // a host has the event, and only its errors were seen here
)

// A LostRequest is a request that was in flight when its server or link ended.
type LostRequest struct {
	Session string `json:"session,omitzero"` // as in the log; "" if not known here
	Client  string `json:"client,omitzero"`  // the client's name for itself; "" on a host
	Method  string `json:"method"`           // "other" if MCP does not have it
	Tool    string `json:"tool,omitzero"`    // the upstream's name for it; "" for none
	AgeMs   int64  `json:"ageMs"`            // when it was lost
}

// Told is a client that got the error of an event.
type Told struct {
	Session   string `json:"session"`
	Client    string `json:"client,omitzero"`
	Principal string `json:"principal,omitzero"`
	Errors    int    `json:"errors"` // its requests that got the error
}

// Events are a list of events. Its JSON is that of /events.
type Events struct {
	Now       time.Time   `json:"now"`
	Events    []EventLine `json:"events"`    // the newest first
	LeftOut   int         `json:"leftOut"`   // older ones that are kept but not in this list
	Forgotten int         `json:"forgotten"` // that are not kept any more
}

// EventOf returns the event of the end of an upstream. Its What is the sentence of the errors.
func EventOf(kind EventKind, upstream string, end *jsonrpc.ClosedError) Event {
	e := Event{EventLine: EventLine{
		ID: end.Event, Time: time.Now(), Kind: kind, Upstream: upstream,
		What: end.About(upstream), Cause: end.Cause.String(), Class: end.Cause.Kind.String(),
	}}
	if end.Err != nil {
		e.Error = end.Err.Error()
	}
	return e
}

// A Loss is a request that was answered with the error of an event. Texts are those of the error.
type Loss struct {
	Request
	Event  string
	Reason string        // the cause: "signal: killed"
	Class  string        // of the cause: "killed"
	What   string        // one sentence
	Sent   bool          // the server received the request, and may have run it
	Took   time.Duration // until the request was lost; zero if not known
}

// LossOf parses the error that a request was answered with. Its Request has the Upstream only. It reports false if the
// error belongs to no event.
func LossOf(err json.RawMessage) (Loss, bool) {
	said := jsonrpc.ReadErrorData(err)
	if !IsOurs(said.Reason) || !jsonrpc.IsEvent(said.Event) {
		return Loss{}, false
	}
	return Loss{
		Request: Request{Upstream: said.Upstream}, Event: said.Event, Reason: said.Cause.String(), Class: said.Cause.Kind.String(),
		What: jsonrpc.WhatOf(err), Sent: said.Phase == jsonrpc.InFlight,
	}, true
}
