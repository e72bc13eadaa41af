package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/millrace/millrace/cmd/millrace/cli"
	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/cmd/millrace/node"
	"github.com/millrace/millrace/integration/harness"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"millrace": func() { os.Exit(cli.Main(os.Args[1:])) },
	})
}

// TestScripts runs testdata/script: what people type, what they get, and the
// exit codes. Each script has a node of its own, named by the environment as a
// person would; -rewrite is testscript's -update.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		Setup:               setUp,
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "cmpjson": compareJSON, "flip": flip, "unhex": unhex,
		},
	})
}

// setUp starts the script's node.
func setUp(env *testscript.Env) error {
	c := config.Dev()
	c.DataDir = filepath.Join(env.WorkDir, "data")
	c.StreamAddr, c.HTTPAddr, c.ManagementAddr = "localhost:0", "localhost:0", "localhost:0"
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n, err := node.Start(ctx, c, cli.Version, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	env.Defer(func() {
		stop, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.Stop(stop); err != nil {
			panic(fmt.Sprintf("the script's node did not stop well: %v", err))
		}
	})
	env.Setenv("MILLRACE_ADDR", "http://"+n.Addresses().HTTP)
	env.Setenv("MILLRACE_STREAM", n.Addresses().Stream)
	env.Setenv("HTTP", n.Addresses().HTTP)
	env.Setenv("DATA", c.DataDir)
	goldens, err := filepath.Abs("account/testdata")
	if err != nil {
		return err
	}
	env.Setenv("OSIRIS", goldens)
	env.Setenv("HOME", env.WorkDir)
	return nil
}

// exits CODE COMMAND… runs a command and wants exactly that exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND …")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// cmpjson FILE GOLDEN compares JSON; "*" in the golden file stands for any
// value, so that times and sizes do not matter but every key does.
func compareJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: cmpjson FILE GOLDEN")
	}
	var got, want any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &got))
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &want))
	if problem := differs("", got, want); problem != "" {
		ts.Fatalf("%s is not %s: %s\n%s", args[0], args[1], problem, ts.ReadFile(args[0]))
	}
}

func differs(at string, got, want any) string {
	switch want := want.(type) {
	case string:
		if want == "*" {
			return ""
		}
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return fmt.Sprintf("%s: %v, want a list of %d", at, got, len(want))
		}
		for i := range want {
			if problem := differs(fmt.Sprintf("%s[%d]", at, i), list[i], want[i]); problem != "" {
				return problem
			}
		}
		return ""
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s: %v is no object", at, got)
		}
		for key := range object {
			if _, ok := want[key]; !ok {
				return fmt.Sprintf("%s.%s is new", at, key)
			}
		}
		for key := range want {
			value, ok := object[key]
			if !ok {
				return fmt.Sprintf("%s.%s is gone", at, key)
			}
			if problem := differs(at+"."+key, value, want[key]); problem != "" {
				return problem
			}
		}
		return ""
	}
	if got != want {
		return fmt.Sprintf("%s: %v, want %v", at, got, want)
	}
	return ""
}

// flip PATTERN BIT inverts a bit of the one file that matches.
func flip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: flip PATTERN BIT")
	}
	files, err := filepath.Glob(args[0])
	ts.Check(err)
	if len(files) != 1 {
		ts.Fatalf("%s matches %d files", args[0], len(files))
	}
	bit, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(harness.Flip(files[0], bit))
}

// unhex FROM TO writes the bytes that a file tells in hex digits and comments.
func unhex(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: unhex FROM TO")
	}
	var digits strings.Builder
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		code, _, _ := strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(code), ""))
	}
	b, err := hex.DecodeString(digits.String())
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), b, 0o600))
}
