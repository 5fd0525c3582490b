//go:build linux || darwin

package metrics

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// addSystem adds what is known. On macOS that is not the memory, which is known to C only.
func (o out) addSystem() {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) == nil {
		o.counter(cpuTime, time.Duration(used.Utime.Nano()+used.Stime.Nano()).Seconds())
	}
	for m, resource := range map[*metric]int{mostFiles: syscall.RLIMIT_NOFILE, mostMemory: syscall.RLIMIT_AS} {
		var limit syscall.Rlimit
		if syscall.Getrlimit(resource, &limit) == nil {
			o.gauge(m, float64(limit.Cur))
		}
	}
	files := "/dev/fd"
	if runtime.GOOS == "linux" {
		files = "/proc/self/fd"
		o.addMemory()
		o.addNetwork()
	}
	if dir, err := os.Open(files); err == nil {
		defer dir.Close()
		if names, err := dir.Readdirnames(0); err == nil {
			o.gauge(openFiles, float64(len(names)-1)) // without dir
		}
	}
}

// addMemory reads the first two fields of statm, in pages: size and resident (proc_pid_statm(5)).
func (o out) addMemory() {
	text, _ := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	for i, m := range []*metric{virtualMemory, residentMemory}[:min(len(fields), 2)] {
		if pages, err := strconv.ParseUint(fields[i], 10, 64); err == nil {
			o.gauge(m, float64(pages)*float64(os.Getpagesize()))
		}
	}
}

// addNetwork reads the counters of the network namespace: pairs of lines, one with names and one with numbers.
func (o out) addNetwork() {
	text, _ := os.ReadFile("/proc/self/net/netstat")
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "IpExt:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names[:min(len(names), len(fields))] {
			n, _ := strconv.ParseFloat(fields[i], 64)
			switch name {
			case "InOctets":
				o.counter(networkReceived, n)
			case "OutOctets":
				o.counter(networkSent, n)
			}
		}
	}
}
