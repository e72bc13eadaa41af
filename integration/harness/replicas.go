package harness

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/millrace/millrace/admin"
)

// settledFor is how long nothing may happen to a stream before its replicas are
// taken for level.
const settledFor = 300 * time.Millisecond

// AwaitLevel waits until all replicas of a stream know the same commit, and
// nothing more comes. Somebody must have ended the traffic.
func (c *Cluster) AwaitLevel(stream string) error {
	deadline := time.Now().Add(readyWithin)
	var last, now []admin.Stream
	var err error
	since := time.Now()
	for {
		if now, err = c.figures(stream); err == nil {
			level := !slices.ContainsFunc(now, func(s admin.Stream) bool { return s.CommittedLSN != now[0].CommittedLSN })
			if !level || len(last) == 0 || last[0].CommittedLSN != now[0].CommittedLSN {
				last, since = now, time.Now()
			}
			if level && time.Since(since) > settledFor {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("stream %s: the replicas are not level after %v: %w%s", stream, readyWithin, err, commits(now))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func commits(list []admin.Stream) (text string) {
	for _, s := range list {
		text += fmt.Sprintf("; commit %d, next offset %d", s.CommittedLSN, s.NextOffset)
	}
	return text
}

// figures are those of each replica, asked on its own node.
func (c *Cluster) figures(stream string) ([]admin.Stream, error) {
	ask := func(n *Node, query string) (s admin.Stream, err error) {
		return s, n.Call(http.MethodGet, "/api/v1/streams/%2F/"+stream+query, nil, &s)
	}
	for _, n := range c.Nodes {
		if !n.Running() {
			return nil, fmt.Errorf("node %s does not run", n.Name)
		}
	}
	known, err := ask(c.Nodes[0], "")
	if err != nil {
		return nil, err
	}
	var list []admin.Stream
	for _, name := range known.Replicas {
		n := c.Named(name)
		if n == nil {
			return nil, fmt.Errorf("stream %s has a replica on %s, where no node is", stream, name)
		}
		s, err := ask(n, "?node="+name)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("stream %s has no replicas", stream)
	}
	return list, nil
}

// AwaitFollowed waits until every replica of a stream knows a commit that is at
// least what any knew when it was called.
func (c *Cluster) AwaitFollowed(stream string) error {
	var most uint64
	var list []admin.Stream
	var err error
	for deadline := time.Now().Add(readyWithin); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if list, err = c.figures(stream); err != nil {
			continue
		}
		if most == 0 {
			for _, s := range list {
				most = max(most, s.CommittedLSN)
			}
		}
		if !slices.ContainsFunc(list, func(s admin.Stream) bool { return s.CommittedLSN < most }) {
			return nil
		}
	}
	return fmt.Errorf("stream %s: not all replicas follow up to chunk %d within %v: %w%s", stream, most, readyWithin, err, commits(list))
}
