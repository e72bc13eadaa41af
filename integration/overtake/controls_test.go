package overtake

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// edit changes one place of one source file, which must be there exactly once.
type edit struct {
	file     string // from the module's root
	old, new string
}

// controls switch one mechanism off each, in a test build: a test of this
// package must then fail, and by that mechanism's own failure.
var controls = []struct {
	name  string
	edits []edit
	test  string // that must fail
	fails string // a pattern of what it must say
}{
	{
		// What the ancestor does. With compaction on, the files that tracking has
		// filled shrink again before they have pushed much out.
		name:  "all bytes counted, no pacing, no compaction",
		edits: append([]edit{noPacing, noCompaction}, allBytes...),
		test:  "TestOvertake_quiet", fails: `read 0 of 200000 messages`,
	},
	{
		// Compaction alone saves a part.
		name:  "all bytes counted, no pacing",
		edits: append([]edit{noPacing}, allBytes...),
		test:  "TestOvertake_quiet", fails: `read 1?[0-9]{1,5} of 200000 messages`,
	},
	{
		name:  "no pacing",
		edits: []edit{noPacing},
		test:  "TestOvertake_quiet", fails: `write rate over budget`,
	},
	{
		name:  "no compaction",
		edits: []edit{noCompaction},
		test:  "TestOvertake_quiet", fails: `bound broken after`,
	},
	{
		name: "control chunks take offsets",
		edits: []edit{
			{"segstore/chunk/header.go", "func (h *Header) Next() Offset { return h.BaseOffset + Offset(h.Records) }",
				"func (h *Header) Next() Offset {\n\tif h.Type != User {\n\t\treturn h.BaseOffset + 1\n\t}\n\treturn h.BaseOffset + Offset(h.Records)\n}"},
			{"replication/protocol/chunk.go", "func (c *Chunk) Next() chunk.Offset { return c.Offset + chunk.Offset(c.Records) }",
				"func (c *Chunk) Next() chunk.Offset {\n\tif c.Type != chunk.User {\n\t\treturn c.Offset + 1\n\t}\n\treturn c.Offset + chunk.Offset(c.Records)\n}"},
			{"segstore/manifest/summary.go", " || uint64(s.NextOffset-s.BaseOffset) != s.Records:", ":"},
		},
		test: "TestOvertake_quiet", fails: `message count wrong`,
	},
	{
		name:  "no snapshots at heads",
		edits: []edit{noHeads},
		test:  "TestOvertake_publisher", fails: `log start never moved`,
	},
	{
		name: "no snapshots at heads, E3 off",
		edits: []edit{noHeads,
			{"segstore/plan/retain.go", "if segment == 0 {\n\t\treturn HoldNone", "if segment >= 0 {\n\t\treturn HoldNone"}},
		test: "TestOvertake_publisher", fails: `state lost`,
	},
}

// allBytes has tracking count for retention, as what is in the log does by
// nature, and fill segments.
var allBytes = []edit{
	{"segstore/plan/retain.go", "n += segments[i].UserBytes", "n += segments[i].Size"},
	{"segstore/plan/roll.go", "in.Appending == AppendingUser && in.UnitUsed && in.UnitUserBytes", "in.Holds && in.UnitUserBytes"},
	{"segstore/log.go", "if h.Type == chunk.User {\n\t\tif !u.used {", "if h.Type != chunk.User {\n\t\tu.userBytes += int64(h.Length())\n\t}\n\tif h.Type == chunk.User {\n\t\tif !u.used {"},
}

// noPacing writes whatever waits, ten times a second.
var noPacing = edit{"tracking/pacer.go", "case !p.forced && p.now < deadline && p.now < early:", "case p.now < p.lastWrite+100:"}

// noCompaction finds nothing worth it.
var noCompaction = edit{"segstore/plan/compact.go", "n, until := compactable(in)\n\tif c", "n, until := compactable(in)\n\tn = 0\n\tif c"}

// noHeads begins segments with a delta of what is pending.
var noHeads = edit{"replication/write.go", "r.appendControl(chunk.Snapshot, flags, part)",
	"r.appendControl(chunk.Delta, start&flags, tracking.EncodeDelta(nil, t.pending.Take(nil, len(part)+1<<20)))"}

// TestControls builds each of them and has it fail, if OVERTAKE_CONTROLS is set
// (make overtake); otherwise it sees to it that each can be built.
func TestControls(t *testing.T) {
	run := os.Getenv("OVERTAKE_CONTROLS") != ""
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range controls {
		t.Run(c.name, func(t *testing.T) {
			overlay := overlayOf(t, root, c.edits)
			if !run {
				return
			}
			cmd := exec.Command("go", "test", "-overlay", overlay, "-count", "1", "-run", "^"+c.test+"$", ".")
			cmd.Env = append(os.Environ(), "OVERTAKE_HOURS=2")
			out, err := cmd.CombinedOutput()
			line := regexp.MustCompile(".*" + c.fails + ".*").FindString(string(out))
			if err == nil || line == "" {
				t.Fatalf("%s did not fail with %q: %v\n%.3000s", c.test, c.fails, err, out)
			}
			t.Logf("FIGURE overtake control %q: %.160s", c.name, strings.TrimSpace(line))
		})
	}
}

// overlayOf writes the changed files and the overlay that puts them in place.
func overlayOf(t *testing.T, root string, edits []edit) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for i, e := range edits {
		name := filepath.Join(root, filepath.FromSlash(e.file))
		source, err := os.ReadFile(name)
		if changed, ok := replace[name]; ok {
			source, err = os.ReadFile(changed)
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(source), e.old); n != 1 {
			t.Fatalf("%s has %d places of %q", e.file, n, e.old)
		}
		changed := filepath.Join(dir, fmt.Sprintf("%d.go", i))
		if err := os.WriteFile(changed, []byte(strings.Replace(string(source), e.old, e.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[name] = changed
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}
