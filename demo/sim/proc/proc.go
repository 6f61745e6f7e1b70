// Package proc reads what processes use from Linux's /proc.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of /proc, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// CPU returns the CPU time of a process, in user mode and in the kernel, in steps of 10 ms.
func CPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("CPU of process %d: %w", pid, err)
	}
	// The second field is the name in brackets, which may have spaces; utime and stime
	// are fields 14 and 15.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	sum := time.Duration(0)
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			return 0, fmt.Errorf("CPU of process %d: %w", pid, err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// PeakRSS returns the most memory that a process has had resident, in bytes.
func PeakRSS(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	_, line, _ := strings.Cut(string(text), "VmHWM:")
	line, _, _ = strings.Cut(line, " kB")
	kib, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	return kib << 10, nil
}
