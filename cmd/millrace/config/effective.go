package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// sourceDefault is the source of a value that nobody set.
const sourceDefault = "default"

// layers are the sources of a configuration.
type layers struct {
	path             string // of the file; empty: there is none
	file, env, flags *koanf.Koanf
}

// read reads the sources, and names every key of theirs that no setting has.
func read(path string, environ []string, flags *pflag.FlagSet) (layers, error) {
	l := layers{path, koanf.New("."), koanf.New("."), koanf.New(".")}
	if path != "" {
		if err := loadFile(l.file, path); err != nil {
			return l, err
		}
	}
	if err := loadEnvironment(l.env, environ); err != nil {
		return l, err
	}
	return l, loadFlags(l.flags, flags)
}

// of returns the value that counts, and who set it; nil and the default's name
// where nobody did.
func (l *layers) of(s setting) (value any, source string) {
	switch {
	case l.flags.Exists(s.key):
		return l.flags.Get(s.key), "flag --" + s.flag()
	case l.env.Exists(s.key):
		return l.env.Get(s.key), "variable " + s.env()
	case l.file.Exists(s.key):
		return l.file.Get(s.key), "file " + l.path
	}
	return nil, sourceDefault
}

// Effective is a setting as a node would have it.
type Effective struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`
	Source string `json:"source"` // default, or what set it
	// Set: some source did.
	Set bool `json:"set"`
}

// Explain is Load, and tells of each setting who set it. What it returns beside
// an error of Validate is whole.
func Explain(defaults Config, path string, environ []string, flags *pflag.FlagSet) ([]Effective, error) {
	l, err := read(path, environ, flags)
	if err != nil {
		return nil, err
	}
	c, err := l.over(defaults)
	if err != nil {
		return nil, err
	}
	var all []Effective
	for _, s := range settings {
		_, source := l.of(s)
		all = append(all, Effective{s.key, s.shown(&c), source, source != sourceDefault})
	}
	return all, c.Validate()
}

// shown is the setting's value as TOML, JSON and people read it: durations as
// text.
func (s setting) shown(c *Config) any {
	switch v := s.value(c).(type) {
	case *string:
		return *v
	case *int:
		return *v
	case *uint32:
		return *v
	case *int64:
		return *v
	case *[]string:
		return append([]string{}, *v...)
	case fmt.Stringer:
		return v.String()
	}
	panic("no form for setting " + s.key)
}

// Template is a TOML file with every setting of a server, each commented out at
// its default.
func Template() string {
	defaults := Server()
	var b strings.Builder
	b.WriteString("# Settings of `millrace server`, each at its default. A flag beats the\n# environment, the environment this file; millrace config validate checks it.\n")
	table := ""
	for _, s := range slices.SortedStableFunc(slices.Values(settings), func(a, b setting) int {
		return strings.Compare(a.table(), b.table())
	}) {
		if t := s.table(); t != table {
			table = t
			fmt.Fprintf(&b, "\n[%s]\n", table)
		}
		value := s.shown(&defaults)
		fmt.Fprintf(&b, "# %s\n", s.help(&defaults))
		fmt.Fprintf(&b, "#%s = %s\n", strings.TrimPrefix(s.key, prefixOf(table)), literal(value))
	}
	return b.String()
}

// table is the TOML table that the setting is in; those of none come first.
func (s setting) table() string {
	if at := strings.LastIndexByte(s.key, '.'); at >= 0 {
		return s.key[:at]
	}
	return ""
}

func prefixOf(table string) string {
	if table == "" {
		return ""
	}
	return table + "."
}

// literal is a value in TOML.
func literal(value any) string {
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case []string:
		var quoted []string
		for _, text := range v {
			quoted = append(quoted, literal(text))
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}
	return fmt.Sprint(value)
}
