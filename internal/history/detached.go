package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// startDetached starts this program in a session of its own, where it does nothing for a while. dir is among
// its arguments, by which the judge finds it.
func startDetached(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "idle", dir+"/")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start what is left behind: %w", err)
	}
	return nil
}
