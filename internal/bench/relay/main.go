// Command relay starts a command and copies bytes between it and its own stdin
// and stdout, both ways, without a look at them: the least that a process in
// between can cost.
package main

import (
	"io"
	"os"
	"os/exec"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]...); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

func run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		relay(in, os.Stdin)
		in.Close()
	}()
	relay(os.Stdout, out)
	return cmd.Wait()
}

// relay is io.Copy without its short cuts through the kernel, which a proxy
// that reads what it carries could not take.
func relay(w io.Writer, r io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
