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
		"tokenURL":         into(&c.TokenURL, value.tokenURL),
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

// tokenURL may be empty: then it is discovered.
func (v value) tokenURL() (string, bool) {
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

// foreignAuth reads auth of mcpServers: ours, or a client that is known beforehand, as
// other programs write it.
func (u *Upstream) foreignAuth(v value) {
	if v.node.has("oauth") || v.node.has("clientCredentials") {
		into(&u.Auth, value.auth)(v)
		return
	}
	u.foreignOAuth(v)
}

// foreignOAuth reads a client as other programs write it under oauth or auth. Scopes
// count, since without them we would ask for more. A secret that is in the file itself is
// ignored, with a warning.
func (u *Upstream) foreignOAuth(v value) {
	if u.Auth != (UpstreamAuth{}) {
		v.wrong("is there twice, as auth and as oauth")
		return
	}
	var o OAuth
	on := true
	switch v.node.kind {
	case boolean:
		into(&on, truth.read)(v)
	case text:
		if v.node.text != "oauth" {
			v.wrong(`must be a map or "oauth": a token goes into headers, as Authorization: "Bearer …"`)
		}
	default:
		known := o.fields()
		known["CLIENT_ID"] = known["clientId"]
		known["scopes"] = into(&o.Scopes, value.foreignScopes)
		known["enabled"] = into(&on, truth.read)
		v.object(known, func(key string, v value) { v.ignore(key, known) })
	}
	if on {
		u.Auth.OAuth = &o
	}
}

// foreignScopes takes one text with spaces too.
func (v value) foreignScopes() ([]string, bool) {
	if v.node.kind != text {
		return v.asked()
	}
	s, ok := str.read(v)
	scopes := strings.Fields(s)
	if ok && slices.ContainsFunc(scopes, func(s string) bool { _, fit := scope.parse(s); return !fit }) {
		v.wrong("must be scopes with spaces between them")
		return nil, false
	}
	return slices.Clip(scopes), ok
}
