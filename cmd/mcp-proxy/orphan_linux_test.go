package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func init() { programs["firstprocess"] = firstProcess }

// firstProcess is the proxy as the entry point of a container, with a /proc of its own.
func firstProcess() {
	err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err == nil {
		err = syscall.Mount("proc", "/proc", "proc", 0, "")
	}
	if err != nil {
		fmt.Println("refused:", err)
		return
	}
	fmt.Println("process", os.Getpid())
	path, err := exec.LookPath("mcp-proxy")
	if err == nil {
		err = syscall.Exec(path, append([]string{"mcp-proxy"}, os.Args[1:]...), os.Environ())
	}
	fmt.Println(err)
}

// ownNamespace makes a process the first one of a new namespace.
func ownNamespace() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
}

// A server leaves orphans behind, which the first process of a container inherits. The process
// reaps them, and does not take the exit codes of its own children.
func TestFirstProcessReapsOrphans(t *testing.T) {
	t.Parallel()
	s := emptySite(t)
	const orphans = 20
	server := s.write("server", fmt.Sprintf(`#!/bin/sh
for i in $(seq %d); do (sh -c 'echo orphan >> "$ORPHANS"' &); done
exec fakeserver
`, orphans))
	os.Chmod(server, 0o700)
	died := s.write("orphans", "")
	probe := exec.Command("firstprocess", "version")
	probe.SysProcAttr = ownNamespace()
	if out, err := probe.Output(); err != nil || !strings.HasPrefix(string(out), "process 1") {
		t.Skipf("no namespace with a /proc of its own here: %v %s", err, out)
	}
	p := startProgramIn(t, ownNamespace(), []string{"ORPHANS=" + died}, "firstprocess", "stdio", "--", server)
	p.hear() // process 1
	p.say(initialize)
	p.hear()
	for i := range 3 { // each time, all are reaped at once
		eventually(t, "the end of the orphans", func() bool {
			text, _ := os.ReadFile(died)
			return strings.Count(string(text), "orphan") == (i+1)*orphans && len(children(p.cmd.Process.Pid)) == 1
		})
		p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"exit"}}`, 2*i+1))
		if got := p.hear(); !strings.Contains(got, `"cause":"exit status 3"`) {
			t.Fatal("the call that ends its server got ", got)
		}
		p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo"}}`, 2*i+2))
		for got := p.hear(); !strings.Contains(got, `"structuredContent"`); got = p.hear() {
			if strings.Contains(got, `"error"`) {
				t.Fatal("the next call got ", got)
			}
		}
	}
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("exit: %v\n%s", err, p.log)
	}
}
