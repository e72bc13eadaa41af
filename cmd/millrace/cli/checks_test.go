package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/admin"
)

// What each check makes of what it is told.
func TestChecks_levels(t *testing.T) {
	n := func(v uint64) *uint64 { return &v }
	ms := func(v int64) *int64 { return &v }
	whole := []admin.Replica{{Node: "n1", Voter: true, NextOffset: n(1)}, {Node: "n2", Voter: true, NextOffset: n(1)}}
	led := admin.Stream{Leader: "n1", FiguresOf: "n1"}
	cluster := func(c admin.Cluster) func(*finding) {
		return func(f *finding) { judgeCluster(f, &c) }
	}
	stream := func(s admin.Stream, replicas ...admin.Replica) func(*finding) {
		return func(f *finding) { judgeStream(f, &s, replicas) }
	}
	disk := func(level string) func(*finding) {
		return func(f *finding) { _ = judgeDisk(f, &admin.Status{Node: "n1", Disk: admin.Disk{Level: level}}) }
	}
	lag := func(limits lagLimits) func(*finding) {
		list := []laggard{{Stream: "s", Reference: admin.Reference{Reference: "app", Lag: n(10), LagMS: ms(60_000)}}}
		return func(f *finding) { judgeLag(f, list, "", limits) }
	}
	address := map[string]string{"stream": "n1:5552"}
	advertised := func(state string, err error) func(*finding) {
		return func(f *finding) {
			judgeAdvertised(f, []admin.Member{{Node: "n1", State: state, Addresses: address}}, []error{err})
		}
	}
	for _, row := range []struct {
		name  string
		judge func(*finding)
		level int
		says  string
	}{
		{"a whole cluster", cluster(admin.Cluster{Seen: true}), 0, ""},
		{"a node down", cluster(admin.Cluster{Seen: true, Problems: []string{"down: n2"}}), checkWarning, "down: n2"},
		{"a stream without leader", cluster(admin.Cluster{Seen: true, WithoutLeader: 1, Problems: []string{"x"}}), checkCritical, "x"},
		{"no metadata", cluster(admin.Cluster{Problems: []string{"x"}}), checkCritical, "x"},
		{"a removed node", cluster(admin.Cluster{Removed: true, Seen: true, Problems: []string{"x"}}), checkCritical, "x"},
		{"a whole stream", stream(led, whole...), 0, ""},
		{"no leader", stream(admin.Stream{}, whole...), checkCritical, "no leader"},
		{"a silent leader", stream(admin.Stream{Leader: "n1", FiguresOf: "n2"}, whole...), checkCritical, "n1 does not answer"},
		{"publishers stopped", stream(admin.Stream{Leader: "n1", FiguresOf: "n1", Figures: admin.Figures{PublishersStopped: true}}, whole...), checkCritical, "stopped"},
		{"a replica down", stream(led, whole[0], admin.Replica{Node: "n2", Voter: true}), checkWarning, "n2 does not answer"},
		{"a replica that catches up", stream(led, whole[0], admin.Replica{Node: "n2", State: "catching up", NextOffset: n(0)}), checkWarning, "catching up"},
		{"damage", stream(led, whole[0], admin.Replica{Node: "n2", Voter: true, NextOffset: n(1), Damaged: n(2)}), checkWarning, "2 segments damaged"},
		{"room", disk("ok"), 0, ""},
		{"little room", disk("low"), checkWarning, "n1"},
		{"no room", disk("alarm"), checkCritical, "publishers are stopped"},
		{"no limit", lag(lagLimits{}), 0, ""},
		{"behind less", lag(lagLimits{warning: 11, critical: 20}), 0, ""},
		{"behind more", lag(lagLimits{warning: 10, critical: 20}), checkWarning, "app on s is 10 messages behind, 1m"},
		{"behind by far", lag(lagLimits{warning: 5, critical: 10}), checkCritical, "app on s"},
		{"behind in time", lag(lagLimits{critical: 100, criticalAge: 60_000_000_000}), checkCritical, "app on s"},
		{"reached", advertised("up", nil), 0, ""},
		{"not reached", advertised("up", errors.New("no")), checkCritical, "n1:5552: no"},
		{"not there", advertised("down", errors.New("no")), checkWarning, "n1 is down"},
	} {
		var f finding
		row.judge(&f)
		if got := strings.Join(f.Reasons, "; "); f.Level != row.level || (got == "") != (row.level == 0) || !strings.Contains(got, row.says) || f.Summary == "" || len(f.Figures) == 0 {
			t.Errorf("%s: %+v, want level %d that says %q", row.name, f, row.level, row.says)
		}
	}
}

// What is critical stays so, whatever nobody knows.
func TestFinding_worstCounts(t *testing.T) {
	var f finding
	for _, step := range [][2]int{{checkWarning, checkWarning}, {checkUnknown, checkUnknown}, {checkWarning, checkUnknown}, {checkCritical, checkCritical}, {checkUnknown, checkCritical}} {
		if f.because(step[0], "x"); f.Level != step[1] {
			t.Errorf("after %s it is %s, want %s", findingStates[step[0]], findingStates[f.Level], findingStates[step[1]])
		}
	}
}
