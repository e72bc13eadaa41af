package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Line is one load of a report: what was measured, and beside what.
type Line struct {
	Name    string  `json:"name"`
	Result  Result  `json:"result"`
	Peer    *Result `json:"peer,omitempty"` // the same load on another broker
	Against string  `json:"against"`        // the ratio in words
}

// Report reads the results of a folder (NAME.json, NAME.peer.json, disk.json)
// and sets each beside the disk's own figures and the peer's.
func Report(dir string) ([]Line, error) {
	disk, err := readDisk(filepath.Join(dir, "disk.json"))
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	var lines []Line
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		if name == "disk" || strings.HasSuffix(name, ".peer") {
			continue
		}
		line := Line{Name: name}
		if err := readJSON(file, &line.Result); err != nil {
			return nil, err
		}
		var peer Result
		if err := readJSON(filepath.Join(dir, name+".peer.json"), &peer); err == nil {
			line.Peer = &peer
		}
		line.Against = against(line, disk)
		lines = append(lines, line)
	}
	return lines, nil
}

func readDisk(file string) ([]DiskResult, error) {
	var disk []DiskResult
	err := readJSON(file, &disk)
	return disk, err
}

func readJSON(file string, into any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

// against says how a load compares with the disk and with the peer.
func against(line Line, disk []DiskResult) string {
	var parts []string
	r := line.Result
	switch r.Kind {
	case "produce":
		if best := bestDisk(disk); best > 0 {
			parts = append(parts, fmt.Sprintf("%.0f %% of this disk's append + fdatasync", 100*r.MBPerSec/best))
		}
	case "e2e":
		for _, d := range disk {
			if d.Size == 4096 {
				parts = append(parts, fmt.Sprintf("p50 %+.2f ms, p99 %+.2f ms over this disk's 4 KiB fdatasync", r.EndToEnd.P50-d.Latency.P50, r.EndToEnd.P99-d.Latency.P99))
			}
		}
	}
	if line.Peer != nil && line.Peer.PerSecond > 0 {
		parts = append(parts, fmt.Sprintf("%.2f × the peer", r.PerSecond/line.Peer.PerSecond))
		if r.Kind == "e2e" && line.Peer.EndToEnd.P99 > 0 {
			parts = append(parts, fmt.Sprintf("p99 %.2f × the peer's", r.EndToEnd.P99/line.Peer.EndToEnd.P99))
		}
	}
	return strings.Join(parts, "; ")
}

// bestDisk is the most MB/s of any block size.
func bestDisk(disk []DiskResult) float64 {
	best := 0.0
	for _, d := range disk {
		best = max(best, d.MBPerSec)
	}
	return best
}
