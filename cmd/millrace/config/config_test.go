package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func load(t *testing.T, toml string, environ []string, args ...string) (Config, error) {
	t.Helper()
	path := ""
	if toml != "" {
		path = filepath.Join(t.TempDir(), "millrace.toml")
		if err := os.WriteFile(path, []byte(toml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flags := pflag.NewFlagSet("server", pflag.ContinueOnError)
	AddFlags(flags, Server())
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(Server(), path, environ, flags)
}

func TestLoad_flagBeatsEnvironmentBeatsFile(t *testing.T) {
	file := "[stream]\naddr = 'file:1'\n[http]\naddr = 'file:2'\n[node]\naddr = 'file:3'\n"
	environ := []string{"MILLRACE_HTTP__ADDR=env:2", "MILLRACE_NODE__ADDR=env:3"}
	c, err := load(t, file, environ, "--node-addr", "flag:3")
	if err != nil {
		t.Fatal(err)
	}
	rows := []struct{ name, got, want string }{
		{"file over default", c.StreamAddr, "file:1"},
		{"environment over file", c.HTTPAddr, "env:2"},
		{"flag over environment", c.NodeAddr, "flag:3"},
		{"default where no source speaks", c.GossipAddr, Server().GossipAddr},
	}
	for _, row := range rows {
		if row.got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, row.got, row.want)
		}
	}
}

// TestLoad_everySettingFromEverySource sets each key by file, environment and
// flag, so that a setting without a field, or a field without a setting's
// spelling, is found.
func TestLoad_everySettingFromEverySource(t *testing.T) {
	for _, s := range settings {
		literal, text := `"localhost:1"`, "localhost:1"
		d := Server()
		switch s.value(&d).(type) {
		case *int, *int64, *uint32:
			literal, text = "1", "1"
		case *time.Duration:
			literal, text = `"1s"`, "1s"
		case *[]string:
			literal, text = `["localhost:1"]`, "localhost:1"
		}
		section, name, nested := strings.Cut(s.key, ".")
		toml := section + " = " + literal + "\n"
		if nested {
			toml = "[" + section + "]\n" + name + " = " + literal + "\n"
		}
		fromFile, fileErr := load(t, toml, nil)
		fromEnv, envErr := load(t, "", []string{s.env() + "=" + text})
		fromFlag, flagErr := load(t, "", nil, "--"+s.flag()+"="+text)
		for _, got := range []struct {
			source string
			c      Config
			err    error
		}{{"file", fromFile, fileErr}, {"environment", fromEnv, envErr}, {"flag", fromFlag, flagErr}} {
			if value := spell(s.value(&got.c)); value != text {
				t.Errorf("%s by %s: got %q, want %q (error %v)", s.key, got.source, value, text, got.err)
			}
		}
	}
}

// spell writes a field as the test's sources do.
func spell(field any) string {
	switch v := field.(type) {
	case *[]string:
		return strings.Join(*v, ",")
	case *time.Duration:
		return v.String()
	}
	return fmt.Sprint(reflect.ValueOf(field).Elem().Interface())
}

func TestLoad_badValueIsNamed(t *testing.T) {
	for _, row := range []struct{ toml, says string }{
		{"[advertised]\nport = 'many'\n", `advertised.port is "many", but must be a whole number`},
		{"[stream]\nheartbeat = 'soon'\n", `stream.heartbeat is "soon", but must be a time`},
	} {
		if _, err := load(t, row.toml, nil); err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%q: %v, want it to say %q", row.toml, err, row.says)
		}
	}
}

func TestLoad_unknownKeyStopsAndIsNamed(t *testing.T) {
	rows := []struct {
		name, toml string
		environ    []string
		says       []string
	}{
		{"misspelt in the file", "[stream]\nadr = ':1'\n", nil, []string{"stream.adr", "millrace.toml", `did you mean "stream.addr"`}},
		{"unknown section", "[nonsense]\nspeed = 3\n", nil, []string{"nonsense.speed"}},
		{"two at once", "a = 1\nb = 2\n", nil, []string{`"a"`, `"b"`}},
		{"in the environment", "", []string{"MILLRACE_STREAM__ADRR=:1"}, []string{"MILLRACE_STREAM__ADRR", "MILLRACE_STREAM__ADDR"}},
	}
	for _, row := range rows {
		_, err := load(t, row.toml, row.environ)
		if !errors.Is(err, ErrUnknownKey) {
			t.Errorf("%s: got error %v, want ErrUnknownKey", row.name, err)
			continue
		}
		for _, part := range row.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", row.name, err, part)
			}
		}
	}
}

func TestLoad_leavesOthersVariablesAlone(t *testing.T) {
	if _, err := load(t, "", []string{"MILLRACE_PORT=tcp://10.0.0.1:5552", "MILLRACE_ADDR=http://localhost:1", "OTHER__THING=1"}); err != nil {
		t.Error(err)
	}
}

func TestLoad_fileProblems(t *testing.T) {
	if _, err := load(t, "[stream\n", nil); err == nil || !strings.Contains(err.Error(), "millrace.toml") {
		t.Errorf("broken TOML: got %v, want an error that names the file", err)
	}
	_, err := Load(Server(), filepath.Join(t.TempDir(), "none.toml"), nil, pflag.NewFlagSet("", pflag.ContinueOnError))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: got %v", err)
	}
}

func TestValidate_saysEveryProblem(t *testing.T) {
	c := Server()
	c.DataDir, c.StreamAddr, c.AdvertisedPort = "", "5552", 70000
	c.LogLevel, c.NodeName, c.BootstrapExpect = "loud", "a/b", 300
	c.Join = []string{"n2"}
	c.HTTPHosts = []string{"http://broker.example.com:7080"}
	err := c.Validate()
	for _, key := range []string{"data.dir", "stream.addr", "advertised.port", "log.level", "node.name", "bootstrap.expect", "join", "cluster.secret_file", "http.hosts"} {
		if err == nil || !strings.Contains(err.Error(), key+":") {
			t.Errorf("%s is wrong, but the error does not say so: %v", key, err)
		}
	}
	for _, c := range []Config{Server(), Dev()} {
		if err := c.Validate(); err != nil {
			t.Errorf("the defaults are refused: %v", err)
		}
	}
}

// Every limit of the stream port that the broker names, in its comments and in
// what it tells when the limit bites, can be set.
func TestSettings_haveEveryLimitOfTheBroker(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("..", "..", "..", "broker", "config.go"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`"(stream\.[a-z_]+)"`).FindAllSubmatch(source, -1)
	if len(named) < 15 {
		t.Fatalf("%d limits found", len(named))
	}
	for _, key := range named {
		if !known(string(key[1])) {
			t.Errorf("%s is no setting", key[1])
		}
	}
}
