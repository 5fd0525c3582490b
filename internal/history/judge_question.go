package main

import (
	"fmt"
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
