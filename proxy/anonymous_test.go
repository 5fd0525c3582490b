package proxy

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Of thousands of lines of one kind there are a few, and how many more there were. Lines of
// another kind do not suffer, and neither does what others log.
func TestStrangersLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text lockedBuffer
		log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		s := newAnonymousLog(log)
		read := 0
		news := func() string { return text.String()[read:] }
		lines := func(part string) int { synctest.Wait(); return strings.Count(news(), part) }
		errors := s.httpErrors()
		for i := range 2000 {
			s.log.With("peer", i).Warn("link refused", "err", "x")
			errors.Printf("http: TLS handshake error from 10.0.0.1:%d: EOF", i)
		}
		s.log.Info("another")
		if lines("link refused") != anonymousBurst || lines("TLS handshake error") != anonymousBurst || lines("another") != 1 {
			t.Error(news())
		}
		time.Sleep(anonymousEvery)
		if lines(fmt.Sprintf(`level=WARN msg="link refused: … and more" left_out=%d`, 2000-anonymousBurst)) != 1 ||
			lines(fmt.Sprintf(`level=DEBUG msg="HTTP connection failed: … and more" left_out=%d`, 2000-anonymousBurst)) != 1 {
			t.Error(news())
		}
		read = len(text.String())
		time.Sleep(time.Hour)
		if news() != "" {
			t.Error("it goes on to count:", news())
		}
		for range 100 {
			s.log.Warn("link refused")
		}
		s.end()
		s.log.Warn("link refused")
		if lines("link refused") != anonymousBurst+2 || lines(fmt.Sprint("left_out=", 100-anonymousBurst)) != 1 {
			t.Error("at the end:", news())
		}
		read = len(text.String())
		time.Sleep(time.Hour)
		if news() != "" {
			t.Error("after the end:", news())
		}
	})
}
