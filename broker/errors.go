package broker

import (
	"errors"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/wire"
)

// ErrMetadata is for a Directory to say: the cluster's metadata could not be
// changed in time, or the outcome is unknown. Trying again is safe.
var ErrMetadata = errors.New("the cluster's metadata can't be changed now")

// The conditions that the broker itself finds. What they mean to a client is in
// codes, below.
var (
	errVHostAccess       = errors.New("user has no access to the virtual host")
	errAccess            = errors.New("access refused")
	errStreamMissing     = errors.New("stream does not exist")
	errUnavailable       = errors.New("stream has no leader, or no open replica on this node, at the moment")
	errNoReplica         = errors.New("stream has no replica on this node")
	errLedElsewhere      = errors.New("another node leads the stream")
	errTooMany           = errors.New("connection has as many as it may have")
	errReferenceTooLong  = errors.New("reference is longer than 255 bytes")
	errReferenceInUse    = errors.New("connection has a publisher of the stream with this reference")
	errPublisherInUse    = errors.New("publisher id is in use on this connection")
	errSubscriptionInUse = errors.New("subscription id is in use on this connection")
	errNoOffset          = errors.New("no offset")
	errAlarm             = errors.New("publishers are held up by an alarm")
	errPartitions        = errors.New("partitions of the super stream are wrong")
	errNameMissing       = errors.New("a single active consumer needs a name")
	errArguments         = errors.New("too many arguments")
	errStreams           = errors.New("the cluster has as many streams as stream.streams_per_node allows")
)

// codes is the one table from errors to what clients are told. The first row
// that matches counts; what no row matches is an internal error.
var codes = []struct {
	err  error
	code wire.ResponseCode
}{
	{errMechanism, wire.CodeSaslMechanismNotSupported},
	{errMalformed, wire.CodeSaslError},
	{errCredentials, wire.CodeAuthenticationFailure},
	{errTooManyLogins, wire.CodeAuthenticationFailure},
	{errLoopbackOnly, wire.CodeLoopbackOnly},
	{errVHostAccess, wire.CodeVirtualHostAccessFailure},
	{errAccess, wire.CodeAccessRefused},

	{errStreamMissing, wire.CodeStreamDoesNotExist},
	{catalog.ErrStreamMissing, wire.CodeStreamDoesNotExist},
	{catalog.ErrSuperStreamMissing, wire.CodeStreamDoesNotExist},
	{catalog.ErrStreamExists, wire.CodeStreamAlreadyExists},
	{catalog.ErrSuperStreamExists, wire.CodeStreamAlreadyExists},
	{catalog.ErrStreamDiffers, wire.CodePreconditionFailed},
	{catalog.ErrBadArgument, wire.CodePreconditionFailed},
	{catalog.ErrLimit, wire.CodePreconditionFailed},
	{catalog.ErrVHostMissing, wire.CodeVirtualHostAccessFailure},

	{errSubscriptionInUse, wire.CodeSubscriptionIDExists},
	{errTooMany, wire.CodePreconditionFailed},
	{errReferenceTooLong, wire.CodePreconditionFailed},
	{errReferenceInUse, wire.CodePreconditionFailed},
	{errPublisherInUse, wire.CodePreconditionFailed},
	{errAlarm, wire.CodePreconditionFailed},
	{catalog.ErrGroupDiffers, wire.CodePreconditionFailed},
	{errPartitions, wire.CodePreconditionFailed},
	{errNameMissing, wire.CodePreconditionFailed},
	{errArguments, wire.CodePreconditionFailed},
	{errStreams, wire.CodePreconditionFailed},
	{errNoOffset, wire.CodeNoOffset},

	{replication.ErrFenced, wire.CodePublisherDoesNotExist},
	{replication.ErrStarved, wire.CodePreconditionFailed},
	{replication.ErrReferenceInUse, wire.CodePreconditionFailed},
	{replication.ErrReferenceLength, wire.CodePreconditionFailed},
	{replication.ErrEntry, wire.CodePreconditionFailed},
	{replication.ErrNotLeader, wire.CodeStreamNotAvailable},
	{replication.ErrBacklog, wire.CodeStreamNotAvailable},
	{replication.ErrTrackingUnknown, wire.CodeStreamNotAvailable},
	{replication.ErrUnavailable, wire.CodeStreamNotAvailable},
	{replication.ErrMissing, wire.CodeStreamNotAvailable},
	{replication.ErrClosed, wire.CodeStreamNotAvailable},
	{segstore.ErrClosed, wire.CodeStreamNotAvailable},
	{segstore.ErrDamaged, wire.CodeStreamNotAvailable},
	{errUnavailable, wire.CodeStreamNotAvailable},
	// RabbitMQ says 15 where its consensus fails; clients take that for a fault, and
	// this for what passes.
	{ErrMetadata, wire.CodeStreamNotAvailable},
	{errNoReplica, wire.CodeStreamNotAvailable},
	{errLedElsewhere, wire.CodeStreamNotAvailable},
	{errPublisherUnknown, wire.CodeStreamNotAvailable},
	{errPeer, wire.CodeStreamNotAvailable},
}

func codeOf(err error) wire.ResponseCode {
	for _, row := range codes {
		if errors.Is(err, row.err) {
			return row.code
		}
	}
	return wire.CodeInternalError
}
