package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// world is a state that tests drive by commands.
type world struct {
	t       *testing.T
	state   *State
	changes []Change
	now     chunk.Timestamp
}

// newWorld has virtual host "/" and the given nodes.
func newWorld(t *testing.T, nodes ...protocol.NodeID) *world {
	w := &world{t: t, state: New(), now: 1_700_000_000_000}
	w.ok(&CreateVHost{Name: "/"})
	for _, id := range nodes {
		w.ok(&PutNode{ID: id, Disk: "disk-" + string(id)})
	}
	return w
}

// do carries a body out by way of its JSON form.
func (w *world) do(b Body) Result {
	w.t.Helper()
	w.now++
	next, result, changes, err := w.state.Apply(Command{At: w.now, Body: b}.Encode())
	if err != nil {
		w.t.Fatalf("%s: %v", b.kind(), err)
	}
	w.state, w.changes = next, changes
	return result
}

func (w *world) ok(b Body) Result {
	w.t.Helper()
	r := w.do(b)
	if err := r.Err(); err != nil {
		w.t.Fatalf("%s %+v: %v", b.kind(), b, err)
	}
	return r
}

func (w *world) refused(b Body, want error) {
	w.t.Helper()
	before := w.state.Encode()
	if err := w.do(b).Err(); !errors.Is(err, want) {
		w.t.Errorf("%s %+v: %v, want %v", b.kind(), b, err, want)
	}
	after := *w.state
	after.version-- // a refusal counts, and does nothing else
	if !bytes.Equal(after.Encode(), before) || len(w.changes) != 0 {
		w.t.Errorf("%s was refused and changed the state", b.kind())
	}
}

// stream creates a stream in "/" on the given nodes and returns it.
func (w *world) stream(name string, nodes ...protocol.NodeID) *Stream {
	w.t.Helper()
	w.ok(&CreateStreams{Streams: []NewStream{newStream(name, nodes...)}})
	return w.get(name)
}

// led is stream with a leader on the first node.
func (w *world) led(name string, nodes ...protocol.NodeID) *Stream {
	w.t.Helper()
	s := w.stream(name, nodes...)
	w.elect(s, nodes[0])
	return w.get(name)
}

func (w *world) elect(s *Stream, node protocol.NodeID) {
	w.t.Helper()
	w.ok(&AssignLeaders{Leaders: []Assign{{
		Stream: s.Incarnation, Epoch: s.Epoch, Node: node, Run: 1, ConfigVersion: s.ConfigVersion,
	}}})
}

func (w *world) get(name string) *Stream {
	w.t.Helper()
	s, ok := w.state.Stream("/", name)
	if !ok {
		w.t.Fatalf("stream %q is gone", name)
	}
	return s
}

func newStream(name string, nodes ...protocol.NodeID) NewStream {
	inc := chunk.Incarnation(14695981039346656037)
	for _, b := range []byte(name) {
		inc = (inc ^ chunk.Incarnation(b)) * 1099511628211
	}
	return NewStream{VHost: "/", Name: name, Incarnation: inc, Replicas: nodes, Preferred: nodes[0]}
}

// shape writes a stream's replicas and leader as one line: *leader, l learner,
// - set aside, ! leaving.
func shape(s *Stream) string {
	var b []byte
	for _, r := range s.Replicas {
		if len(b) > 0 {
			b = append(b, ' ')
		}
		if s.Leader.Node == r.Node {
			b = append(b, '*')
		}
		b = append(b, r.Node...)
		if !r.Voter {
			b = append(b, 'l')
		}
		if r.Aside {
			b = append(b, '-')
		}
		if r.Leaving {
			b = append(b, '!')
		}
	}
	return fmt.Sprintf("e%d v%d %s", s.Epoch, s.ConfigVersion, b)
}

func (w *world) shape(name, want string) {
	w.t.Helper()
	if got := shape(w.get(name)); got != want {
		w.t.Errorf("%s is %q, want %q", name, got, want)
	}
}

func names(streams []*Stream) []string {
	var n []string
	for _, s := range streams {
		n = append(n, s.Name)
	}
	return n
}

func (w *world) streamsOf(vhost string) []string {
	return names(slices.Collect(w.state.StreamsOf(vhost)))
}
