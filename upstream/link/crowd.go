package link

import "errors"

// errTooMany is what happened when there was no room for a stream.
var errTooMany = errors.New("too many streams")

// A crowd counts streams. That there are too many is one event, and so one line in
// the log, until half of them have gone.
type crowd struct {
	open int
	full bool // somebody was refused, which the log knows
}

// enter counts one more stream if there are fewer than most, which is no bound if
// it is not positive. The first that is refused is to be told.
func (c *crowd) enter(most int) (ok, first bool) {
	if most > 0 && c.open >= most {
		first, c.full = !c.full, true
		return false, first
	}
	c.open++
	return true, false
}

func (c *crowd) leave(most int) {
	c.open--
	c.full = c.full && c.open > most/2
}
