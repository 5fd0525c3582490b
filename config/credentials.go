package config

import (
	"slices"
	"strings"
)

// auth reads how we prove who we are.
func (v value) auth() (a UpstreamAuth, ok bool) {
	v.strict(fields{
		"oauth":             into(&a.OAuth, value.oauth),
		"clientCredentials": into(&a.ClientCredentials, value.clientCredentials),
	})
	if v.node.kind&(null|object) != 0 && v.node.has("oauth") == v.node.has("clientCredentials") {
		v.wrong("needs either oauth or clientCredentials")
	}
	return a, true
}

func (o *OAuth) fields() fields {
	return fields{
		"clientId":         into(&o.ClientID, str.read),
		"clientSecretFile": into(&o.ClientSecretFile, value.path),
		"scopes":           into(&o.Scopes, value.asked),
	}
}

func (v value) oauth() (*OAuth, bool) {
	var o OAuth
	v.strict(o.fields())
	switch {
	case o.ClientSecretFile == "":
	case o.ClientID == "":
		v.wrong("clientSecretFile needs clientId")
	case strings.HasPrefix(o.ClientID, "https://"): // its document is public
		v.wrong("clientSecretFile has no meaning with a clientId that is a URL")
	}
	return &o, true
}

func (v value) clientCredentials() (*ClientCredentials, bool) {
	var c ClientCredentials
	v.strict(fields{
		"clientId":         into(&c.ClientID, str.read),
		"clientSecretFile": into(&c.ClientSecretFile, value.path),
		"privateKeyFile":   into(&c.PrivateKeyFile, value.path),
		"assertionFile":    into(&c.AssertionFile, value.path),
		"tokenURL":         into(&c.TokenURL, value.otherURL),
		"scopes":           into(&c.Scopes, value.asked),
	})
	if v.node.kind&(null|object) == 0 {
		return &c, false
	}
	files := slices.DeleteFunc([]string{c.ClientSecretFile, c.PrivateKeyFile, c.AssertionFile}, func(s string) bool { return s == "" })
	if len(files) != 1 {
		v.wrong("needs one of clientSecretFile, privateKeyFile and assertionFile")
	}
	if c.ClientID == "" && c.AssertionFile == "" { // which says itself who we are
		v.wrong("needs clientId")
	}
	return &c, true
}

// otherURL is a URL of an authorization server that is discovered if it is empty.
func (v value) otherURL() (string, bool) {
	if v.node.kind == text && v.node.text == "" {
		return "", true
	}
	return secureURL.read(v)
}

// asked are the scopes to ask for: nil for those that the server names, as without the key.
func (v value) asked() ([]string, bool) {
	scopes, ok := scope.list(v)
	if len(scopes) == 0 {
		scopes = nil
	}
	return scopes, ok
}

// oneCredential checks that only one thing sets the header Authorization.
func (v value) oneCredential() {
	if !v.node.has("auth") && !v.node.has("oauth") {
		return
	}
	for _, key := range []string{"headers", "headersFrom"} {
		v.pick(key, func(v value) {
			for _, m := range v.node.members {
				if strings.EqualFold(m.key, "Authorization") {
					v.fail(v.source, join(v.key, m.key), "excludes auth, which sets that header")
				}
			}
		})
	}
}
