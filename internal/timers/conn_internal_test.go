package timers

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The socket hears only of deadlines that have passed, whichever way the deadline was moved before.
func TestDeadlineMoves(t *testing.T) {
	for _, test := range []struct {
		name  string
		moves []move
		want  []string
	}{
		{"passes once", []move{{0, 3}}, []string{"3 passed"}},
		{"each request moves it later", []move{{0, 3}, {1, 4}, {2, 5}, {3, 6}}, []string{"6 passed"}},
		{"earlier", []move{{0, 9}, {1, 3}}, []string{"3 passed"}},
		{"removed", []move{{0, 3}, {2, never}}, nil},
		{"removed and set again, while the timer of the first runs", []move{{0, 3}, {1, never}, {2, 5}}, []string{"5 passed"}},
		{"in the past", []move{{4, 1}}, []string{"4 passed"}},
		{"in the past, then removed", []move{{4, 1}, {5, never}}, []string{"4 passed", "5 none"}},
		{"in the past, then later, beside a timer", []move{{0, 9}, {4, 1}, {5, 9}}, []string{"4 passed", "5 none", "9 passed"}},
		{"later when it has passed", []move{{0, 3}, {4, 8}}, []string{"3 passed", "4 none", "8 passed"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []string
				began := time.Now()
				d := deadline{set: func(at time.Time) error {
					what := "none"
					if !at.IsZero() {
						what = "passed"
					}
					got = append(got, fmt.Sprint(time.Since(began).Seconds(), " ", what))
					return nil
				}}
				for _, m := range test.moves {
					time.Sleep(time.Until(began.Add(m.when * time.Second)))
					synctest.Wait()
					to := time.Time{}
					if m.to != never {
						to = began.Add(m.to * time.Second)
					}
					d.move(to)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if !slices.Equal(got, test.want) {
					t.Errorf("got %q, want %q", got, test.want)
				}
				d.end()
				if err := d.move(time.Now()); err == nil {
					t.Error("a closed connection took a deadline")
				}
			})
		})
	}
}

// A move sets the deadline when that many seconds have passed to a second, or removes it.
type move struct{ when, to time.Duration }

const never = -1
