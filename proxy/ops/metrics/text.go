package metrics

import (
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A metric is a name and what it means.
type metric struct {
	name, help string   // help has no backslash, quote or line break
	labels     []string // in alphabetical order
	unit       string   // for OpenMetrics; "" for none
}

func describe(name, help string, labels ...string) *metric {
	return &metric{name: name, help: help, labels: labels}
}

// A family is a metric with its samples.
type family struct {
	*metric
	kind    string // "gauge", "counter", "histogram" or "summary"
	samples []sample
}

// A sample is the labels of one series, and its value now.
type sample struct {
	labels []string
	value  value
}

// A value is a number, a histogram or pauses. It appends the lines of its series.
type value interface {
	lines(b []byte, f format, name, labels string) []byte
}

type number float64

func (n number) lines(b []byte, f format, name, labels string) []byte {
	return line(b, name, labels, f.float(float64(n)))
}

// An out collects families by name.
type out map[string]*family

func (o out) add(m *metric, kind string, v value, labels ...string) {
	f := o[m.name]
	if f == nil {
		f = &family{metric: m, kind: kind}
		o[m.name] = f
	}
	f.samples = append(f.samples, sample{labels, v})
}

func (o out) gauge(m *metric, value float64, labels ...string) {
	o.add(m, "gauge", number(value), labels...)
}

func (o out) counter(m *metric, value float64, labels ...string) {
	o.add(m, "counter", number(value), labels...)
}

// writeTo writes all families by name, and their samples by labels.
func (o out) writeTo(w io.Writer, f format) {
	for _, name := range slices.Sorted(maps.Keys(o)) {
		of := o[name]
		slices.SortFunc(of.samples, func(a, b sample) int { return slices.Compare(a.labels, b.labels) })
		b := of.head(nil, f)
		for _, s := range of.samples {
			b = s.value.lines(b, f, name, of.braced(s.labels))
			w.Write(b)
			b = b[:0]
		}
	}
	if f == openMetrics {
		w.Write([]byte("# EOF\n"))
	}
}

// head appends the lines before the samples.
func (m *family) head(b []byte, f format) []byte {
	name := m.name
	if f == openMetrics && m.kind == "counter" {
		name = strings.TrimSuffix(name, "_total")
	}
	b = append(b, "# HELP "+name+" "+m.help+"\n# TYPE "+name+" "+m.kind+"\n"...)
	if f == openMetrics && m.unit != "" {
		b = append(b, "# UNIT "+name+" "+m.unit+"\n"...)
	}
	return b
}

var escaped = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// braced returns labels as between braces, with the replacement character for invalid UTF-8, which Prometheus refuses.
func (m *metric) braced(values []string) string {
	var b strings.Builder
	for i, label := range m.labels {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(label + `="` + escaped.Replace(strings.ToValidUTF8(values[i], "\uFFFD")) + `"`)
	}
	return b.String()
}

// A format is how a scraper reads metrics: what Prometheus calls text, version 0.0.4, or OpenMetrics 1.0, which has
// exemplars. Both are as its client for Go writes them.
type format int

const (
	plainText format = iota
	openMetrics
)

// float returns a number, in OpenMetrics with a point.
func (f format) float(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if f == openMetrics && strings.Trim(s, "-0123456789") == "" {
		s += ".0"
	}
	return s
}

// count returns a number of observations, which has no point.
func (f format) count(n uint64) string {
	if f == openMetrics {
		return strconv.FormatUint(n, 10)
	}
	return f.float(float64(n))
}

func line(b []byte, name, labels, value string) []byte {
	b = append(b, name...)
	if labels != "" {
		b = append(b, "{"+labels+"}"...)
	}
	return append(b, " "+value+"\n"...)
}
