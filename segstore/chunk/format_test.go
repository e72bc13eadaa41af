package chunk

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

func formatPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// block returns the bytes of the page's hex block with that heading.
func block(t *testing.T, page, name string) []byte {
	t.Helper()
	_, rest, ok := strings.Cut(page, "```hex "+name+"\n")
	if !ok {
		t.Fatalf("FORMAT.md has no hex block %q", name)
	}
	text, _, _ := strings.Cut(rest, "```")
	return unhex(t, text)
}

// TestFormat_examples: the page's hex is that of the golden files.
func TestFormat_examples(t *testing.T) {
	page := formatPage(t)
	if !bytes.Equal(block(t, page, "user"), golden(t, "user")) {
		t.Error("the worked example of 2.7 is not testdata/user.hex")
	}
	raw := golden(t, "filter-trailer")
	h, err := Decode(testIncarnation, raw)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(block(t, page, "filter-trailer trailer"), h.TrailerOf(raw)) {
		t.Error("the trailer of 3.4 is not that of testdata/filter-trailer.hex")
	}
	h, _ = Decode(testIncarnation, golden(t, "user"))
	if !strings.Contains(page, fmt.Sprintf("Running digest after it: `%s`", h.DigestAfter())) {
		t.Errorf("the digest of 2.7 is not %s", h.DigestAfter())
	}
}

// TestFormat_limits: the page's tables are the code's.
func TestFormat_limits(t *testing.T) {
	page := formatPage(t)
	for name, value := range map[string]int{
		"DataLengthTarget": DataLengthTarget, "DataLengthMax": DataLengthMax, "EntriesMax": EntriesMax,
		"TrailerLengthMax": TrailerLengthMax, "FilterLengthMin": FilterLengthMin, "FilterLengthMax": FilterLengthMax,
	} {
		if !strings.Contains(page, fmt.Sprintf("| `%s` | %d |", name, value)) {
			t.Errorf("2.5 does not say that %s is %d", name, value)
		}
	}
	for name, value := range map[string]Flags{
		"segment start": FlagSegmentStart, "unit start": FlagUnitStart, "epoch start": FlagEpochStart,
		"snapshot first": FlagSnapshotFirst, "snapshot last": FlagSnapshotLast, "stripped": FlagStripped,
	} {
		if !strings.Contains(page, fmt.Sprintf("| %s | 0x%04x |", name, uint16(value))) {
			t.Errorf("2.1 does not say that %q is %04x", name, uint16(value))
		}
	}
	if !regexp.MustCompile(fmt.Sprintf("`% x`, then the version of the format, `%02x`", magicBytes, FormatVersion)).MatchString(page) {
		t.Error("2.1 does not say the magic")
	}
}
