package harness

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// clockTicks is how many of /proc's ticks a second has; Linux shows user space
// 100, whatever the kernel counts in.
const clockTicks = 100

// CPU is the time that the node's process has had on processors since its start,
// in steps of 10 ms.
func (n *Node) CPU() time.Duration {
	n.t.Helper()
	text := n.proc("stat")
	// The command's name, in parentheses, may hold anything; state is next.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	ticks := 0
	for _, field := range fields[11:13] { // utime and stime
		count, err := strconv.Atoi(field)
		if err != nil {
			n.t.Fatalf("/proc stat of node %s: %v", n.Name, err)
		}
		ticks += count
	}
	return time.Duration(ticks) * time.Second / clockTicks
}

// Resident is the memory that the node's process has in pages, in bytes.
func (n *Node) Resident() int64 {
	n.t.Helper()
	for line := range strings.Lines(n.proc("status")) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	n.t.Fatalf("/proc status of node %s has no VmRSS", n.Name)
	return 0
}

// Descriptors is how many files and sockets the node's process has open.
func (n *Node) Descriptors() int {
	n.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.PID()))
	if err != nil {
		n.t.Fatal(err)
	}
	return len(list)
}

var heapInUse = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`)

// Heap has the node collect its garbage, and returns the bytes that are left.
func (n *Node) Heap() int64 {
	n.t.Helper()
	text, err := n.Get("/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		n.t.Fatal(err)
	}
	found := heapInUse.FindSubmatch(text)
	if found == nil {
		n.t.Fatalf("the heap profile of node %s has no HeapAlloc", n.Name)
	}
	bytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		n.t.Fatal(err)
	}
	return bytes
}

func (n *Node) proc(file string) string {
	n.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", n.PID(), file))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}
