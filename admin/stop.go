package admin

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/millrace/millrace/cluster/catalog"
)

// inSyncChunks is how far a follower may be behind and count as in sync: what is
// under way to it while the stream is written.
const inSyncChunks = 256

// StopCheck says what would be without a node.
type StopCheck struct {
	Node string `json:"node"`
	Safe bool   `json:"safe"` // metadata and all streams would go on
	// Metadata is why they could not change any more; empty: they could.
	Metadata string `json:"metadata,omitempty"`
	// Streams that would be without a majority in sync, and why.
	Streams []string `json:"streams"`
	Checked int      `json:"checked"` // streams that have a replica there
}

// stopCheck looks whether a node may stop: it counts the replicas that are in
// sync on other nodes, and the metadata's voters.
func (s *Server) stopCheck(w http.ResponseWriter, req *http.Request) error {
	node := pathName(req, "node")
	if !s.isMember(node) {
		return fmt.Errorf("%w: %q", catalog.ErrNodeMissing, node)
	}
	check := StopCheck{Node: node, Streams: []string{}}
	up := map[string]bool{}
	check.Metadata = metadataWithout(s.membership.Overview(req.Context()), node, up)
	var there []*catalog.Stream
	for stream := range s.metadata.View().Streams() {
		if votes(stream, node) {
			there = append(there, stream)
		}
	}
	check.Checked = len(there)
	for i, st := range s.views(req, there) {
		if why := streamWithout(there[i], &st, node, up); why != "" {
			check.Streams = append(check.Streams, st.Name+": "+why)
		}
	}
	check.Safe = check.Metadata == "" && len(check.Streams) == 0
	writeJSON(w, http.StatusOK, check)
	return nil
}

func votes(stream *catalog.Stream, node string) bool {
	for _, voter := range stream.Voters() {
		if string(voter) == node {
			return true
		}
	}
	return false
}

// metadataWithout says why the metadata could not change without a node, and
// notes who is up.
func metadataWithout(c Cluster, node string, up map[string]bool) string {
	voters, left := 0, []string{}
	mine := false
	for _, m := range c.Members {
		up[m.Node] = m.State == memberUp
		if !m.Voter {
			continue
		}
		voters++
		mine = mine || m.Node == node
		if m.Node != node && up[m.Node] {
			left = append(left, m.Node)
		}
	}
	switch need := voters/2 + 1; {
	case !c.Seen:
		return "nobody leads the metadata now"
	case mine && len(left) < need:
		return fmt.Sprintf("%d of %d voters must be up; without it %s", need, voters, only(left))
	}
	return ""
}

// streamWithout says why a stream would lack a majority without a node. A
// follower counts by what the leader says of it.
func streamWithout(stream *catalog.Stream, st *Stream, node string, up map[string]bool) string {
	if st.Leader == "" || st.FiguresOf != st.Leader {
		return "its leader does not answer"
	}
	behind := map[string]uint64{st.Leader: 0}
	for _, f := range st.Followers {
		if f.Linked {
			behind[f.Node] = f.Behind
		}
	}
	voters := stream.Voters()
	var left []string
	for _, r := range stream.Replicas {
		name := string(r.Node)
		chunks, linked := behind[name]
		if r.Voter && !r.Aside && name != node && up[name] && linked && chunks <= inSyncChunks {
			left = append(left, name)
		}
	}
	if need := len(voters)/2 + 1; len(left) < need {
		return fmt.Sprintf("%d of %d replicas must be in sync; without it %s", need, len(voters), only(left))
	}
	return ""
}

func only(left []string) string {
	if len(left) == 0 {
		return "none is"
	}
	return "only " + strings.Join(left, ", ") + " would be"
}
