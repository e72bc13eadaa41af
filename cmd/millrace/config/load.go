package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/toml/v2"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// ErrUnknownKey: a source sets a key that no setting has. The start stops,
// since a misspelt limit that is silently ignored is found out too late.
var ErrUnknownKey = errors.New("unknown configuration key")

// Load lays the sources over defaults: the TOML file at path (none if empty),
// the environment (in the form of os.Environ), then the flags that were given.
func Load(defaults Config, path string, environ []string, flags *pflag.FlagSet) (Config, error) {
	l, err := read(path, environ, flags)
	if err != nil {
		return Config{}, err
	}
	c, err := l.over(defaults)
	if err != nil {
		return Config{}, err
	}
	return c, c.Validate()
}

// over lays the sources over defaults.
func (l *layers) over(defaults Config) (Config, error) {
	c := defaults
	var problems []error
	for _, s := range settings {
		if value, source := l.of(s); source != sourceDefault {
			problems = append(problems, decode(s, value, &c))
		}
	}
	return c, errors.Join(problems...)
}

// decode puts a value of a source into the setting's field.
func decode(s setting, value any, c *Config) error {
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result:           s.value(c),
		WeaklyTypedInput: true, // variables are text
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(), mapstructure.StringToSliceHookFunc(",")),
	})
	if err == nil {
		err = decoder.Decode(value)
	}
	if err == nil {
		return nil
	}
	if kind := kindOf(s.value(c)); kind != "" {
		return fmt.Errorf("%s is %q, but must be %s", s.key, fmt.Sprint(value), kind)
	}
	return fmt.Errorf("%s is %v: %w", s.key, value, err)
}

// kindOf says what the value of a setting with that field must be; "" where
// anything will do.
func kindOf(field any) string {
	switch field.(type) {
	case *time.Duration:
		return "a time such as 10s, 5m or 2h"
	case *int, *int64:
		return "a whole number"
	case *uint32:
		return "a whole number from 0 on"
	}
	return ""
}

func loadFile(all *koanf.Koanf, path string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("read configuration file: %w", err)
	}
	if err := all.Load(file.Provider(path), toml.Parser()); err != nil {
		return fmt.Errorf("read configuration file %s: %w", path, err)
	}
	return checkKeys(all, path)
}

// loadEnvironment takes MILLRACE_ variables. One without a double underscore
// that is no setting's is not ours to judge: the CLI has variables of its own
// (MILLRACE_ADDR), and Kubernetes sets MILLRACE_PORT and the like for a service
// of that name.
func loadEnvironment(all *koanf.Koanf, environ []string) error {
	var unknown []error
	err := all.Load(env.Provider(".", env.Opt{
		Prefix: envPrefix,
		TransformFunc: func(name, value string) (string, any) {
			s, ok := settingByEnv(name)
			if !ok {
				if strings.Contains(name, "__") {
					unknown = append(unknown, unknownKey(name, "the environment", nearest(name, envNames())))
				}
				return "", nil
			}
			return s.key, value
		},
		EnvironFunc: func() []string { return environ },
	}), nil)
	return errors.Join(err, errors.Join(unknown...))
}

func loadFlags(all *koanf.Koanf, flags *pflag.FlagSet) error {
	return all.Load(posflag.ProviderWithFlag(flags, ".", all, func(f *pflag.Flag) (string, any) {
		s, ok := settingByFlag(f.Name)
		if !ok || !f.Changed {
			return "", nil
		}
		return s.key, posflag.FlagVal(flags, f)
	}), nil)
}

// checkKeys names every key of all that no setting has.
func checkKeys(all *koanf.Koanf, source string) error {
	var unknown []error
	for _, key := range all.Keys() {
		if !known(key) && !emptyTable(all, key) {
			unknown = append(unknown, unknownKey(key, source, nearest(key, keys())))
		}
	}
	return errors.Join(unknown...)
}

// emptyTable tells whether the key is a table that settings may be in, and none is.
func emptyTable(all *koanf.Koanf, key string) bool {
	table, ok := all.Get(key).(map[string]any)
	return ok && len(table) == 0 && slices.ContainsFunc(settings, func(s setting) bool { return strings.HasPrefix(s.key, key+".") })
}

func unknownKey(key, source, near string) error {
	if near != "" {
		return fmt.Errorf("%w %q in %s; did you mean %q?", ErrUnknownKey, key, source, near)
	}
	return fmt.Errorf("%w %q in %s", ErrUnknownKey, key, source)
}

func keys() []string {
	var out []string
	for _, s := range settings {
		out = append(out, s.key)
	}
	return out
}

func envNames() []string {
	var out []string
	for _, s := range settings {
		out = append(out, s.env())
	}
	return out
}

// nearest returns the candidate that is at most three edits away, or "".
func nearest(word string, candidates []string) string {
	best, found := 4, ""
	for _, c := range candidates {
		if d := editDistance(word, c); d < best {
			best, found = d, c
		}
	}
	return found
}

// editDistance is Levenshtein's, by rows.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substituted := diagonal
			if a[i] != b[j] {
				substituted++
			}
			diagonal = row[j+1]
			row[j+1] = min(substituted, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
