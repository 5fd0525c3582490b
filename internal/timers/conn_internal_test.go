package timers

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A socket notes when it hears that its deadlines have passed, or have not.
type socket struct {
	began time.Time
	heard []string
}

func (s *socket) SetReadDeadline(t time.Time) error  { return s.note("read", t) }
func (s *socket) SetWriteDeadline(t time.Time) error { return s.note("write", t) }

func (s *socket) note(which string, t time.Time) error {
	what := "passed"
	if t.IsZero() {
		what = "none"
	}
	s.heard = append(s.heard, fmt.Sprint(time.Since(s.began).Seconds(), " ", which, " ", what))
	return nil
}

// The socket hears only of deadlines that have passed, whichever way they were moved before.
func TestDeadlineMoves(t *testing.T) {
	for _, test := range []struct {
		name  string
		moves []move
		want  []string
	}{
		{"passes once", []move{{0, reading, 3}}, []string{"3 read passed"}},
		{"each request moves it later", []move{{0, reading, 3}, {1, reading, 4}, {2, reading, 5}, {3, reading, 6}}, []string{"6 read passed"}},
		{"earlier", []move{{0, reading, 9}, {1, reading, 3}}, []string{"3 read passed"}},
		{"removed", []move{{0, reading, 3}, {2, reading, never}}, nil},
		{"removed and set again, while the timer of the first runs", []move{{0, reading, 3}, {1, reading, never}, {2, reading, 5}}, []string{"5 read passed"}},
		{"in the past", []move{{4, writing, 1}}, []string{"4 write passed"}},
		{"in the past, then removed", []move{{4, writing, 1}, {5, writing, never}}, []string{"4 write passed", "5 write none"}},
		{"in the past, then later, beside a timer", []move{{0, writing, 9}, {4, writing, 1}, {5, writing, 9}}, []string{"4 write passed", "5 write none", "9 write passed"}},
		{"later when it has passed", []move{{0, reading, 3}, {4, reading, 8}}, []string{"3 read passed", "4 read none", "8 read passed"}},
		{"both", []move{{0, reading, 9}, {1, writing, 3}, {2, reading, 7}}, []string{"3 write passed", "7 read passed"}},
		{"the later one, when the first was removed", []move{{0, reading, 3}, {1, writing, 7}, {2, reading, never}}, []string{"7 write passed"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &socket{began: time.Now()}
				d := deadlines{socket: s}
				for _, m := range test.moves {
					time.Sleep(time.Until(s.began.Add(m.when * time.Second)))
					synctest.Wait()
					to := time.Time{}
					if m.to != never {
						to = s.began.Add(m.to * time.Second)
					}
					if err := d.move(to, m.which); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if !slices.Equal(s.heard, test.want) {
					t.Errorf("heard %q, want %q", s.heard, test.want)
				}
				d.end()
				if err := d.move(time.Now(), reading); err == nil {
					t.Error("a closed connection took a deadline")
				}
			})
		})
	}
}

// A move sets a deadline when that many seconds have passed to a second, or removes it.
type move struct {
	when  time.Duration
	which int
	to    time.Duration
}

const never = -1
