package oauth

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// fetching returns tokens that call fetch.
func fetching(t *testing.T, fetch func(ctx context.Context) (*token, error)) *tokens {
	ts := newTokens(slog.New(slog.DiscardHandler), fetch)
	t.Cleanup(ts.close)
	return ts
}

// A request does not wait for ever for an authorization server.
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

// A token is renewed after 80 to 90 % of its life, at a random time, and requests do not wait for that.
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

// A failing authorization server is asked less and less often. A valid token stays in use; after that requests fail with
// the reason.
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

// Absurd lifetimes are bounded.
func TestLifetimes(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: defaultLifetime, -time.Hour: minLifetime, time.Nanosecond: minLifetime, time.Hour: time.Hour, 1 << 62: maxLifetime} {
		if a := newProgramToken("x", nil, given); a.Expires.Sub(a.Granted) != want || a.renewAt.After(a.Expires) {
			t.Errorf("%v: %v", given, a.Expires.Sub(a.Granted))
		}
	}
}
