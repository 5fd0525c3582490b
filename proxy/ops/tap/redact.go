package tap

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// redacted replaces values that look like secrets.
const redacted = `"[redacted]"`

// deepest bounds the nesting of JSON inside strings, which servers use to send objects as text.
const deepest = 3

// appendRedacted appends valid JSON to b, with redacted values of keys that look like those of secrets. It reads each
// byte once, and strings that contain JSON once more.
func appendRedacted(b, text []byte, deep int) []byte {
	for i := 0; i < len(text); {
		if text[i] != '"' {
			b = append(b, text[i])
			i++
			continue
		}
		end := endOfString(text, i)
		word := text[i:end]
		value := skipTo(text, end, ':')
		switch {
		case value < 0:
			b = appendString(b, word, deep)
		case !isSecret(word):
			b = append(b, text[i:value]...)
			end = value
		default:
			b = append(b, text[i:value]...)
			end = endOfValue(text, value)
			if v := text[value:end]; isHarmless(v) {
				b = append(b, v...)
			} else {
				b = append(b, redacted...)
			}
		}
		i = end
	}
	return b
}

// appendString appends a JSON string that is a value, redacted if it contains JSON.
func appendString(b, word []byte, deep int) []byte {
	if bytes.HasPrefix(word, []byte(`"Bearer `)) || bytes.HasPrefix(word, []byte(`"Basic `)) { // an Authorization header
		return append(b, redacted...)
	}
	if deep == 0 || len(word) < 3 || !bytes.ContainsAny(word[1:2], `{[ \`) {
		return append(b, word...)
	}
	inner, _ := jsonrpc.Unquote(word)
	if !json.Valid([]byte(inner)) {
		return append(b, word...)
	}
	return append(b, jsonrpc.Quote(string(appendRedacted(nil, []byte(inner), deep-1)))...)
}

// endOfString returns the end of the string that begins at i.
func endOfString(text []byte, i int) int {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

// skipTo returns the start of the value behind c at i, with space around c; -1 if c does not follow.
func skipTo(text []byte, i int, c byte) int {
	i = skipSpace(text, i)
	if i >= len(text) || text[i] != c {
		return -1
	}
	return skipSpace(text, i+1)
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && strings.IndexByte(" \t\r\n", text[i]) >= 0 {
		i++
	}
	return i
}

// endOfValue returns the end of the value that begins at i.
func endOfValue(text []byte, i int) int {
	for depth := 0; i < len(text); {
		switch text[i] {
		case '"':
			i = endOfString(text, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		default:
			for i++; i < len(text) && strings.IndexByte(" \t\r\n,:{}[]\"", text[i]) < 0; i++ {
			}
			if depth > 0 {
				continue
			}
		}
		if depth == 0 {
			return i
		}
	}
	return len(text)
}

// isHarmless reports whether a value cannot be a secret under any key.
func isHarmless(value []byte) bool {
	switch string(value) {
	case "null", "true", "false", `""`, "{}", "[]":
		return true
	}
	return false
}

// secretWords are parts of the keys of secrets.
var secretWords = []string{
	"password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "apikey", "accesskey", "privatekey", "authorization",
	"credential", "cookie", "bearer", "jwt", "assertion", "codeverifier", "connectionstring", "sessionid", "sshkey", "signingkey", "encryptionkey",
}

// notSecret are keys with such parts whose values are no secrets.
var notSecret = map[string]bool{"progresstoken": true, "maxtokens": true, "inputtokens": true, "outputtokens": true, "totaltokens": true}

// separators removes punctuation from keys before the comparison.
var separators = strings.NewReplacer("-", "", "_", "", ".", "", " ", "")

// isSecret reports whether the key looks like that of a secret.
func isSecret(word []byte) bool {
	key, _ := jsonrpc.Unquote(word)
	key = separators.Replace(strings.ToLower(key))
	if key == "otp" || key == "pin" || key == "auth" {
		return true
	}
	for _, w := range secretWords {
		if strings.Contains(key, w) {
			return !notSecret[key]
		}
	}
	return false
}
