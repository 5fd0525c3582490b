package main

import (
	"cmp"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// Configurations in which clients prove who they are.
const (
	byToken = "by-token"
	byJWT   = "by-jwt"
	byRules = "by-rules" // with a JWT, and policies
)

// A proof is what a client of one way to be known shows.
type proof struct {
	name, base string // that it is set against; "" for none
	proxy      string // the binary
	config     string
	token      string
}

const staticToken = "a-static-token-of-an-ordinary-length"

// proofs writes what the configurations need and returns what is compared: this tree's
// proxy, and another one if there is one.
func (b programs) proofs(against string) ([]proof, error) {
	token, err := b.writeIdentity()
	if err != nil {
		return nil, err
	}
	all := []proof{
		{name: "nothing", proxy: b.proxy, config: alone},
		{name: "static token", base: "nothing", proxy: b.proxy, config: byToken, token: staticToken},
		{name: "JWT", base: "static token", proxy: b.proxy, config: byJWT, token: token},
		{name: "JWT and policies", base: "JWT", proxy: b.proxy, config: byRules, token: token},
	}
	if against != "" {
		all[0].base, all[1].base = "nothing, before", "static token, before"
		all = append(all,
			proof{name: "nothing, before", proxy: against, config: alone},
			proof{name: "static token, before", base: "nothing, before", proxy: against, config: byToken, token: staticToken})
	}
	return all, nil
}

// writeIdentity writes the configurations and the files that they name, and returns a JWT.
func (b programs) writeIdentity() (string, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", err
	}
	const issuer, audience = "https://login.example.com", "https://mcp.example.com/mcp"
	code := base64.RawURLEncoding.EncodeToString
	set := fmt.Sprintf(`{"keys":[{"kty":"RSA","use":"sig","alg":"RS256","kid":"bench","n":%q,"e":"AQAB"}]}`, code(key.N.Bytes())) // 65537
	upstream := fmt.Sprintf(`"upstreams": {"echo": {"command": %q, "era": "legacy"}}`, b.echo)
	auth := fmt.Sprintf(`"auth": {"jwt": [{"issuer": %q, "audience": %q, "jwksFile": %q}]}`, issuer, audience, b.file("keys"))
	policies := fmt.Sprintf(`"policies": [{"who": {"token": "default"}}, {"who": {"issuer": %q, "claims": {"groups": "bench"}}, "tools": {"deny": ["other__*"]}, "limits": {"inFlight": 10000}}]`, issuer)
	for path, text := range map[string]string{
		b.file("keys"):    set,
		b.file("token"):   staticToken,
		b.config(byToken): fmt.Sprintf(`{%s, "tokenFile": %q}`, upstream, b.file("token")),
		b.config(byJWT):   fmt.Sprintf(`{%s, %s}`, upstream, auth),
		b.config(byRules): fmt.Sprintf(`{%s, %s, %s, "tokenFile": %q}`, upstream, auth, policies, b.file("token")),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	claims, err := json.Marshal(map[string]any{
		"iss": issuer, "aud": audience, "sub": "1f0c62e4-8d1b-4e0e-9a8f-1f6f5d0a7c11", "exp": time.Now().Add(24 * time.Hour).Unix(),
		"iat": time.Now().Unix(), "scope": "openid profile mcp", "groups": []string{"users", "bench"}, "azp": "bench", "jti": "5b0f3f3e",
	})
	if err != nil {
		return "", err
	}
	text := code([]byte(`{"alg":"RS256","kid":"bench","typ":"at+jwt"}`)) + "." + code(claims)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	return text + "." + code(signature), err
}

func (b programs) file(name string) string { return filepath.Join(b.dir, name) }

// target is the HTTP client that shows the proof.
func (p proof) target(b programs) target {
	b.proxy = p.proxy
	return target{name: p.name, argv: b.serve(p.config), serves: true, open: func(near *process) (*conn, error) {
		addr, err := near.address()
		if err != nil {
			return nil, err
		}
		c, err := dialHTTP(addr)
		if err == nil {
			c.wire.(*httpWire).token = p.token
		}
		return c, err
	}}
}

// identity compares what it costs to know clients. All proxies run at the same time and take
// turns, a slice of a round each, so that noise hits them alike and pairs can be compared.
func identity(w io.Writer, b programs, o options) (err error) {
	proofs, err := b.proofs(o.against)
	if err != nil {
		return err
	}
	var sessions []*session
	defer func() {
		for _, s := range sessions {
			err = errors.Join(err, s.end())
		}
	}()
	for _, p := range proofs {
		s, err := p.target(b).begin(probe{})
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		sessions = append(sessions, s)
		if _, err := s.oneByOne(0, o.part); err != nil { // a while that does not count
			return s.explain(err)
		}
	}
	times, calls := make(map[string][]time.Duration), make(map[string]int)
	worked := make(map[string]time.Duration) // of the proxy's processor time
	for i, p := range proofs {
		worked[p.name] = -sessions[i].procs[0].cpu()
	}
	for round := range turns * o.rounds {
		for i := range proofs {
			at := (i + round) % len(proofs)
			took, err := sessions[at].oneByOne(0, o.part/turns)
			if err != nil {
				return sessions[at].explain(err)
			}
			times[proofs[at].name] = append(times[proofs[at].name], quantile(took, 0.5))
			calls[proofs[at].name] += len(took)
		}
	}
	for i, p := range proofs {
		worked[p.name] = (worked[p.name] + sessions[i].procs[0].cpu()) / time.Duration(max(calls[p.name], 1))
	}
	fmt.Fprintf(w, "one HTTP call at a time, medians of %d turns\n", turns*o.rounds)
	return printProofs(w, proofs, times, worked)
}

// turns is into how many turns a part of a round is cut.
const turns = 5

func printProofs(w io.Writer, proofs []proof, times map[string][]time.Duration, worked map[string]time.Duration) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "clients prove\tp50\tbase\t× base\taim\tCPU/call\t× base\t")
	same := func(d time.Duration) time.Duration { return d }
	for _, p := range proofs {
		ratio, aim, more := "", "", ""
		if p.base != "" {
			pairs := make([]float64, len(times[p.name]))
			for i, took := range times[p.name] {
				pairs[i] = over(took, times[p.base][i])
			}
			slower := middle(pairs, func(r float64) float64 { return r })
			ratio, more = fmt.Sprintf("%.3f", slower), fmt.Sprintf("%.3f", over(worked[p.name], worked[p.base]))
			if strings.HasPrefix(p.name, "JWT") || p.base == p.name+", before" {
				aim = atMost(slower, 1.03, "1.03")
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", p.name, micro(middle(times[p.name], same)), cmp.Or(p.base, "-"), ratio, aim, micro(worked[p.name]), more)
	}
	return t.Flush()
}
