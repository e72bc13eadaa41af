package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Process watches a process of this machine, the broker's, from outside.
type Process struct {
	pid int
	cpu time.Duration
}

// ticksPerSecond is USER_HZ, which Linux fixes for what it shows in /proc.
const ticksPerSecond = 100

// resetPeak written to clear_refs sets VmHWM back to the present.
const resetPeak = "5"

// Watch begins to count the CPU time of the process and, where the system lets
// us, its peak memory anew; 0 watches nothing.
func Watch(pid int) (*Process, error) {
	p := &Process{pid: pid}
	var err error
	if pid != 0 {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(resetPeak), 0) // else the peak is since its start
	}
	p.cpu, err = p.cpuTime()
	return p, err
}

func (p *Process) cpuTime() (time.Duration, error) {
	if p.pid == 0 {
		return 0, nil
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", p.pid, err)
	}
	// The name, in brackets, may hold anything; fields are counted behind it.
	_, fields, _ := strings.Cut(string(text), ") ")
	parts := strings.Fields(fields)
	if len(parts) < 13 {
		return 0, fmt.Errorf("read the CPU time of process %d: unknown form", p.pid)
	}
	var ticks uint64
	for _, field := range parts[11:13] { // user and system time
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// Used is the CPU time since Watch.
func (p *Process) Used() (time.Duration, error) {
	now, err := p.cpuTime()
	return now - p.cpu, err
}

// into puts what the process used since Watch into r.
func (p *Process) into(r *Result) error {
	if p == nil || p.pid == 0 || r.Messages == 0 {
		return nil
	}
	used, err := p.Used()
	if err != nil {
		return err
	}
	r.ServerCPU = float64(used.Microseconds()) / float64(r.Messages)
	r.ServerRSS, err = p.peakRSS()
	return err
}

func (p *Process) peakRSS() (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseUint(strings.Fields(value)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, nil
}
