package process

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// inheritedHere are variables without which processes do not start on Windows.
var inheritedHere = []string{
	"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP",
	"APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "ALLUSERSPROFILE",
	"PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432", "COMMONPROGRAMFILES",
	"USERPROFILE", "USERNAME", "USERDOMAIN", "HOMEDRIVE", "HOMEPATH",
	"NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE", "OS",
}

func sameName(a, b string) bool { return strings.EqualFold(a, b) }

// tryWriter returns a function that writes nothing: on Windows a pipe cannot tell how much
// fits, so all lines go through the backlog.
func tryWriter(*os.File) func([]byte) (int, error) {
	return func([]byte) (int, error) { return 0, nil }
}

// A group is a job object with one child and its descendants. The system kills them all
// when the last handle of the job is closed, also by the end of this process.
type group struct{ job windows.Handle }

// startGroup starts cmd in a job of its own. If it succeeds, the caller must call release
// when the process is gone.
func startGroup(cmd *exec.Cmd) (*group, error) {
	job, err := newJob()
	if err != nil {
		return nil, err
	}
	g := &group{job}
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
	if err := cmd.Start(); err != nil {
		g.release()
		return nil, err
	}
	if err := g.add(cmd.Process.Pid); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		g.release()
		return nil, err
	}
	return g, nil
}

func (g *group) release() { windows.CloseHandle(g.job) }

func newJob() (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, err
	}
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err != nil {
		windows.CloseHandle(job)
		return 0, err
	}
	return job, nil
}

func (g *group) add(pid int) error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(pid))
	if err != nil {
		return err
	}
	defer windows.CloseHandle(process)
	return windows.AssignProcessToJobObject(g.job, process)
}

func (g *group) await(cmd *exec.Cmd) { cmd.Wait() }

// exited has nothing to add to await.
func (g *group) exited() bool { return false }

// reap does nothing: await has reaped the leader.
func (g *group) reap(*exec.Cmd) {}

// terminate does nothing: Windows has no SIGTERM.
func (g *group) terminate() {}

// kill ends every process of the group.
func (g *group) kill() { windows.TerminateJobObject(g.job, 1) }
