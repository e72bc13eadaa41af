package harness

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// namespace is the room of one node: a network of its own, with a plug by which
// it reaches the other nodes and a door for clients. The test's process holds
// the other end of both.
//
//	198.19.K.I   plug   other nodes, by way of Wires
//	198.18.K.…   door   clients, in the test's own network
type namespace struct {
	name string // of the namespace
	node string
	net  byte // K, the same for all rooms of a process
	at   int  // I, from 1 on
	plug *os.File
	out  bool // the plug is
}

const (
	plugName = "plug"
	doorName = "door"
	// namespaces is where ip keeps them by name.
	namespaces = "/run/netns"
)

// NoNamespaces says why this process can't give nodes networks of their own, ""
// if it can.
func NoNamespaces() string {
	if os.Getuid() != 0 {
		return "network namespaces need root"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return "network namespaces need the ip tool (iproute2)"
	}
	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return fmt.Sprintf("lines between network namespaces need TAP devices: %v", err)
	}
	_ = tun.Close()
	trial := fmt.Sprintf("mr%dtry", os.Getpid())
	if err := ip("netns", "add", trial); err != nil {
		return err.Error()
	}
	if err := ip("netns", "del", trial); err != nil {
		return err.Error()
	}
	return ""
}

// StartInNamespaces is StartCluster with each node on a machine of its own, as
// far as it can tell, and a network between them that can be cut, in each
// direction for itself. Nodes prove themselves by certificates that their own
// program issued, or with secret by a shared one alone. It needs what
// NoNamespaces names.
func StartInNamespaces(t testing.TB, n int, secret bool, args ...string) (*Cluster, *Wires) {
	t.Helper()
	c, w := PrepareInNamespaces(t, n, secret, args...)
	c.Restart(c.Nodes...)
	return c, w
}

// PrepareInNamespaces is StartInNamespaces with nodes that nobody has started yet.
func PrepareInNamespaces(t testing.TB, n int, secret bool, args ...string) (*Cluster, *Wires) {
	t.Helper()
	sweep(t)
	var rooms []*namespace
	for i := range n {
		room, err := openNamespace(t, i)
		if err != nil {
			t.Fatal(err)
		}
		rooms = append(rooms, room)
	}
	for _, room := range rooms {
		if err := room.acquaint(rooms); err != nil {
			t.Fatal(err)
		}
	}
	w := joinPlugs(t, rooms)
	t.Cleanup(func() { // before the rooms go, after the nodes
		for _, room := range rooms {
			_ = room.plug.Close()
		}
		w.ended.Wait()
	})
	var places []place
	for _, room := range rooms {
		places = append(places, place{
			stream: net.JoinHostPort(room.door(), "5552"), http: net.JoinHostPort(room.door(), "7080"), host: room.door(),
			node: net.JoinHostPort(room.addr(), "7081"), advertised: net.JoinHostPort(room.addr(), "7081"), gossip: net.JoinHostPort(room.addr(), "7946"),
			enter: []string{"ip", "netns", "exec", room.name},
		})
	}
	prove := issued
	if secret {
		prove = sharedSecret
	}
	return prepareCluster(t, places, prove, append([]string{"--stream-loopback-users", "nobody"}, args...)), w
}

// issued is the identity by certificates that the program itself issues.
func issued(c *Cluster, dir string) func(node string) []string {
	t := c.t
	t.Helper()
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
			t.Fatalf("millrace %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	run("cert", "init-ca", "namespaces", "--out", dir)
	return func(node string) []string {
		run("cert", "issue", node, "--ca", dir, "--out", dir)
		return []string{
			"--node-tls-cert", filepath.Join(dir, node+".crt"), "--node-tls-key", filepath.Join(dir, node+".key"),
			"--node-tls-ca", filepath.Join(dir, "ca.crt"),
		}
	}
}

// openNamespace makes node i's room, which goes when the test ends.
func openNamespace(t testing.TB, i int) (*namespace, error) {
	n := &namespace{name: fmt.Sprintf("mr%d%s", os.Getpid(), nodeName(i)), node: nodeName(i), net: byte(os.Getpid()), at: i + 1}
	if err := ip("netns", "add", n.name); err != nil {
		return nil, err
	}
	mine := n.name + "d"
	t.Cleanup(func() { // the door first: with the namespace it would go at leisure
		if err := errors.Join(ip("link", "del", mine), ip("netns", "del", n.name)); err != nil {
			t.Error(err)
		}
	})
	var err error
	if n.plug, err = openPlug(n.name); err != nil {
		return nil, fmt.Errorf("plug of %s: %w", n.name, err)
	}
	return n, errors.Join(
		ip("link", "add", mine, "type", "veth", "peer", "name", doorName, "netns", n.name),
		ip("addr", "add", fmt.Sprintf("198.18.%d.%d/30", n.net, 4*n.at+1), "dev", mine),
		ip("link", "set", mine, "up"),
		ip("-n", n.name, "link", "set", "lo", "up"),
		ip("-n", n.name, "addr", "add", n.door()+"/30", "dev", doorName),
		ip("-n", n.name, "link", "set", doorName, "up"),
		ip("-n", n.name, "addr", "add", n.addr()+"/24", "dev", plugName),
		ip("-n", n.name, "link", "set", plugName, "address", n.mac().String(), "mtu", strconv.Itoa(wiresMTU), "up"))
}

// acquaint tells a room where the others are: asking them would need both
// directions of a line where one may be cut.
func (n *namespace) acquaint(rooms []*namespace) error {
	var problems []error
	for _, other := range rooms {
		if other != n {
			problems = append(problems, ip("-n", n.name, "neigh", "replace", other.addr(), "lladdr", other.mac().String(), "dev", plugName, "nud", "permanent"))
		}
	}
	return errors.Join(problems...)
}

// addr is where other nodes find the node, door where clients do.
func (n *namespace) addr() string { return fmt.Sprintf("198.19.%d.%d", n.net, n.at) }
func (n *namespace) door() string { return fmt.Sprintf("198.18.%d.%d", n.net, 4*n.at+2) }

// mac is the plug's address; its last byte is the room's number.
func (n *namespace) mac() net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, byte(n.at)} }

// openPlug makes a TAP device in a namespace and returns the end that is this
// process's. Namespaces are threads' own: one enters and comes back.
func openPlug(namespace string) (plug *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var back bool
		if plug, back, err = openPlugHere(namespace); back {
			runtime.UnlockOSThread()
		} // else the thread ends with its goroutine
	}()
	<-done
	return plug, err
}

func openPlugHere(namespace string) (plug *os.File, back bool, err error) {
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, true, err
	}
	defer unix.Close(home)
	there, err := unix.Open(filepath.Join(namespaces, namespace), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, true, err
	}
	defer unix.Close(there)
	if err := unix.Setns(there, unix.CLONE_NEWNET); err != nil {
		return nil, true, err
	}
	defer func() { back = unix.Setns(home, unix.CLONE_NEWNET) == nil }()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	request, err := unix.NewIfreq(plugName)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, false, err
	}
	return os.NewFile(uintptr(fd), namespace+" "+plugName), false, nil
}

// left is what the name of a namespace says of who made it.
var left = regexp.MustCompile(`^mr(\d+)(n\d+|try)$`)

// sweep removes what processes left that were killed before they could.
func sweep(t testing.TB) {
	t.Helper()
	entries, err := os.ReadDir(namespaces)
	if err != nil {
		return // ip makes the folder with the first one
	}
	for _, e := range entries {
		found := left.FindStringSubmatch(e.Name())
		if found == nil {
			continue
		}
		maker, _ := strconv.Atoi(found[1])
		if maker != os.Getpid() && syscall.Kill(maker, 0) == nil {
			continue
		}
		t.Logf("removing namespace %s, whose maker is gone", e.Name())
		if out, err := exec.Command("ip", "netns", "pids", e.Name()).Output(); err == nil {
			for pid := range strings.FieldsSeq(string(out)) {
				if number, err := strconv.Atoi(pid); err == nil {
					_ = syscall.Kill(number, syscall.SIGKILL) // a node that was left too
				}
			}
		}
		if err := ip("netns", "del", e.Name()); err != nil {
			t.Error(err)
		}
	}
}

// ip runs the tool of that name.
func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
