package cluster

import "errors"

var (
	// ErrUnavailable: the metadata could not be changed in time, since there is
	// no raft leader or the outcome stayed unknown. Trying again is safe.
	ErrUnavailable = errors.New("cluster metadata is not available")
	// ErrNoLeader: the stream can't get a leader now; the text says why.
	ErrNoLeader = errors.New("stream has no leader")
	// ErrStopped: the cluster was closed.
	ErrStopped = errors.New("cluster is stopped")
	// ErrFailed: the metadata store failed or met what it does not know. The
	// node must be stopped; Err tells why.
	ErrFailed = errors.New("cluster metadata failed")
	// ErrIdentity: the data directory belongs to another node, or what it says
	// about itself does not fit together.
	ErrIdentity = errors.New("node identity does not fit")
	// ErrCredentials: the user is unknown or the password is wrong; which of
	// the two is nobody's business.
	ErrCredentials = errors.New("wrong user or password")
	// ErrBadHash: a stored password hash can't be read.
	ErrBadHash = errors.New("password hash is not readable")
	// ErrRemoved: the node is no member any more, or was one with other data.
	ErrRemoved = errors.New("node was removed from the cluster")
	// ErrTwin: another process runs under the same name.
	ErrTwin = errors.New("another node of this name is running")
	// ErrOtherCluster: the node belongs to another cluster.
	ErrOtherCluster = errors.New("node belongs to another cluster")
	// ErrVoid: the replica does not lead the epoch of an installation and will
	// not (A5). A Fencer answers it; the stream gets a new epoch.
	ErrVoid = errors.New("assignment is void")
)
