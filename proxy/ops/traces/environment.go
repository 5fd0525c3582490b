package traces

import (
	"cmp"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// An Environment is the destination of traces by the variables of OpenTelemetry. The SDK reads those of the sampler, the
// resource and the batches.
type Environment struct {
	Off      bool   // no traces, whatever the configuration says
	Endpoint string // URL for POSTs of traces; "" for none

	Headers       map[string]string
	CA, Cert, Key string // paths of PEM files; "" for none
	Timeout       time.Duration
	Gzip          bool
}

// ReadEnvironment reads the variables with get. The error names an unusable variable, never its value.
func ReadEnvironment(get func(variable string) string) (Environment, error) {
	one := func(what string) string {
		return strings.TrimSpace(cmp.Or(get("OTEL_EXPORTER_OTLP_TRACES_"+what), get("OTEL_EXPORTER_OTLP_"+what)))
	}
	e := Environment{
		Off:      strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") || get("OTEL_TRACES_EXPORTER") == "none",
		Endpoint: strings.TrimSpace(get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")),
		CA:       one("CERTIFICATE"), Cert: one("CLIENT_CERTIFICATE"), Key: one("CLIENT_KEY"),
		Gzip: one("COMPRESSION") == "gzip",
	}
	if base := strings.TrimSpace(get("OTEL_EXPORTER_OTLP_ENDPOINT")); e.Endpoint == "" && base != "" {
		e.Endpoint = Below(base)
	}
	if e.Off || e.Endpoint == "" {
		return e, nil
	}
	if u, err := url.Parse(e.Endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return e, errors.New("OTEL_EXPORTER_OTLP_ENDPOINT is no http or https URL")
	}
	if p := one("PROTOCOL"); p != "" && p != "http/protobuf" {
		return e, errors.New("OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf, which collectors take at port 4318")
	}
	var err error
	if e.Timeout, err = milliseconds(one("TIMEOUT")); err != nil {
		return e, err
	}
	e.Headers, err = headersIn(one("HEADERS"))
	return e, err
}

// Below returns the URL for traces at a collector with that base URL.
func Below(base string) string { return strings.TrimRight(base, "/") + "/v1/traces" }

func milliseconds(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		return 0, errors.New("OTEL_EXPORTER_OTLP_TIMEOUT must be milliseconds, such as 10000")
	}
	return time.Duration(n) * time.Millisecond, nil
}

// headersIn reads a list such as "a=1,b=2", with values as in URLs.
func headersIn(list string) (map[string]string, error) {
	all := make(map[string]string)
	for pair := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || name == "" || err != nil || strings.ContainsAny(value, "\r\n\x00") {
			return nil, errors.New("OTEL_EXPORTER_OTLP_HEADERS must be a list such as name=value,name=value")
		}
		all[name] = value
	}
	return all, nil
}
