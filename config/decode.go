package config

import "github.com/spf13/viper"

// Decoder makes the loader viper's codec for every format.
func (l *loader) Decoder(format string) (viper.Decoder, error) {
	return decoder{l, format}, nil
}

// A decoder reads one file into the loader.
type decoder struct {
	*loader
	format string
}

// Decode gives viper the top-level settings, typed, and keeps all else, whose
// keys viper would lower-case. Mistakes within the file go to the problems; an
// error is a file that could not be parsed at all.
func (d decoder) Decode(data []byte, top map[string]any) error {
	root, err := parse(d.format, data)
	if err != nil {
		return err
	}
	dropDuplicates(root, "", func(key string) { d.fail(d.source, key, "duplicate key") })

	known := fields{
		"limits":     d.readLimits,
		"upstreams":  d.readUpstreams,
		"mcpServers": d.readServers,
		"links":      d.readLinks,
	}
	for _, s := range settings {
		known[s.key] = func(v value) {
			if typed, ok := s.file(v); ok {
				top[s.key] = typed
			}
		}
	}
	file := value{&d.reader, root, ""}
	if !root.has("mcpServers") {
		file.strict(known)
		return nil
	}
	// The file of another program, which keeps its own settings beside them.
	file.object(known, func(key string, v value) {
		if !v.misspelt(key, known) {
			v.warn(v.source, v.key, "unknown key, ignored%s", DidYouMean(key, known.keys()))
		}
	})
	return nil
}

func (l *loader) readLimits(v value) {
	v.strict(fields{
		"message":  into(&l.limits.Message, size.read),
		"depth":    into(&l.limits.Depth, levels.read),
		"inFlight": into(&l.limits.InFlight, positive.read),
		"sessions": into(&l.limits.Sessions, positive.read),
	})
}
