package proxy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A configured directory that cannot be used is worth a warning, the default one is not.
func TestCacheDirThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for warned, test := range map[int]struct{ configured, usual string }{1: {configured: file + "/below"}, 0: {usual: file + "/below"}} {
		log := &journal{}
		p, err := proxy.New(&config.Config{CacheDir: test.configured}, proxy.Options{CacheDir: test.usual, Log: logTo(log)})
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		if n := strings.Count(log.String(), "level=WARN"); n != warned || strings.Contains(log.String(), file) {
			t.Errorf("%+v: %s", test, log)
		}
	}
}
