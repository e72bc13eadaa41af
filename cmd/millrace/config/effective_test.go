package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Each value is told with the source that counts.
func TestExplain_sources(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.toml")
	if err := os.WriteFile(path, []byte("[stream]\naddr = 'file:1'\nheartbeat = '7s'\n[http]\naddr = 'file:2'\n[node]\naddr = 'file:3'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("server", pflag.ContinueOnError)
	AddFlags(flags, Server())
	if err := flags.Parse([]string{"--node-addr", "flag:3"}); err != nil {
		t.Fatal(err)
	}
	all, err := Explain(Server(), path, []string{"MILLRACE_HTTP__ADDR=env:2", "MILLRACE_NODE__ADDR=env:3"}, flags)
	if err != nil || len(all) != len(settings) {
		t.Fatalf("%d settings of %d: %v", len(all), len(settings), err)
	}
	want := map[string]Effective{
		"stream.addr":      {"stream.addr", "file:1", "file " + path, true},
		"stream.heartbeat": {"stream.heartbeat", "7s", "file " + path, true},
		"http.addr":        {"http.addr", "env:2", "variable MILLRACE_HTTP__ADDR", true},
		"node.addr":        {"node.addr", "flag:3", "flag --node-addr", true},
		"join":             {"join", []string{}, "default", false},
	}
	for _, e := range all {
		if w, ok := want[e.Key]; ok && !reflect.DeepEqual(e, w) {
			t.Errorf("%+v, want %+v", e, w)
		} else if !ok && e.Set {
			t.Errorf("%+v was set by nobody", e)
		}
	}
}

// The template is the defaults: with all of its comments taken away it changes
// nothing.
func TestTemplate_isTheDefault(t *testing.T) {
	text := Template()
	if strings.Count(text, "\n#") < 2*len(settings) {
		t.Fatalf("not all of %d settings:\n%s", len(settings), text)
	}
	c, err := load(t, regexp.MustCompile(`(?m)^#([a-z_]+ = )`).ReplaceAllString(text, "$1"), nil)
	if got, want := fmt.Sprintf("%+v", c), fmt.Sprintf("%+v", Server()); err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

// A flag's help tells one default.
func TestAddFlags_oneDefault(t *testing.T) {
	for _, defaults := range []Config{Server(), Dev()} {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		AddFlags(flags, defaults)
		for line := range strings.Lines(flags.FlagUsages()) {
			if strings.Count(line, "default") > 1 {
				t.Errorf("two defaults: %s", line)
			}
		}
	}
}
