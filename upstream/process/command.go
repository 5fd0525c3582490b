package process

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Command is a program that speaks MCP on its stdin and stdout. Only Path is needed.
type Command struct {
	Path string   // a file, or a name to look up in PATH
	Args []string // without the program's own name
	Dir  string   // working directory; "" means ours

	// Env is added to the environment as "NAME=value", and overrides inherited variables.
	Env []string

	// InheritEnv names variables that the process inherits besides the few that every
	// program needs; "all" means all of them. Others are not inherited, since upstreams
	// must not get the proxy's secrets.
	InheritEnv []string

	WriteTimeout time.Duration // of writing to stdin without progress; zero means 60 s
	StopGrace    time.Duration // of each step of a stop; zero means 2 s
}

func (c *Command) writeTimeout() time.Duration { return cmp.Or(c.WriteTimeout, 60*time.Second) }
func (c *Command) stopGrace() time.Duration    { return cmp.Or(c.StopGrace, 2*time.Second) }

// cmd returns the command without its files.
func (c *Command) cmd() (*exec.Cmd, error) {
	if c.Path == "" {
		return nil, errNoCommand
	}
	path, err := c.lookPath()
	if err != nil {
		return nil, err
	}
	if err := checkDir(c.Dir); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDir, err)
	}
	cmd := exec.Command(path, c.Args...)
	cmd.Args[0] = c.Path
	cmd.Dir = c.Dir
	cmd.Env = c.environ(os.Environ())
	return cmd, cmd.Err
}

// A Fault is the class of a [StartError].
type Fault byte

// The faults.
const (
	CannotRun    Fault = iota // temporary, for example too many processes or descriptors
	NoCommand                 // the command does not exist
	NoDir                     // the working directory does not exist
	NotPermitted              // the command is not executable
	NotProgram                // the file has no executable format
	NotOnPath                 // the command is only in the working directory, which is not searched
)

// faults are the texts for clients.
var faults = [...]string{
	"the command cannot be run", "command not found", "no such working directory", "permission denied", "the command is no program",
	"the command is not on the PATH, but in the working directory",
}

// A StartError is the Err of the [jsonrpc.ClosedError] that Start returns.
type StartError struct {
	Fault Fault
	err   error
}

// Error implements error.
func (e *StartError) Error() string { return e.err.Error() }

// Unwrap returns the underlying error.
func (e *StartError) Unwrap() error { return e.err }

func faultOf(err error) Fault {
	switch {
	case errors.Is(err, errNoDir):
		return NoDir
	case errors.Is(err, exec.ErrDot):
		return NotOnPath
	case errors.Is(err, errNoCommand), errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return NoCommand
	case errors.Is(err, fs.ErrPermission):
		return NotPermitted
	case errors.Is(err, syscall.ENOEXEC):
		return NotProgram
	}
	return CannotRun
}

// notStarted returns the end of a process that could not be started because of err.
func notStarted(err error) *jsonrpc.ClosedError {
	fault := faultOf(err)
	says := "did not start: " + faults[fault]
	if what, ok := errors.AsType[syscall.Errno](err); ok && fault == CannotRun {
		says += ": " + what.Error() // "too many open files"
	}
	return &jsonrpc.ClosedError{
		Cause: jsonrpc.CauseStartFailed, Event: jsonrpc.NewEvent(), Says: says, Lasting: fault != CannotRun,
		Err: &StartError{fault, err},
	}
}

var (
	errNoCommand = errors.New("no command")
	errNoDir     = errors.New("working directory")
)

// checkDir returns an error for a bad working directory, which the kernel would report as an
// error of the program.
func checkDir(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "chdir", Path: dir, Err: errors.New("not a directory")}
	}
	return err
}

// Check returns the errors of the command and of its working directory, without running it.
func (c *Command) Check() (command, dir error) {
	_, command = c.lookPath()
	return command, checkDir(c.Dir)
}

// lookPath returns the file to run. The error tells how to fix the command.
func (c *Command) lookPath() (string, error) {
	path, err := c.find()
	if err != nil {
		return "", &commandError{c.Path, err}
	}
	return path, nil
}

// A commandError is a command that does not exist or cannot be run. If Path has a whole
// command line, the text shows only the first word: the rest may have secrets.
type commandError struct {
	path string
	err  error
}

// Error implements error.
func (e *commandError) Error() string {
	words := strings.Fields(e.path)
	switch {
	case len(words) > 1:
		return fmt.Sprintf("\"%s …\" is no program: put %s alone in command, and its arguments in args (behind --, write them without quotes)", words[0], words[0])
	case errors.Is(e.err, exec.ErrNotFound):
		return fmt.Sprintf("%q is not on the server's PATH: install it, or give its whole path", e.path)
	case errors.Is(e.err, exec.ErrDot): // on Windows, or if PATH has such a folder
		return fmt.Sprintf("%q is looked for on the server's PATH, not in the working directory: write .%c%s for the one there", e.path, filepath.Separator, e.path)
	case errors.Is(e.err, fs.ErrNotExist):
		return fmt.Sprintf("%q does not exist", e.path)
	case errors.Is(e.err, fs.ErrPermission):
		return fmt.Sprintf("%q is not executable: make it so (chmod +x), or put what runs it in command and the file in args", e.path)
	case errors.Is(e.err, syscall.EISDIR):
		return fmt.Sprintf("%q is a directory", e.path)
	}
	return e.err.Error()
}

// Unwrap returns the underlying error.
func (e *commandError) Unwrap() error { return e.err }

// find looks up Path in the PATH of the process, which may be in Env.
func (c *Command) find() (string, error) {
	i := slices.IndexFunc(c.Env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=") })
	if i < 0 || filepath.Base(c.Path) != c.Path {
		return exec.LookPath(c.Path)
	}
	for _, dir := range filepath.SplitList(c.Env[i][len("PATH="):]) {
		if !filepath.IsAbs(dir) {
			continue // as in os/exec, which runs nothing from relative directories
		}
		if path, err := exec.LookPath(filepath.Join(dir, c.Path)); err == nil {
			return path, nil
		}
	}
	return "", &exec.Error{Name: c.Path, Err: exec.ErrNotFound}
}

// inherited are the variables that every upstream inherits: those for files, language,
// proxies and certificates. A trailing star matches any suffix.
var inherited = append([]string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_*", "TZ", "TMPDIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	"http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
}, inheritedHere...)

// inheritAll in InheritEnv means every variable.
const inheritAll = "all"

// environ returns the environment of the process. ours is the environment of the proxy.
func (c *Command) environ(ours []string) []string {
	all := slices.Contains(c.InheritEnv, inheritAll)
	env := make([]string, 0, len(ours)+len(c.Env))
	for _, kv := range ours {
		name, _, _ := strings.Cut(kv, "=")
		if all || listed(inherited, name) || listed(c.InheritEnv, name) {
			env = append(env, kv)
		}
	}
	return append(env, c.Env...) // for os/exec the last value of a name counts
}

func listed(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		if prefix, ok := strings.CutSuffix(n, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return sameName(n, name)
	})
}
