package proxy

import (
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// Advice is what to do about an upstream that failed, in one sentence.
func (t *Trial) Advice() string {
	if start, ok := errors.AsType[*process.StartError](t.err); ok {
		return advice[start.Fault]
	}
	if do := causeAdvice[t.Cause]; do != "" {
		return do
	}
	switch class := jsonrpc.ClassOf(t.Cause); {
	case class == jsonrpc.ClassUnreachable, class == jsonrpc.ClassBroken && t.Transport != "stdio":
		return "start it, and compare host and port of its url"
	case class == jsonrpc.ClassTimeout:
		return tooLate
	case t.Transport == "stdio":
		return "run its command by hand and see: it may lack arguments, env or inheritEnv"
	case t.Transport == "link":
		return "run mcp-proxy doctor where its host runs, with the configuration of that"
	}
	return "run mcp-proxy doctor --log-level debug and see"
}

// advice are for commands that were not started.
var advice = map[process.Fault]string{
	process.CannotRun:    "see whether the machine has processes, memory and descriptors left",
	process.NoCommand:    mendCommand,
	process.NotPermitted: mendCommand,
	process.NotProgram:   "put what runs it in command (sh, python3), and the file in args",
	process.NoDir:        "mend cwd",
	process.NotOnPath:    "write its name with ./ before it",
}

const (
	mendCommand    = "mend command (see mcp-proxy check), and install what it names"
	giveCredential = "give it the credentials that it wants: headersFrom, or auth"
	comparePath    = "compare the path of its url with its documentation: most end in /mcp"
	tooLate        = "run its command by hand once: it may wait for an answer or download itself; else raise startTimeout"
)

// causeAdvice are for what one cause says by itself.
var causeAdvice = map[string]string{
	jsonrpc.CauseLogin:         "run the command that it names, once",
	jsonrpc.CauseStartTimeout:  tooLate,
	jsonrpc.CauseTLS:           "set tls.ca if its certificate is of an authority of your own",
	jsonrpc.CauseBadHeaderFile: "mend the file that headersFrom names; mcp-proxy check finds the same",
	jsonrpc.CauseNoToken:       "mend auth: its authorization server says why in the log",
	jsonrpc.HTTPCause(401):     giveCredential,
	jsonrpc.HTTPCause(403):     giveCredential,
	jsonrpc.HTTPCause(404):     comparePath,
	jsonrpc.HTTPCause(405):     comparePath,
}
