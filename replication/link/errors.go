package link

import "errors"

var (
	// ErrFrame: bytes that are no frame of this version. The bundle ends.
	ErrFrame = errors.New("link: malformed frame")
	// ErrTooLarge: a frame, a chunk or a body beyond its bound.
	ErrTooLarge = errors.New("link: larger than the bound")
	// ErrCredit: the peer sent more than it was allowed to. The bundle ends.
	ErrCredit = errors.New("link: sent beyond its credit")

	// ErrHandshake: bytes that begin no connection between nodes.
	ErrHandshake = errors.New("link: not a handshake")
	// ErrVersion: the nodes have no version of the link in common.
	ErrVersion = errors.New("link: no common version of the link")
	// ErrCluster: the other side belongs to another cluster.
	ErrCluster = errors.New("link: another cluster")
	// ErrNode: the other side is not the node that was meant, or claims to be
	// one that its certificate does not name.
	ErrNode = errors.New("link: another node")
	// ErrUnproven: the other side did not prove that it knows the secret.
	ErrUnproven = errors.New("link: cluster secret not proven")
	// ErrPlain: one end speaks without TLS on a connection that leaves the machine.
	// It may be of an older version.
	ErrPlain = errors.New("link: TLS is needed but between loopback addresses")
	// ErrCertificate: the other side's certificate is missing, or not of this
	// cluster's authority.
	ErrCertificate = errors.New("link: certificate refused")
	// ErrStranger: the node is not, or no longer, a member.
	ErrStranger = errors.New("link: not a member")
	// ErrBusy: the two nodes are connected already, or about to be.
	ErrBusy = errors.New("link: connected already")
	// ErrTooMany: more handshakes at once than allowed; this one had to go.
	ErrTooMany = errors.New("link: too many handshakes at once")

	// ErrUnreachable: there is no link to that node now.
	ErrUnreachable = errors.New("link: node is not connected")
	// ErrTimeout: the node did not answer in time.
	ErrTimeout = errors.New("link: no answer in time")
	// ErrBacklog: as many requests to that node wait for answers as may.
	ErrBacklog = errors.New("link: too many requests wait for that node")
	// ErrClosed: the mux or the links are closed.
	ErrClosed = errors.New("link: closed")

	// ErrUnknownStream: a frame of a stream that the metadata does not know.
	ErrUnknownStream = errors.New("link: unknown stream")
	// ErrNotReplica: the sender has no replica of the stream.
	ErrNotReplica = errors.New("link: sender has no replica of the stream")
	// ErrNotLeader: the sender does not lead the stream in that epoch.
	ErrNotLeader = errors.New("link: sender does not lead the stream")
	// ErrEpochAhead: the epoch is above any that is known here.
	ErrEpochAhead = errors.New("link: epoch is not known here")
	// ErrDirection: a follower's message to a node that does not lead.
	ErrDirection = errors.New("link: message to a node that does not lead")

	// ErrSecret: a cluster secret is too short, or others may read its file.
	ErrSecret = errors.New("link: bad cluster secret")
	// ErrAuthority: the files of a certificate authority or a certificate can't
	// be used.
	ErrAuthority = errors.New("link: bad certificate")
)
