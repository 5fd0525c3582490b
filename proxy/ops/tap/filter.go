package tap

import (
	"github.com/mcp-proxy/mcp-proxy/internal/glob"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A Filter chooses lines. Names are globs; "" is any.
type Filter struct {
	Session  string
	Upstream string // on its side; on that of clients there are only errors about one
	Client   string
	Method   string
	Tool     string
	Errors   bool // nothing but responses that are no success
}

// Check returns what is wrong with a glob of the filter; nil if nothing is.
func (f *Filter) Check() error {
	for _, g := range []string{f.Session, f.Upstream, f.Client, f.Method, f.Tool} {
		if err := glob.Check(g); err != nil {
			return err
		}
	}
	return nil
}

// at reports whether something at a Point may be wanted.
func (f *Filter) at(p *observe.Point) bool {
	return fits(f.Session, p.Session) && (p.Upstream == "" || fits(f.Upstream, p.Upstream))
}

func (f *Filter) wants(l *line) bool {
	return (!f.Errors || l.err != nil) && f.at(l.from.at) && fits(f.Upstream, l.about()) &&
		fits(f.Client, l.from.client) && fits(f.Method, l.method) && fits(f.Tool, l.tool)
}

func fits(g, name string) bool {
	if g == "" {
		return true
	}
	_, ok := glob.First([]string{g}, name)
	return ok
}
