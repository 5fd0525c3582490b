package oauth

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// openBrowser opens a page with $BROWSER, or as the system does it. It reports whether
// there is a browser to be opened. Nobody waits for its end: it may be there for hours, and
// is the user's.
func openBrowser(page string) bool {
	for _, words := range browsers() {
		asked := false
		for i, word := range words {
			if strings.Contains(word, "%s") {
				words[i], asked = strings.ReplaceAll(word, "%s", page), true
			}
		}
		if !asked {
			words = append(words, page)
		}
		cmd := exec.Command(words[0], words[1:]...) // nothing of ours: stdout may be that of the protocol
		if cmd.Start() == nil {
			go func() { _ = cmd.Wait() }()
			return true
		}
	}
	return false
}

// browsers returns the commands to try.
func browsers() (all [][]string) {
	list := os.Getenv("BROWSER")
	if runtime.GOOS == "windows" && list != "" {
		return [][]string{{list}}
	}
	for _, one := range strings.Split(list, ":") {
		if words := strings.Fields(one); len(words) > 0 {
			all = append(all, words)
		}
	}
	switch {
	case len(all) > 0:
		return all
	case runtime.GOOS == "windows":
		return [][]string{{"rundll32", "url.dll,FileProtocolHandler"}}
	case runtime.GOOS == "darwin":
		return [][]string{{"open"}}
	case os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != "":
		return [][]string{{"xdg-open"}}
	}
	return nil
}
