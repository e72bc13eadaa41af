package harness

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFiles_damage(t *testing.T) {
	rows := []struct {
		name   string
		damage func(path string) error
		want   string
	}{
		{"cut", func(p string) error { return Cut(p, 2) }, "abcd"},
		{"cut more than there is", func(p string) error { return Cut(p, 9) }, ""},
		{"zero", func(p string) error { return Zero(p, 2) }, "abcd\x00\x00"},
		{"extend", func(p string) error { return Extend(p, []byte("gh")) }, "abcdefgh"},
		{"flip", func(p string) error { return Flip(p, 9) }, "a`cdef"}, // b is 0x62: bit 1 off
	}
	for _, row := range rows {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte("abcdef"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := row.damage(path); err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
		if got, _ := os.ReadFile(path); string(got) != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
	if Flip(filepath.Join(t.TempDir(), "none"), 0) == nil {
		t.Error("flipping a missing file succeeds")
	}
}
