package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

const modulePath = "github.com/millrace/millrace"

// Binary returns the path of the millrace binary: the one that MILLRACE_BINARY
// names, or one that is built once for the calling process.
func Binary() (string, error) { return build() }

var build = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("MILLRACE_BINARY"); path != "" {
		return filepath.Abs(path)
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", modulePath).Output()
	if err != nil {
		return "", fmt.Errorf("find the module %s: %w", modulePath, err)
	}
	dir, err := os.MkdirTemp("", "millrace-binary-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "millrace")
	compile := exec.Command("go", "build", "-o", path, "./cmd/millrace")
	compile.Dir = strings.TrimSpace(string(root))
	if out, err := compile.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build millrace: %w\n%s", err, out)
	}
	return path, nil
})
