package harness

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// readyWithin bounds how long a start may take before a test gives up: ten
// times the goal and more, since a machine may be busy.
const readyWithin = 30 * time.Second

// Node is one broker process and its data directory. Its addresses are chosen
// by the first start and kept by later ones.
type Node struct {
	t    testing.TB
	args []string
	// command is how the node is run: dev, or server as one of a Cluster.
	command string
	// enter is put in front of the command line: what leads into the node's
	// namespace, if it has one.
	enter []string
	// where are the flags with the addresses of one of a Cluster.
	where []string

	// Name is the node's in its cluster.
	Name string
	// DataDir is the node's data directory; tests may damage what is in it
	// while the node is stopped.
	DataDir string
	// Stream is host:port of the stream protocol; HTTP and Management are URLs.
	Stream, HTTP, Management string
	// Peers and Gossip are host:port between nodes, of one of a Cluster.
	Peers, Gossip string
	// Ready is how long the last start took, from the process's start to its
	// ready line.
	Ready time.Duration

	process *exec.Cmd
	exited  chan struct{} // closed when the process has been waited for
	log     *lockedBuffer
	before  int // length of log when the last start began
}

// Start starts `millrace dev` with free ports in a new data directory and
// waits until it is ready. More args are added to the command line; those of the
// form MILLRACE_NAME=value go into the node's environment. The node is killed when
// the test ends; if the test failed, its log is shown.
func Start(t testing.TB, args ...string) *Node {
	t.Helper()
	return StartIn(t, t.TempDir(), args...)
}

// StartIn is Start in a data directory of the caller's choice.
func StartIn(t testing.TB, dir string, args ...string) *Node {
	t.Helper()
	n := &Node{t: t, args: args, command: "dev", Name: "dev", DataDir: dir, log: &lockedBuffer{}}
	t.Cleanup(func() {
		n.Kill()
		if t.Failed() {
			t.Logf("log of the node:\n%s", n.Log())
		}
	})
	at := freePorts(t, 3)
	n.start(at[0], at[1], at[2])
	return n
}

// Restart starts the node again on its data directory and addresses.
func (n *Node) Restart() {
	n.t.Helper()
	n.start(n.Stream, hostPort(n.HTTP), hostPort(n.Management))
}

func (n *Node) start(stream, http, management string) {
	n.t.Helper()
	if err := n.tryStart(stream, http, management); err != nil {
		n.t.Fatalf("start a node: %v\n%s", err, n.Log())
	}
}

// readyLine is what `dev` prints once clients are served.
var readyLine = regexp.MustCompile(`ready after .*streams (\S+).*page http://(\S+).*management http://(\S+)`)

func (n *Node) tryStart(stream, http, management string) error {
	ready, err := n.launch(stream, http, management)
	if err != nil {
		return err
	}
	return ready()
}

// Launch starts the node again without waiting until it is ready: that is ready's
// part.
func (n *Node) Launch() (ready func() error, err error) {
	return n.launch(n.Stream, hostPort(n.HTTP), hostPort(n.Management))
}

func (n *Node) launch(stream, http, management string) (awaitReady func() error, err error) {
	path, err := Binary()
	if err != nil {
		return nil, err
	}
	line := append(slices.Clone(n.enter), path)
	line = append(line, n.command, "--data-dir", n.DataDir, "--stream-addr", stream, "--http-addr", http,
		"--management-addr", management, "--node-addr", "localhost:0", "--gossip-addr", "localhost:0", "--log-level", "info")
	// How full the machine's own disk is says nothing of what is tested; tests of
	// low disks give their nodes disks and floors by flags, which come first.
	environment := append(os.Environ(), "MILLRACE_DISK__FREE_MIN=67108864", "MILLRACE_DISK__FREE_MIN_PERCENT=0")
	line = append(line, n.where...)
	for _, arg := range n.args {
		if strings.HasPrefix(arg, "MILLRACE_") {
			environment = append(environment, arg)
		} else {
			line = append(line, arg)
		}
	}
	n.process = exec.Command(line[0], line[1:]...)
	n.process.Env = environment
	n.process.Stderr, n.before = n.log, len(n.Log())
	out, err := n.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := n.process.Start(); err != nil {
		return nil, err
	}
	ready, exited, process := make(chan []string, 1), make(chan struct{}), n.process
	n.exited = exited
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			fmt.Fprintln(n.log, lines.Text())
			if found := readyLine.FindStringSubmatch(lines.Text()); found != nil {
				ready <- found
			}
		}
		_ = process.Wait() // how it ended is in ProcessState
		close(exited)
	}()
	return func() error {
		select {
		case found := <-ready:
			n.Ready = time.Since(begin)
			n.Stream, n.HTTP, n.Management = found[1], "http://"+found[2], "http://"+found[3]
			return nil
		case <-exited:
			return fmt.Errorf("it ended before it was ready: %v", process.ProcessState)
		case <-time.After(readyWithin):
			return fmt.Errorf("not ready within %v", readyWithin)
		}
	}, nil
}

// TryRestart is Restart for a node that may refuse to start: it returns why.
func (n *Node) TryRestart() error {
	return n.tryStart(n.Stream, hostPort(n.HTTP), hostPort(n.Management))
}

// Kill ends the process by SIGKILL and waits until it is gone.
func (n *Node) Kill() { n.signal(syscall.SIGKILL); n.wait() }

// Stop ends the process by SIGTERM, waits, and returns its exit code.
func (n *Node) Stop() int {
	n.signal(syscall.SIGTERM)
	n.wait()
	return n.process.ProcessState.ExitCode()
}

// ExitCode is that of the process that ended last.
func (n *Node) ExitCode() int { return n.process.ProcessState.ExitCode() }

// Pause stops the process by SIGSTOP; Continue lets it go on.
func (n *Node) Pause()    { n.signal(syscall.SIGSTOP) }
func (n *Node) Continue() { n.signal(syscall.SIGCONT) }

func (n *Node) signal(s syscall.Signal) {
	if n.process == nil || n.process.Process == nil {
		return
	}
	select {
	case <-n.exited:
	default:
		_ = n.process.Process.Signal(s) // it may just have ended
	}
}

func (n *Node) wait() {
	if n.exited == nil {
		return
	}
	select {
	case <-n.exited:
	case <-time.After(readyWithin):
		n.t.Errorf("the node did not end within %v", readyWithin)
		_ = n.process.Process.Kill()
	}
}

// Running tells whether the process lives, paused or not.
func (n *Node) Running() bool {
	if n.exited == nil {
		return false
	}
	select {
	case <-n.exited:
		return false
	default:
		return true
	}
}

// PID is the process's id.
func (n *Node) PID() int { return n.process.Process.Pid }

// Log is what the node has printed since its first start.
func (n *Node) Log() string { return n.log.String() }

// LogSinceStart is what the node has printed since its last start.
func (n *Node) LogSinceStart() string { return n.Log()[n.before:] }

// Get asks the node's HTTP API as guest and returns the body of a success.
func (n *Node) Get(path string) ([]byte, error) {
	status, body, err := ask(http.MethodGet, n.HTTP+path)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d: %s", path, status, body)
	}
	return body, err
}

// Put asks the node's HTTP API to change something, as guest.
func (n *Node) Put(path string, body any) (status int, answer []byte, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	return send(http.MethodPut, n.HTTP+path, bytes.NewReader(text))
}

// Send calls the node's HTTP API with a body (nil: none), as guest.
func (n *Node) Send(method, path string, body any) (status int, answer []byte, err error) {
	if body == nil {
		return ask(method, n.HTTP+path)
	}
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	return send(method, n.HTTP+path, bytes.NewReader(text))
}

// Post has the node's HTTP API do something, as guest.
func (n *Node) Post(path string) (status int, answer []byte, err error) {
	return ask(http.MethodPost, n.HTTP+path)
}

// Ask calls the node's HTTP API without a body, as guest.
func (n *Node) Ask(method, path string) (status int, answer []byte, err error) {
	return ask(method, n.HTTP+path)
}

// Manage calls the management port as guest.
func (n *Node) Manage(method, path string) (status int, body []byte, err error) {
	return ask(method, n.Management+path)
}

func ask(method, url string) (status int, body []byte, err error) { return send(method, url, nil) }

func send(method, url string, what io.Reader) (status int, body []byte, err error) {
	req, err := http.NewRequest(method, url, what)
	if err != nil {
		return 0, nil, err
	}
	req.SetBasicAuth("guest", "guest")
	res, err := (&http.Client{Timeout: readyWithin}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

func hostPort(url string) string { return url[len("http://"):] }

// lockedBuffer is written by the process's copier and read by tests.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
