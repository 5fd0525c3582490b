package main

import (
	"fmt"
	"slices"
	"time"
)

// updates judges that the clients that follow a resource get its updates, and no others. Of updates that come one
// after the other a client may get the last one alone.
func (j *judge) updates(r *record) {
	for _, e := range r.updated {
		if e.Text != r.op.Server || r.op.Do != "touch" || !slices.Contains(followed, e.Text) {
			j.found(3, fmt.Sprintf("%s got an update of %s because of %s", e.By, e.Text, r.nonce), r.nonce, e.By)
		}
	}
	if r.op.Do != "touch" || len(r.effects) == 0 || len(r.outcomes) == 0 || r.outcomes[0].What != Result || j.died(r.op.Server, r.sent) {
		return
	}
	for name, c := range j.clients {
		since, follows := c.follows[r.op.Server]
		stays := c.over == 0 || c.over > r.outcomes[0].At+int64(time.Second)
		if follows && since < r.sent && stays && c.updated[r.op.Server] < r.effects[0].At {
			j.found(5, fmt.Sprintf("%s got no update of %s because of %s", name, r.op.Server, r.nonce), r.nonce, name)
		}
	}
}
