package oauth

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// fetching returns tokens that call fetch, whose time is that of a bubble.
func fetching(t *testing.T, fetch func(ctx context.Context) (*token, error)) *tokens {
	ts := newTokens(slog.New(slog.DiscardHandler), fetch)
	t.Cleanup(ts.close)
	return ts
}

// An authorization server that does not answer makes nobody wait for ever.
func TestFetchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := fetching(t, func(ctx context.Context) (*token, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		began := time.Now()
		if _, err := ts.get(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != fetchTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A token is renewed when four fifths to nine tenths of its life are over, at no fixed
// time, and nobody waits for that.
func TestEarlyRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches := 0
		open := make(chan struct{}, 1)
		open <- struct{}{}
		ts := fetching(t, func(context.Context) (*token, error) {
			<-open
			fetches++
			return newProgramToken("x", nil, 100*time.Second), nil
		})
		first, err := ts.get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		early := first.renewAt.Sub(first.Granted)
		if early < 80*time.Second || early > 90*time.Second || time.Until(newProgramToken("x", nil, 100*time.Second).renewAt) == early {
			t.Errorf("the refresh is after %v", early)
		}
		time.Sleep(early + time.Nanosecond)
		for range 10 {
			if got, err := ts.get(t.Context()); got != first || err != nil {
				t.Errorf("got %v, %v", got, err)
			}
		}
		open <- struct{}{}
		synctest.Wait()
		if got, err := ts.get(t.Context()); got == first || err != nil || fetches != 2 {
			t.Errorf("got %v, %v after %d fetches", got, err, fetches)
		}
	})
}

// An authorization server that fails is asked less and less often. Meanwhile a token is in
// use while it is good, and then all hear why there is none.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		fetches := 0
		ts := fetching(t, func(context.Context) (*token, error) {
			if fetches++; fetches > 1 {
				return nil, broken
			}
			return newProgramToken("x", nil, 10*time.Minute), nil
		})
		first, _ := ts.get(t.Context())
		for ; time.Now().Before(first.Expires); time.Sleep(100 * time.Millisecond) {
			if got, err := ts.get(t.Context()); got != first || err != nil {
				t.Fatalf("got %v, %v", got, err)
			}
		}
		for range 6000 {
			if _, err := ts.get(t.Context()); err != broken {
				t.Fatalf("got %v", err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if fetches < 20 || fetches > 80 { // in up to twelve minutes
			t.Errorf("%d fetches", fetches)
		}
	})
}

// Lifetimes that make no sense are made to.
func TestLifetimes(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: defaultLifetime, -time.Hour: minLifetime, time.Nanosecond: minLifetime, time.Hour: time.Hour, 1 << 62: maxLifetime} {
		if a := newProgramToken("x", nil, given); a.Expires.Sub(a.Granted) != want || a.renewAt.After(a.Expires) {
			t.Errorf("%v: %v", given, a.Expires.Sub(a.Granted))
		}
	}
}
