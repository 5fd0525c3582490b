package config

import "testing"

func TestHostLink(t *testing.T) {
	pair := TLS{Cert: "c.pem", Key: "k.pem"}
	mutual := TLS{CA: "ca.pem", Cert: "c.pem", Key: "k.pem"}
	const (
		readable = " can be read by other machines: listen on "
		changed  = " to another machine can be read and changed on the way: dial "
	)
	for name, c := range map[string]struct {
		link HostLink
		want string // error lines; none if it is valid
	}{
		"a socket":                  {HostLink{Listen: "unix:///run/a"}, ""},
		"loopback":                  {HostLink{Listen: "tcp://127.0.0.1:0"}, ""},
		"loopback, ws":              {HostLink{Listen: "ws://[::1]:7000/link", TokenFile: "t"}, ""},
		"tls for those with a cert": {HostLink{Listen: "tls://:7000", TLS: mutual}, ""},
		"wss and a token":           {HostLink{Listen: "wss://0.0.0.0:7000", TLS: pair, TokenFile: "t"}, ""},
		"open to all":               {HostLink{Listen: "tcp://:7000", Insecure: true}, ""},
		"tls, open to all":          {HostLink{Listen: "tls://:7000", TLS: pair, Insecure: true}, ""},
		"out by wss":                {HostLink{Dial: "wss://proxy.example.com/link", TokenFile: "t", TLS: TLS{CA: "ca.pem"}}, ""},
		"out by tls":                {HostLink{Dial: "tls://proxy.example.com:1", TLS: mutual}, ""},
		"out to this machine":       {HostLink{Dial: "ws://localhost:8080/link", TokenFile: "t"}, ""},
		"out, insecure":             {HostLink{Dial: "ws://proxy.example.com/link", Insecure: true}, ""},

		"neither":        {HostLink{}, "--listen: either --listen or --dial is needed"},
		"both":           {HostLink{Listen: "unix:///a", Dial: "unix:///b"}, "--dial: excludes --listen"},
		"an address":     {HostLink{Listen: "127.0.0.1:80"}, "--listen: must be unix:///path, or a tcp, tls, ws or wss URL with a port"},
		"no port":        {HostLink{Listen: "ws://localhost/link"}, "--listen: must be unix:///path, or a tcp, tls, ws or wss URL with a port"},
		"http":           {HostLink{Dial: "http://localhost:1/link"}, "--dial: must be " + rules["dialURL"].what},
		"a password":     {HostLink{Dial: "wss://me:hidden@a/link"}, "--dial: must be " + rules["dialURL"].what},
		"tcp beyond":     {HostLink{Listen: "tcp://10.0.0.1:1"}, "--listen: messages on tcp" + readable + "tls, or give --insecure"},
		"ws and a token": {HostLink{Listen: "ws://:1", TokenFile: "t"}, "--listen: messages on ws" + readable + "wss, or give --insecure"},
		"anybody, wss":   {HostLink{Listen: "wss://:1", TLS: pair}, "--listen: is reachable from other machines: give --token-file, --tls-ca or --insecure"},
		"anybody, tls":   {HostLink{Listen: "tls://:1", TLS: pair}, "--listen: is reachable from other machines: give --tls-ca or --insecure"},
		"no certificate": {HostLink{Listen: "tls://localhost:1", TLS: TLS{CA: "ca.pem", Key: "k.pem"}}, "--listen: tls needs --tls-cert and --tls-key"},
		"half a pair":    {HostLink{Dial: "tls://a:1", TLS: TLS{Cert: "c.pem"}}, "--tls-cert: needs --tls-key, and the other way round"},
		"going back":     {HostLink{Listen: "unix:///a", Heartbeat: -1}, "--heartbeat: must not be negative"},
		"out by tcp":     {HostLink{Dial: "tcp://a:1"}, "--dial: tcp" + changed + "tls, or give --insecure"},
		"out by ws":      {HostLink{Dial: "ws://a", TokenFile: "t"}, "--dial: ws" + changed + "wss, or give --insecure"},
		"unverified":     {HostLink{Dial: "wss://a", Insecure: true}, "--insecure: is not valid with a dialled wss URL; certificates are always verified"},
		"all at once": {
			HostLink{Dial: "tcp://a:1", TokenFile: "t", TLS: TLS{Cert: "c.pem"}},
			"--tls-cert: needs --tls-key, and the other way round\n--token-file: is only valid with ws and wss\n" +
				"--tls-ca, --tls-cert, --tls-key: are only valid with tls and wss\n--dial: tcp" + changed + "tls, or give --insecure",
		},
	} {
		got := ""
		if err := c.link.Check(); err != nil {
			got = err.(Problems).Error()
		}
		if got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want)
		}
	}
}
