package catalog

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares with a file in testdata, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs: written\n%s\nwant\n%s", path, got, want)
	}
}

// story is one command of each kind, in an order in which all are carried out.
func story() []Body {
	full := newStream("full", "n2", "n1")
	full.Arguments = Arguments{
		MaxLengthBytes: Given(1000), MaxAge: "7D", SegmentBytes: Given(500_000_000), InitialClusterSize: Given(2),
		LeaderLocator: "least-leaders", FilterBytes: Given(16),
	}
	full.Creator = "ada"
	plain, part := newStream("plain", "n1"), newStream("super-0", "n1")
	return []Body{
		&CreateVHost{Name: "/"},
		&PutNode{ID: "n1", Disk: "d1", Endpoints: Endpoints{"h1:5552", "h1:5551", "h1:7080", "h1:7081", "h1:7946"}, Rack: "r", Version: "0.1.0"},
		&PutNode{ID: "n2", Disk: "d2"},
		&GiveUpNodes{Keep: "n1"},
		&PutNode{ID: "n2", Disk: "d2"},
		&PutNode{ID: "n3", Disk: "d3"},
		&PutUser{Name: "ada", Hash: "$argon2id$x", Tags: []string{"administrator"}, New: true},
		&PutUser{Name: "bob", Hash: "h"},
		&SetPermission{VHost: "/", User: "ada", Configure: ".*", Write: "^o", Read: ""},
		&SetPermission{VHost: "/", User: "bob"},
		&ClearPermission{VHost: "/", User: "bob"},
		&DeleteUser{Name: "bob"},
		&CreateStreams{Streams: []NewStream{full, plain}},
		&AssignLeaders{Leaders: []Assign{{full.Incarnation, 1, "n2", 12345678901234567890, 1}}},
		&AddReplicas{Replicas: []Added{{Stream: full.Incarnation, Node: "n3"}}},
		&RetireReplicas{Replicas: []Retired{{full.Incarnation, "n1", false}, {full.Incarnation, "n2", true}}},
		&ClearReplicas{Replicas: []Cleared{{full.Incarnation, "n3", 2, 1}}},
		&ChangeVoters{[]VoterChange{{full.Incarnation, 1, 3, "n3", 2, true}}},
		&ChangeVoters{[]VoterChange{{full.Incarnation, 1, 4, "n1", 0, false}}},
		&RemoveReplicas{[]Removed{{full.Incarnation, "n1", 0}}},
		&TransferLeaders{[]Transfer{{full.Incarnation, "n3"}}},
		&RegisterReplicas{Node: "n3", Streams: []Registered{{full.Incarnation, 2}}},
		&GrantEpochs{Streams: []Grant{{full.Incarnation, 2, "n3"}, {plain.Incarnation, 2, ""}}},
		&SetRetention{"/", "full", full.Incarnation, RetentionChange{MaxLengthBytes: new(int64), MaxAge: &[]string{"2h"}[0]}},
		&DeleteStreams{Streams: []OldStream{{"/", "plain", plain.Incarnation}}},
		&CreateSuperStream{VHost: "/", Name: "super", Partitions: []NewPartition{{part, "k"}}},
		&CreateVHost{Name: "gone", Owner: "ada"},
		&DeleteVHost{Name: "gone"},
		&CreateSuperStream{VHost: "/", Name: "super2"},
		&DeleteSuperStream{VHost: "/", Name: "super2"},
		&JoinGroup{GroupRef{"/", "full", "app"}, 1, MemberID{"n1", "c1", 7}},
		&JoinGroup{GroupRef{"/", "full", "app"}, 1, MemberID{"n2", "c2", 0}},
		&StoppedMember{GroupRef{"/", "full", "app"}, MemberID{"n1", "c1", 7}},
		&LeaveGroups{Group: GroupRef{"/", "full", "app"}, Member: MemberID{"n1", "c1", 7}},
		&JoinGroup{GroupRef{"/", "full", "app"}, 1, MemberID{"n1", "c3", 1}},
		&ReachMembers{"n1", Disconnected},
		&JoinGroup{GroupRef{"/", "full", "plain"}, Plain, MemberID{"n1", "c3", 2}},
		&ActivateGroup{GroupRef{"/", "full", "plain"}},
		&LeaveGroups{Node: "n1", Connections: []string{"c9"}},
		&PutNode{ID: "n4", Disk: "d4", Replace: true},
		&MarkNode{ID: "n4", Draining: true, Leaving: true},
		&RemoveNode{ID: "n4"},
		&ChangeUser{Name: "ada", Tags: &[]string{"monitoring", "administrator", "monitoring"}},
		&ChangeUser{Name: "ada", Hash: &[]string{"h2"}[0]},
		&SetGossipKey{Key: bytes.Repeat([]byte{7}, gossipKeyBytes)},
		&ChangeGroups{[]GroupChange{
			{Join, GroupRef{"/", "full", "app"}, 1, MemberID{"n2", "c4", 7}},
			{Leave, GroupRef{"/", "full", "app"}, 0, MemberID{"n2", "c2", 0}},
			{Stopped, GroupRef{"/", "full", "plain"}, 0, MemberID{"n1", "c3", 2}},
		}},
	}
}

// The JSON of each command and of the state behind them is what it was: nodes
// of two versions read each other's commands, and old data stays readable.
func TestGolden(t *testing.T) {
	w := newWorld(t)
	w.state = New()
	var lines bytes.Buffer
	kinds := map[string]bool{}
	for i, b := range story() {
		kinds[b.kind()] = true
		c := Command{Request: fmt.Sprintf("request-%d", i), At: 1_700_000_000_000, Body: b}
		lines.Write(c.Encode())
		lines.WriteByte('\n')
		next, result, _, err := w.state.Apply(c.Encode())
		if err != nil || result.Err() != nil {
			t.Fatalf("%s: %v, %v", c.Encode(), err, result.Err())
		}
		w.state = next
	}
	for kind := range bodies {
		if !kinds[kind] {
			t.Errorf("no golden form of %s", kind)
		}
	}
	golden(t, "commands.jsonl", lines.Bytes())
	golden(t, "snapshot.json", append(w.state.Encode(), '\n'))
}

func TestGolden_applies(t *testing.T) {
	commands, err := os.ReadFile("testdata/commands.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	s := New()
	for line := range bytes.Lines(commands) {
		s, _, _ = apply(t, s, line)
	}
	golden(t, "snapshot.json", append(s.Encode(), '\n'))
	restored, err := Restore(s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "snapshot.json", append(restored.Encode(), '\n'))
	checkState(t, restored)
}

// What a later version wrote, or nobody did, stops the node.
func TestDecode_refusesWhatItDoesNotKnow(t *testing.T) {
	for _, row := range []struct {
		name, command string
		want          error
	}{
		{"unknown type", `{"v":1,"type":"stream.polish","at":1,"body":{}}`, ErrUnknownCommand},
		{"newer version", `{"v":3,"type":"vhost.create","at":1,"body":{"name":"a"}}`, ErrNewerVersion},
		{"newer version of an unknown type", `{"v":3,"type":"stream.polish","at":1,"body":{}}`, ErrNewerVersion},
		{"no version", `{"type":"vhost.create","at":1,"body":{"name":"a"}}`, ErrMalformed},
		{"unknown field", `{"v":1,"type":"vhost.create","at":1,"body":{"name":"a","color":"red"}}`, ErrMalformed},
		{"wrong type of a field", `{"v":1,"type":"vhost.create","at":1,"body":{"name":1}}`, ErrMalformed},
		{"no body", `{"v":1,"type":"vhost.create","at":1}`, ErrMalformed},
		{"bad incarnation", `{"v":1,"type":"streams.delete","at":1,"body":{"streams":[{"incarnation":"12"}]}}`, ErrMalformed},
		{"not JSON", `hello`, ErrMalformed},
		{"nothing", ``, ErrMalformed},
		{"cut short", `{"v":1,"type":"vhost.create","at":1,"body":{"na`, ErrMalformed},
	} {
		s := New()
		next, _, changes, err := s.Apply([]byte(row.command))
		if !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", row.name, err, row.want)
		}
		if next != s || changes != nil {
			t.Errorf("%s: the state changed", row.name)
		}
		if errors.Is(err, ErrNewerVersion) && !strings.Contains(err.Error(), "upgrade") {
			t.Errorf("%s: the error does not say what to do: %v", row.name, err)
		}
	}
}

func TestRestore_refuses(t *testing.T) {
	w := newWorld(t, "n1")
	w.stream("s", "n1")
	good := string(w.state.Encode())
	for _, row := range []struct {
		name, old, new string
		want           error
	}{
		{"newer format", `"format":1`, `"format":2`, ErrNewerVersion},
		{"unknown field", `"format":1`, `"format":1,"color":"red"`, ErrMalformed},
		{"stream without replicas", `"replicas":[{"node":"n1","voter":true}]`, `"replicas":[]`, ErrMalformed},
		{"cut short", `]}`, ``, ErrMalformed},
		{"more behind it", `]}`, `]}{}`, ErrMalformed},
	} {
		at := strings.LastIndex(good, row.old)
		if at < 0 {
			t.Fatalf("%s: %s is not in %s", row.name, row.old, good)
		}
		if _, err := Restore([]byte(good[:at] + row.new + good[at+len(row.old):])); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", row.name, err, row.want)
		}
	}
}

func TestRefusal_keepsItsSentinelThroughJSON(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range codes {
		if seen[c.code] {
			t.Errorf("code %s names two errors", c.code)
		}
		seen[c.code] = true
		r := refuse(c.err, "because of %d", 7)
		if !errors.Is(r, c.err) || !strings.HasSuffix(r.Error(), "because of 7") {
			t.Errorf("%s: %v", c.code, r)
		}
	}
	if err := (&Refusal{Code: "of-tomorrow", Text: "x"}).Error(); err != "of-tomorrow: x" {
		t.Error(err)
	}
}

// FuzzApply: bytes never panic; what is carried out can be stored and restored
// and keeps the invariants.
func FuzzApply(f *testing.F) {
	commands, err := os.ReadFile("testdata/commands.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(commands)
	for line := range bytes.Lines(commands) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		s := New()
		for line := range bytes.Lines(input) {
			next, _, _, err := s.Apply(line)
			if err != nil && next != s {
				t.Fatal("a command that is not one changed the state")
			}
			s = next
		}
		restored, err := Restore(s.Encode())
		if err != nil {
			t.Fatalf("%v\n%s", err, s.Encode())
		}
		if !bytes.Equal(restored.Encode(), s.Encode()) {
			t.Fatalf("restored\n%s\nfrom\n%s", restored.Encode(), s.Encode())
		}
	})
}

// FuzzRestore: bytes never panic; what is taken is written back the same.
func FuzzRestore(f *testing.F) {
	shot, err := os.ReadFile("testdata/snapshot.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(shot)
	f.Add(New().Encode())
	f.Fuzz(func(t *testing.T, input []byte) {
		s, err := Restore(input)
		if err != nil {
			return
		}
		again, err := Restore(s.Encode())
		if err != nil || !bytes.Equal(again.Encode(), s.Encode()) {
			t.Fatalf("%v\n%s\n%s", err, s.Encode(), again.Encode())
		}
	})
}
