package metrics

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	memoryInfo  = windows.NewLazySystemDLL("psapi.dll").NewProc("GetProcessMemoryInfo")
	handleCount = windows.NewLazySystemDLL("kernel32.dll").NewProc("GetProcessHandleCount")
)

// memoryCounters are the PROCESS_MEMORY_COUNTERS_EX of psapi.h.
type memoryCounters struct {
	size, pageFaultCount                                                 uint32
	peakWorkingSetSize, workingSetSize                                   uintptr
	quotaPeakPagedPool, quotaPagedPool, quotaPeakNonPaged, quotaNonPaged uintptr
	pagefileUsage, peakPagefileUsage, privateUsage                       uintptr
}

// addSystem adds what is known: handles for files, private memory for virtual memory, and nothing of the network.
func (o out) addSystem() {
	self := windows.CurrentProcess()
	var began, ended, kernel, user windows.Filetime
	if windows.GetProcessTimes(self, &began, &ended, &kernel, &user) == nil {
		o.counter(cpuTime, seconds(kernel)+seconds(user))
	}
	var memory memoryCounters
	memory.size = uint32(unsafe.Sizeof(memory))
	if ok, _, _ := memoryInfo.Call(uintptr(self), uintptr(unsafe.Pointer(&memory)), unsafe.Sizeof(memory)); ok != 0 {
		o.gauge(virtualMemory, float64(memory.privateUsage))
		o.gauge(residentMemory, float64(memory.workingSetSize))
	}
	var handles uint32
	if ok, _, _ := handleCount.Call(uintptr(self), uintptr(unsafe.Pointer(&handles))); ok != 0 {
		o.gauge(openFiles, float64(handles))
		o.gauge(mostFiles, 1<<24) // of the system
	}
}

// seconds returns a duration in units of 100 ns.
func seconds(t windows.Filetime) float64 {
	return float64(uint64(t.HighDateTime)<<32|uint64(t.LowDateTime)) / 1e7
}
