package config

// Unsupported names what the configuration asks for and this version cannot do
// yet. It is nil, or a [Problems] with a line for each, to be refused before
// anything starts.
func (c *Config) Unsupported() error {
	var ps Problems
	refuse := func(key, what string) {
		ps = append(ps, Problem{c.File, key, what + " are not supported by this version"})
	}
	for _, u := range c.Upstreams {
		if u.URL != "" {
			refuse(u.Key+".url", "HTTP upstreams")
		}
		if u.Shared {
			refuse(u.Key+".session", "shared upstreams")
		}
	}
	for _, l := range c.Links {
		refuse(l.Key, "links")
	}
	if len(ps) == 0 {
		return nil
	}
	return ps
}
