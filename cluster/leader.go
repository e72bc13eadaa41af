package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// Methods of the requests between nodes that are about metadata. The high byte
// is 1; a number is never used for anything else.
const (
	methodPropose     uint16 = 0x0101
	methodCreate      uint16 = 0x0102
	methodCreateSuper uint16 = 0x0103
	methodAwait       uint16 = 0x0104
	methodOver        uint16 = 0x0105
	methodEnter       uint16 = 0x0106
	methodTransfer    uint16 = 0x0107
	methodRemove      uint16 = 0x0108
	methodMembers     uint16 = 0x0109
	methodBarrier     uint16 = 0x010a
	// methodWho is answered by every node for itself.
	methodWho uint16 = 0x0110
)

// Statuses of their answers.
const (
	statusDone      uint16 = 0
	statusElsewhere uint16 = 1 // this node does not lead; the body names who does, if known
	statusFailed    uint16 = 2 // the body is a failure
)

// failure is an error on its way between nodes: a refusal of the catalog, or one
// of this package's conditions with its text.
type failure struct {
	Refusal *catalog.Refusal `json:"refusal,omitempty"`
	Code    string           `json:"code,omitempty"`
	Text    string           `json:"text,omitempty"`
}

// failureCodes are the conditions that keep their meaning between nodes. Of an
// error that is several, the first of them counts: the reason goes before the
// vain wait for its end.
var failureCodes = []struct {
	code string
	is   error
}{
	{"removed", ErrRemoved}, {"twin", ErrTwin}, {"other-cluster", ErrOtherCluster}, {"unsafe", catalog.ErrUnsafe},
	{"node-missing", catalog.ErrNodeMissing}, {"no-leader", ErrNoLeader}, {"unavailable", ErrUnavailable},
	{"stopped", ErrStopped}, {"failed", ErrFailed},
}

// remoteError is a failure that came from another node.
type remoteError struct {
	is   error // nil: a condition that this node does not know
	text string
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.is }

func failureOf(err error) failure {
	var r *catalog.Refusal
	if errors.As(err, &r) {
		return failure{Refusal: r}
	}
	for _, row := range failureCodes {
		if errors.Is(err, row.is) {
			return failure{Code: row.code, Text: err.Error()}
		}
	}
	return failure{Text: err.Error()}
}

func (f failure) err() error {
	if f.Refusal != nil {
		return f.Refusal
	}
	known := &remoteError{text: f.Text}
	for _, row := range failureCodes {
		if row.code == f.Code {
			known.is = row.is
		}
	}
	return known
}

// errElsewhere: this node does not lead the metadata, or does not any more.
var errElsewhere = errors.New("this node does not lead the metadata")

// retryable: the call was not carried out, or nobody knows whether it was; the
// calls of this package may be repeated.
func retryable(err error) bool {
	return errors.Is(err, errElsewhere) || errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipLost) ||
		errors.Is(err, raft.ErrEnqueueTimeout) || errors.Is(err, raft.ErrLeadershipTransferInProgress) ||
		errors.Is(err, raft.ErrRaftShutdown) || errors.Is(err, raft.ErrAbortedByRestore)
}

// serve is one method as other nodes call it.
type serve func(ctx context.Context, body []byte) (answer any, err error)

// method makes a serve of a function.
func method[Q, A any](here func(context.Context, Q) (A, error)) serve {
	return func(ctx context.Context, body []byte) (any, error) {
		var q Q
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, fmt.Errorf("request can't be read: %w", err)
		}
		return here(ctx, q)
	}
}

// reply is an answer with how far the catalog of the node was that gave it: who
// asked then sees at least that.
type reply struct {
	Index  uint64          `json:"index"`
	Answer json.RawMessage `json:"answer"`
}

// Asked is one of Host's. Only the leader answers methods other than who.
func (c *Cluster) Asked(ctx context.Context, _ protocol.NodeID, number uint16, body []byte) (uint16, []byte) {
	if number == methodWho {
		return statusDone, encode(c.who())
	}
	serve := c.methods[number]
	if serve == nil {
		return statusFailed, encode(failure{Text: fmt.Sprintf("this node knows no request %#x; it may be of an older version", number)})
	}
	if !c.started.Load() {
		return statusElsewhere, nil
	}
	if !c.leads() {
		leader, _ := c.Leader()
		return statusElsewhere, []byte(leader)
	}
	answer, err := serve(ctx, body)
	switch {
	case retryable(err):
		return statusElsewhere, nil
	case err != nil:
		return statusFailed, encode(failureOf(err))
	}
	c.spread.upTo(c.meta.shown.at())
	return statusDone, encode(reply{c.meta.shown.at(), encode(answer)})
}

// encode is JSON of what can always be encoded.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("cluster: encode %T: %v", v, err))
	}
	return b
}

// atLeader has a call carried out by the leader of the metadata, wherever that
// is, again and again until somebody answers. Afterwards View shows at least
// what the leader's did.
func atLeader[Q, A any](ctx context.Context, c *Cluster, number uint16, q Q, here func(context.Context, Q) (A, error)) (A, error) {
	var none A
	next := protocol.NodeID("")
	for {
		var answer A
		var err error
		if c.config.Network == nil || c.leads() {
			answer, err = here(ctx, q)
		} else {
			next, err = c.askLeader(ctx, next, number, q, &answer)
		}
		if err == nil {
			return answer, nil
		}
		if failure := c.Err(); failure != nil {
			return none, failure // raft's own errors don't wrap the store's
		}
		if !retryable(err) {
			return none, err
		}
		if err := c.pause(ctx, err); err != nil {
			return none, err
		}
	}
}

// askLeader asks whom raft calls the leader, or else who, or anybody, and
// returns whom to try next.
func (c *Cluster) askLeader(ctx context.Context, who protocol.NodeID, number uint16, q, answer any) (protocol.NodeID, error) {
	if leader, ok := c.Leader(); ok && leader != c.config.Node {
		who = leader
	}
	if who == "" || who == c.config.Node {
		who = c.anybody()
	}
	if who == "" {
		return "", fmt.Errorf("%w, and no other node is known", errElsewhere)
	}
	status, body, err := c.config.Network.Ask(ctx, who, number, encode(q))
	if err != nil {
		return "", fmt.Errorf("%w: ask %s: %w", errElsewhere, who, err)
	}
	switch status {
	case statusElsewhere:
		return protocol.NodeID(body), errElsewhere
	case statusDone:
		var r reply
		if err := json.Unmarshal(body, &r); err != nil {
			return "", fmt.Errorf("answer of %s can't be read: %w", who, err)
		}
		if err := json.Unmarshal(r.Answer, answer); err != nil {
			return "", fmt.Errorf("answer of %s can't be read: %w", who, err)
		}
		return who, c.seeUpTo(ctx, r.Index)
	}
	var f failure
	if err := json.Unmarshal(body, &f); err != nil || status != statusFailed {
		return "", fmt.Errorf("answer of %s can't be read (status %d)", who, status)
	}
	return who, f.err()
}

// seeUpTo waits until View shows what is applied at an index.
func (c *Cluster) seeUpTo(ctx context.Context, index uint64) error {
	if err := c.meta.shown.await(ctx, index); err != nil {
		return fmt.Errorf("%w: it was done, but this node does not see it yet: %w", ErrUnavailable, err)
	}
	return nil
}

// anybody returns other nodes in turn.
func (c *Cluster) anybody() protocol.NodeID {
	others := c.book.nodes()
	others = slices.DeleteFunc(others, func(n protocol.NodeID) bool { return n == c.config.Node })
	if len(others) == 0 {
		return ""
	}
	return others[int(c.turn.Add(1))%len(others)]
}

// leads tells whether this node leads the metadata, as far as it knows.
func (c *Cluster) leads() bool { return c.meta.instance().State() == raft.Leader }

// Leader returns who leads the metadata, as far as this node knows.
func (c *Cluster) Leader() (protocol.NodeID, bool) {
	_, id := c.meta.instance().LeaderWithID()
	return protocol.NodeID(id), id != ""
}

// retryPause is between two attempts to reach the raft leader.
const retryPause = 10 * time.Millisecond

// pause waits before a further attempt; cause says what the last one met.
func (c *Cluster) pause(ctx context.Context, cause error) error {
	return c.pauseFor(ctx, retryPause, cause)
}

func (c *Cluster) pauseFor(ctx context.Context, d time.Duration, cause error) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w (last attempt: %w)", ErrUnavailable, ctx.Err(), cause)
	case <-c.failure.ch:
		return c.Err()
	case <-c.done.Done():
		return ErrStopped
	}
}
