package replication

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

var (
	// ErrNotLeader: this replica does not lead the stream, or no longer.
	ErrNotLeader = errors.New("replication: not the leader")
	// ErrFenced: the publisher's reference was declared again by another
	// session, or the publisher was closed; it is gone (F4).
	ErrFenced = errors.New("replication: publisher is gone")
	// ErrReferenceInUse: another session has declared the reference, and the
	// node is told to refuse newcomers (F4).
	ErrReferenceInUse = errors.New("replication: reference is in use")
	// ErrReferenceLength: a reference is empty or longer than 255 bytes.
	ErrReferenceLength = errors.New("replication: reference must have 1 to 255 bytes")
	// ErrBacklog: as many bytes wait for a majority as a stream may have (B7).
	ErrBacklog = errors.New("replication: too many uncommitted bytes")
	// ErrStarved: the disks of so many of the stream's nodes are low that no
	// majority could take what is published.
	ErrStarved = errors.New("replication: the disks of too many of the stream's nodes are low")
	// ErrEntry: an entry fits no chunk.
	ErrEntry = errors.New("replication: entry is larger than a chunk may be")
	// ErrOvertaken: a store that was sent once more may not be the newest.
	ErrOvertaken = errors.New("replication: the offset was stored by way of another node meanwhile")
	// ErrTrackingUnknown: this replica's tracking is incomplete (F9); the
	// leader knows.
	ErrTrackingUnknown = errors.New("replication: tracking is not known here")
	// ErrUnavailable: this run of the replica is over, by damage or a failed
	// disk; Stats tells why.
	ErrUnavailable = errors.New("replication: replica is not available")
	// ErrHandover: the target of a handover could not be reached in time, or the
	// leader was superseded; whoever leads goes on.
	ErrHandover = errors.New("replication: handover did not come about")
	// ErrMissing: no replica of that stream is on this node.
	ErrMissing = errors.New("replication: no such replica on this node")
	// ErrClosed: the node or the replica is closed.
	ErrClosed = errors.New("replication: closed")
)

// RefusedError is a fence, an assignment or a query that the protocol refused.
// A query's is an ErrNotLeader too.
type RefusedError struct {
	Reason protocol.Reason
	// Promise is the epoch below which the replica takes nothing.
	Promise chunk.Epoch
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("replication: refused, epoch %d is promised: %s", e.Promise, e.Reason)
}

// Is tells whether the refusal means that somebody else may lead.
func (e *RefusedError) Is(target error) bool {
	return target == ErrNotLeader && (e.Reason == protocol.ReasonNotLeader || e.Reason == protocol.ReasonStoppedRun)
}
