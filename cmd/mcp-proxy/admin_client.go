package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// adminTime bounds how long a process may take to answer an operator.
const adminTime = 5 * time.Second

// adminAnswer bounds the bytes read of an answer.
const adminAnswer = 64 << 20

// adminFlags choose the process that a command asks, and how it prints the answer.
type adminFlags struct {
	at        string // --admin
	tokenFile string // the token for TCP
	json      bool
}

// add adds all flags to a command.
func (f *adminFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.at, "admin", "", "`PROCESS` to ask: unix:///path, HOST:PORT, a URL, or where several run the name or number in their list (default: the only one of this user)")
	cmd.Flags().StringVar(&f.tokenFile, "admin-token-file", "", "`FILE` with the token that the process requires over TCP")
	addJSONFlag(cmd, &f.json)
}

// client returns a client of the process that the flags choose.
func (f *adminFlags) client() (*adminClient, error) {
	token, err := tokenOf("--admin-token-file", f.tokenFile)
	if err != nil {
		return nil, err
	}
	c, err := adminAt(f.at)
	if err != nil {
		return nil, &runError{err}
	}
	c.token = token
	return c, nil
}

// tokenOf reads the token in the file of a flag; "" for no file.
func tokenOf(flag, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	token := strings.TrimSpace(string(text))
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", flag, err)
	case token == "":
		return "", fmt.Errorf("%s: %s is empty", flag, file)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }): // cannot be sent in a header
		return "", fmt.Errorf("%s: %s must have one word of visible ASCII characters", flag, file)
	}
	return token, nil
}

// An adminClient asks a running proxy or host.
type adminClient struct {
	http  *http.Client
	base  string // http://HOST:PORT
	token string // "" for none
}

// adminAt returns a client for the value of --admin: the path of a socket, with or without
// unix://, HOST:PORT, a URL, or the name or number of a process of this user. With "" there must
// be only one process.
func adminAt(where string) (*adminClient, error) {
	if !strings.ContainsAny(where, ":/."+string(filepath.Separator)) {
		found, err := socketOf(where)
		if err != nil {
			return nil, err
		}
		where = found
	}
	path, isSocket := strings.CutPrefix(where, "unix://")
	switch {
	case isSocket || strings.ContainsRune(path, filepath.Separator) && !strings.Contains(path, "://"):
		return onSocket(path), nil
	case !strings.Contains(where, "://"):
		where = "http://" + where
	}
	return newAdminClient(strings.TrimSuffix(where, "/"), &http.Transport{}), nil
}

func onSocket(path string) *adminClient {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return newAdminClient("http://localhost", &http.Transport{DialContext: dial})
}

// newAdminClient returns a client that follows no redirects: ours are none, and the token must not go elsewhere.
func newAdminClient(base string, t *http.Transport) *adminClient {
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &adminClient{http: &http.Client{Transport: t, CheckRedirect: stay}, base: base}
}

// socketOf returns the socket of a process of this user by its name or its number in the list.
// With "" there must be only one process.
func socketOf(name string) (string, error) {
	dir, err := adminDir()
	if err != nil {
		return "", fmt.Errorf("%w: say with --admin where the proxy listens for operators", err)
	}
	all := processesIn(dir)
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= len(all) {
		return all[n-1].socket, nil
	}
	if i := slices.IndexFunc(all, func(p found) bool { return p.name() == name }); i >= 0 {
		return all[i].socket, nil
	}
	switch {
	case len(all) == 0:
		return "", fmt.Errorf("no proxy or host of this user is running (no socket in %s); --admin takes another address", dir)
	case name != "":
		return "", fmt.Errorf("no process is called %s; there are\n%s", name, listOf(all))
	case len(all) > 1:
		return "", fmt.Errorf("several are running: choose one with --admin NAME, or its number\n%s", listOf(all))
	}
	return all[0].socket, nil
}

// A found is a process of this user.
type found struct {
	socket string
	is     proxy.Process // what it says about itself; zero if it does not answer
}

// name is the name of a process for --admin: serve-4711.
func (f found) name() string { return strings.TrimSuffix(filepath.Base(f.socket), ".sock") }

// processesIn returns the processes that listen in a directory, and asks them about themselves if there are
// several. The oldest is first, so that numbers stay valid when another one starts.
func processesIn(dir string) (all []found) {
	for _, path := range slices.DeleteFunc(sockets(dir), isDead) {
		all = append(all, found{socket: path})
	}
	if len(all) < 2 {
		return all
	}
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			var now proxy.Snapshot
			if onSocket(all[i].socket).getJSON(context.Background(), "/status", &now) == nil {
				all[i].is = now.Process
			}
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(a.is.Began.Compare(b.is.Began), strings.Compare(a.socket, b.socket))
	})
	return all
}

// listOf formats a table of processes.
func listOf(all []found) string {
	r := &rows{head: "#\tNAME\tCONFIGURATION\tADDRESS\tDIRECTORY\tUP"}
	for i, f := range all {
		up := ""
		if !f.is.Began.IsZero() {
			up = roughly(time.Since(f.is.Began))
		}
		r.add(i+1, f.name(), f.is.File, strings.Join(f.is.Listen, " "), f.is.Dir, up)
	}
	var table strings.Builder
	r.write(&table, 0)
	return strings.TrimSuffix(table.String(), "\n")
}

// get requests a path and returns the status and the body. An error means that there was no answer.
func (c *adminClient) get(ctx context.Context, path string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	defer c.http.CloseIdleConnections()
	resp, err := c.open(ctx, path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, adminAnswer))
	return resp.StatusCode, string(text), err
}

// getJSON requests a path and decodes the answer into a value; a [json.RawMessage] gets it as it came. Its
// error is a runError of one line.
func (c *adminClient) getJSON(ctx context.Context, path string, into any) error {
	status, body, err := c.get(ctx, path)
	switch {
	case err != nil:
		return &runError{err}
	case status != http.StatusOK:
		return &runError{c.refused(path, status, body)}
	}
	if err := json.Unmarshal([]byte(body), into); err != nil {
		return &runError{fmt.Errorf("%s did not answer as a proxy or a host does at %s: %w", c.base, path, err)}
	}
	return nil
}

// open requests a path; ctx bounds the request and the reading of the body, which the caller closes.
func (c *adminClient) open(ctx context.Context, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(r)
	if errors.Is(err, os.ErrNotExist) { // the socket
		return nil, fmt.Errorf("%w: no process listens there", err)
	}
	return resp, err
}

// A refusal is what a process of ours says with a status that is not 200.
type refusal struct {
	status int
	why    string
}

func (e *refusal) Error() string { return e.why }

// refused returns the error of an answer whose status is not 200.
func (c *adminClient) refused(path string, status int, body string) error {
	why, _, _ := strings.Cut(strings.TrimSpace(body), "\n")
	switch {
	case strings.HasPrefix(why, `{"jsonrpc"`), strings.Contains(why, "MCP clients connect to"):
		return fmt.Errorf("%s is an address for clients; that for operators is admin.listen", c.base)
	case status == http.StatusNotFound && (why == "" || why == "404 page not found"): // the text of net/http
		return fmt.Errorf("there is no %s: the process is of an older version", path)
	case status == http.StatusNotFound, status == http.StatusBadRequest && why != "":
		return &refusal{status, why}
	case status == http.StatusUnauthorized && c.token == "":
		return fmt.Errorf("%s; give it with --admin-token-file", why)
	}
	return fmt.Errorf("the process answered %d: %s", status, why)
}

// adminSocket returns the path of the socket for operators of this process, which runs a command;
// "" if there is no private directory for it. It removes sockets of processes that were killed.
func adminSocket(command string, log *slog.Logger) string {
	dir, err := adminDir()
	if err != nil {
		log.Debug("no socket for operators", "err", err)
		return ""
	}
	if err = ownDir(dir); err == nil && !holdsSockets(dir) {
		err = fmt.Errorf("the path of %s is too long for a socket", dir)
	}
	if err != nil {
		log.Info("no socket for operators: status and the like do not find this process", "err", err)
		return ""
	}
	sweep(dir)
	return filepath.Join(dir, fmt.Sprintf("%s-%d.sock", command, os.Getpid()))
}

// cacheDir returns the directory for what servers list, below the user's cache directory; "" if there is none.
func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "mcp-proxy")
}

// holdsSockets reports whether the path of a socket in dir is short enough for all systems.
func holdsSockets(dir string) bool { return len(dir)+len("/connect-4194304.sock") < 104 }

// adminDir returns the directory of the sockets of this user: mcp-proxy in the runtime directory if that can have
// sockets, else mcp-proxy-UID in the temporary one.
func adminDir() (string, error) {
	if runtime := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(runtime) { // the specification says to ignore relative ones
		dir := filepath.Join(runtime, "mcp-proxy")
		if info, err := os.Stat(runtime); err == nil && info.IsDir() && holdsSockets(dir) {
			return dir, nil
		}
	}
	uid := os.Getuid()
	if uid < 0 {
		return "", errors.New("this system has no socket for operators: set admin.listen")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("mcp-proxy-%d", uid)), nil
}

// ownDir creates a directory that only this user can access. If it exists, it must be private:
// anybody can create one in the temporary directory, and could then impersonate this process.
func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir() || info.Mode().Perm() != 0o700 || !ours(info):
		return fmt.Errorf("%s is not a private directory of this user", dir)
	}
	return nil
}

// sockets returns the paths of the sockets in a directory.
func sockets(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "*.sock")) // fails only for a bad pattern
	return found
}

// sweep removes the sockets of processes that were killed. It keeps those of the last minute: their processes may
// not listen yet.
func sweep(dir string) {
	for _, path := range sockets(dir) {
		info, err := os.Lstat(path)
		if err == nil && time.Since(info.ModTime()) > time.Minute && isDead(path) {
			_ = os.Remove(path) // another process may have removed it
		}
	}
}

// isDead reports whether no process listens at a socket any more.
func isDead(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// show requests a path of a running process, and prints the answer, or its JSON.
func show[T any](ctx context.Context, ask *adminFlags, path string, print func(*T)) error {
	c, err := ask.client()
	if err != nil {
		return err
	}
	if ask.json {
		var raw json.RawMessage
		if err := c.getJSON(ctx, path, &raw); err != nil {
			return err
		}
		return printJSON(raw)
	}
	answer := new(T)
	if err := c.getJSON(ctx, path, answer); err != nil {
		return err
	}
	print(answer)
	return stdout.printed()
}
