package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/integration/harness"
)

// clusterScript is scripts/cluster.sh with a folder and ports of its own.
type clusterScript struct {
	t    *testing.T
	dir  string
	env  []string
	port int
}

func newClusterScript(t *testing.T) *clusterScript {
	t.Helper()
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	s := &clusterScript{t: t, dir: filepath.Join(t.TempDir(), "cluster"), port: freeRange(t, 30)}
	s.env = append(os.Environ(), "MILLRACE_BINARY="+binary, "MILLRACE_CLUSTER_DIR="+s.dir, fmt.Sprintf("MILLRACE_CLUSTER_PORT=%d", s.port))
	t.Cleanup(func() {
		if out, err := s.run("stop"); err != nil {
			t.Errorf("stop: %v: %s", err, out)
		}
	})
	return s
}

// freeRange returns the first of n ports in a row on loopback that nobody listens
// on, below those that the system gives out by itself.
func freeRange(t *testing.T, n int) int {
	t.Helper()
	for base := 20000 + os.Getpid()%1000*10; base < 32000; base += n {
		free := true
		for port := base; port < base+n && free; port++ {
			l, err := net.Listen("tcp", fmt.Sprintf("localhost:%d", port))
			if free = err == nil; free {
				l.Close()
			}
		}
		if free {
			return base
		}
	}
	t.Fatal("no free ports")
	return 0
}

func (s *clusterScript) run(args ...string) (string, error) {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(root, "scripts", "cluster.sh"), args...)
	cmd.Env = s.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *clusterScript) must(args ...string) string {
	s.t.Helper()
	out, err := s.run(args...)
	if err != nil {
		s.t.Fatalf("cluster.sh %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// state is what status says of a node.
func (s *clusterScript) state(node string) string {
	s.t.Helper()
	out := s.must("status")
	found := regexp.MustCompile(`(?m)^` + node + ` +(\w+)`).FindStringSubmatch(out)
	if found == nil {
		s.t.Fatalf("status names no %s:\n%s", node, out)
	}
	return found[1]
}

func TestClusterScript(t *testing.T) {
	s := newClusterScript(t)
	out := s.must("start")
	took := regexp.MustCompile(`3 nodes are ready after (\d+) ms`).FindStringSubmatch(out)
	if took == nil {
		t.Fatalf("start says\n%s", out)
	}
	ms, _ := strconv.Atoi(took[1])
	t.Logf("FIGURE scripts/cluster.sh start: ready after %d ms, goal %d ms", ms, startMax.Milliseconds())
	if ms > int(startMax.Milliseconds()) {
		t.Errorf("ready after %d ms", ms)
	}
	for _, row := range []struct {
		do    []string
		node  string
		state string
	}{
		{[]string{"kill", "1"}, "n1", "down"},
		{[]string{"pause", "n2"}, "n2", "paused"},
		{[]string{"resume", "2"}, "n2", "runs"},
		{[]string{"resume", "1"}, "n1", "runs"},
	} {
		s.must(row.do...)
		if got := s.state(row.node); got != row.state {
			t.Errorf("after %v %s is %s, want %s", row.do, row.node, got, row.state)
		}
	}
	if out := s.must("logs", "3"); !strings.Contains(out, "ready") {
		t.Errorf("the log says %s", out)
	}
	for _, bad := range [][]string{{"kill", "4"}, {"kill"}, {"start", "5"}, {"clean"}, {"start", "x"}, {"nothing"}} {
		if out, err := s.run(bad...); err == nil {
			t.Errorf("%v passes: %s", bad, out)
		}
	}
	s.must("stop")
	if got := s.state("n1"); got != "down" {
		t.Errorf("stopped, n1 is %s", got)
	}
	// A number of a dead node may be another process's by now: it is left alone.
	bystander := exec.Command("sleep", "60")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bystander.Wait() }()
	defer func() { _ = bystander.Process.Kill() }()
	text := fmt.Sprintf("%d 1\n", bystander.Process.Pid)
	if err := os.WriteFile(filepath.Join(s.dir, "n1.pid"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := s.run("kill", "1"); err == nil {
		t.Errorf("a stale number was killed: %s", out)
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the bystander is gone: %v", err)
	}
	s.must("clean")
	if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
		t.Errorf("clean left %s: %v", s.dir, err)
	}
}
