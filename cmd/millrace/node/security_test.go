package node

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cmd/millrace/config"
)

// TestSecurity_failedRotationIsTold: what was read last holds on, and the log tells
// once that it does, and once when it need not any more; no link has to break.
func TestSecurity_failedRotationIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "secret")
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		first, second := strings.Repeat("a", 64), strings.Repeat("b", 65)
		write(first)
		var text bytes.Buffer
		s := securityOf(config.Config{SecretFile: path}, hclog.New(&hclog.LoggerOptions{Output: &text}))
		holds := func(want string) {
			t.Helper()
			if got, err := s.Secrets(); err != nil || len(got) != 1 || string(got[0]) != want {
				t.Errorf("the secret is %q (%v), want %q", got, err, want)
			}
		}
		holds(first)
		go s.follow(t.Context())
		for _, row := range []struct {
			name         string
			change       func()
			faults, ends int
			secret       string
		}{
			{"too short a secret", func() { write("short") }, 1, 0, first},
			{"a new one", func() { write(second) }, 1, 1, second},
			{"none", func() { os.Remove(path) }, 2, 1, second},
			{"one again", func() { write(first) }, 2, 2, first},
		} {
			row.change()
			time.Sleep(3 * lookEvery) // the test's own time
			synctest.Wait()
			if faults, ends := strings.Count(text.String(), "[ERROR]"), strings.Count(text.String(), "can be read again"); faults != row.faults || ends != row.ends {
				t.Errorf("%s: told %d times, and %d times that it is over; want %d and %d:\n%s", row.name, faults, ends, row.faults, row.ends, text.String())
			}
			holds(row.secret)
		}
	})
}

func TestSecurity_missingFileIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	s := securityOf(config.Config{SecretFile: path}, hclog.NewNullLogger())
	if got, err := s.Secrets(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("without its file the secret is %q (%v), want an error that names %s", got, err, path)
	}
}
