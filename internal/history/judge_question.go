package main

import (
	"fmt"
	"slices"
	"strings"
)

// questions judges that the client was asked what its call asks, once, and that the call got its own reply.
func (j *judge) questions(r *record) {
	if len(r.asked) > 1 || len(r.asked) == 1 && r.asked[0].Text != r.op.Ask {
		j.found(3, fmt.Sprintf("%s was asked %d times, or something else than %q", r.nonce, len(r.asked), r.op.Ask), r.nonce)
	}
	for _, e := range r.replied {
		if e.Text != r.nonce || len(r.asked) == 0 || len(r.replied) > 1 {
			j.found(3, fmt.Sprintf("%s got the reply %q, or another one besides", r.nonce, e.Text), r.nonce, e.Text)
		}
	}
}

// refused reports whether the question of a call was refused before a time, for a reason. A server on pipes does not
// say whose call asks: if several clients share it, or calls of modern clients, the proxy may not know. If the proxy
// or the host ends the stream of the call, the first thing that the server reads is the error for its question.
func (j *judge) refused(r *record, at int64) bool {
	shared := strings.HasSuffix(r.op.Server, "common")
	modern := strings.HasPrefix(j.clients[r.client].kind, "modern")
	return slices.ContainsFunc(r.refused, func(e Event) bool {
		f := readFailure(e)
		unknown := f.Message == unattributed && r.op.Server != "remote" && (shared || modern)
		ended := f.Data.Reason == "connection_closed" && j.happened(e.At, "reload", "restart host", "restart proxy")
		corrupted := f.Data.Reason == "invalid_response" && j.happened(e.At, "corrupt")
		return e.At < at && (unknown || ended || corrupted)
	})
}

// crossed reports whether the question of a call crossed the cancellation of the call. If the server was told first to
// stop, the question came to a proxy that knew of no call any more that may ask it, and got an error, because each request
// gets an answer: one that says so if a modern client's call was translated, else that of a shared server, or that of a
// session that is over. If the question was refused first, since several calls may have asked it, the call went on, and
// is cancelled as any other.
func (j *judge) crossed(r *record) bool {
	c := j.clients[r.client]
	if len(r.stopped) != 1 || len(r.refused) != 1 {
		return false
	}
	first := slices.IndexFunc(j.events, func(e Event) bool {
		return e.Of == r.nonce && (e.What == Cancelled || e.What == Refused)
	})
	stoppedFirst := j.events[first].What == Cancelled
	switch message := readFailure(r.refused[0]).Message; {
	case message == callEnded && translated(c.kind, r.op.Server), message == sessionOver:
		return stoppedFirst
	case message == unattributed && (isUnattributed(r.op.Server) || translated(c.kind, r.op.Server)):
		stopped := r.stopped[0].At
		return stoppedFirst || r.cancel != nil && r.cancel.At < stopped || c.over > 0 && c.over < stopped || j.happened(stopped, endings...)
	}
	return false
}
