package oauth

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestChallengeOf(t *testing.T) {
	for _, tt := range []struct {
		headers []string
		want    challenge
	}{
		{nil, challenge{}},
		{[]string{"Basic realm=x"}, challenge{}},
		{[]string{"Bearer"}, challenge{}},
		{[]string{`Bearer resource_metadata="https://x/y", scope="a b", error="insufficient_scope"`}, challenge{"https://x/y", []string{"a", "b"}, "insufficient_scope"}},
		{[]string{"Bearer resource_metadata=https://x/y?z=1 , error = invalid_token"}, challenge{"https://x/y?z=1", nil, "invalid_token"}},
		{[]string{"Basic realm=x", `bearer scope="a a"`}, challenge{"", []string{"a"}, ""}},
		{[]string{`bearer Scope="a", SCOPE=b, error=x, error=y`}, challenge{"", []string{"a", "b"}, "x"}},
		{[]string{`Basic realm="a, Bearer error=no", Bearer error="in\"valid"`}, challenge{"", nil, `in"valid`}},
		{[]string{`Bearer error="x", Basic realm="y", error="z", scope="other"`}, challenge{"", nil, "x"}},
		{[]string{"Negotiate, Bearer error=x"}, challenge{"", nil, "x"}},
		{[]string{"Negotiate a/b+c==, Bearer error=x"}, challenge{"", nil, "x"}},
		{[]string{"Negotiate bearer error=x"}, challenge{}},
		{[]string{`,, Bearer ,realm="" ,error=x,`}, challenge{"", nil, "x"}},
		{[]string{`Bearer scope="`}, challenge{}},
		{[]string{`Bearer error=x, scope="a`, `Bearer scope=b`}, challenge{"", []string{"b"}, "x"}},
		{[]string{`Bearer scope="a"`, "Bearer " + strings.Repeat(",", 200_000) + "="}, challenge{"", []string{"a"}, ""}},
	} {
		got := challengeOf(http.Header{"Www-Authenticate": tt.headers})
		if got.Metadata != tt.want.Metadata || got.Code != tt.want.Code || !slices.Equal(got.Scopes, tt.want.Scopes) {
			t.Errorf("%q: got %+v", tt.headers, got)
		}
	}
}

// A quoted string is read without its escapes, whatever else the header has.
func FuzzChallengeOf(f *testing.F) {
	f.Add(`Basic realm="x"`, `a"b\, c=d`)
	f.Add("Negotiate dG9rZW4=", "")
	f.Fuzz(func(t *testing.T, other, text string) {
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
		got := challengeOf(http.Header{"Www-Authenticate": {"Digest realm=x, Bearer resource_metadata=" + quoted + ", error=" + quoted, other}})
		if text != "" && (got.Metadata != text || got.Code != text) || len(got.Scopes) > maxScopes {
			t.Errorf("got %+v of %q", got, quoted)
		}
	})
}
