package traces

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// The variables of OpenTelemetry mean what they mean elsewhere. What cannot be used is
// named, and never shown.
func TestReadEnvironment(t *testing.T) {
	type vars = map[string]string
	for _, test := range []struct {
		vars vars
		want Environment
		err  string
	}{
		{vars{}, Environment{}, ""},
		{vars{"ENDPOINT": "http://c:4318"}, Environment{Endpoint: "http://c:4318/v1/traces", Headers: vars{}}, ""},
		{vars{"ENDPOINT": "http://c/base/"}, Environment{Endpoint: "http://c/base/v1/traces", Headers: vars{}}, ""},
		{vars{"ENDPOINT": "http://c", "TRACES_ENDPOINT": "https://d/x"}, Environment{Endpoint: "https://d/x", Headers: vars{}}, ""},
		{vars{"ENDPOINT": "http://c", "HEADERS": "a=b%20c, d = e ,", "TIMEOUT": "500", "COMPRESSION": "gzip", "PROTOCOL": "http/protobuf", "CERTIFICATE": "ca", "CLIENT_CERTIFICATE": "cc", "TRACES_CLIENT_KEY": "k"},
			Environment{Endpoint: "http://c/v1/traces", Headers: vars{"a": "b c", "d": "e"}, Timeout: 500 * time.Millisecond, Gzip: true, CA: "ca", Cert: "cc", Key: "k"}, ""},
		{vars{"ENDPOINT": "collector:4317"}, Environment{}, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{vars{"ENDPOINT": "http://c", "PROTOCOL": "grpc"}, Environment{}, "OTEL_EXPORTER_OTLP_PROTOCOL"},
		{vars{"ENDPOINT": "http://c", "TIMEOUT": "10s"}, Environment{}, "OTEL_EXPORTER_OTLP_TIMEOUT"},
		{vars{"ENDPOINT": "http://c", "HEADERS": "MARK"}, Environment{}, "OTEL_EXPORTER_OTLP_HEADERS"},
		{vars{"ENDPOINT": "http://c", "HEADERS": "a=MARK%zz"}, Environment{}, "OTEL_EXPORTER_OTLP_HEADERS"},
	} {
		got, err := ReadEnvironment(func(name string) string { return test.vars[strings.TrimPrefix(name, "OTEL_EXPORTER_OTLP_")] })
		switch {
		case test.err != "" && (err == nil || !strings.HasPrefix(err.Error(), test.err) || strings.Contains(err.Error(), "MARK")):
			t.Errorf("%v: %v", test.vars, err)
		case test.err == "" && (err != nil || !reflect.DeepEqual(got, test.want)):
			t.Errorf("%v: %+v, %v", test.vars, got, err)
		}
	}
	for _, off := range []string{"OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none"} {
		name, value, _ := strings.Cut(off, "=")
		if e, err := ReadEnvironment(func(n string) string { return map[string]string{name: value, "OTEL_EXPORTER_OTLP_ENDPOINT": "://"}[n] }); !e.Off || err != nil {
			t.Errorf("%s: %+v, %v", off, e, err)
		}
	}
}
