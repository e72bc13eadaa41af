package catalog

import (
	"errors"
	"fmt"
)

// Each condition for which a command is refused, once. A Refusal wraps one of
// them and adds what was wrong; compare with errors.Is.
var (
	// ErrBadArgument: a name, a stream argument or another value of the
	// request is not acceptable. Its text names the key and what is allowed.
	ErrBadArgument = errors.New("bad argument")

	// ErrStreamExists: the stream is there, created with the same arguments.
	ErrStreamExists = errors.New("stream exists")
	// ErrStreamDiffers: the stream is there, created with other arguments.
	ErrStreamDiffers = errors.New("stream exists with other arguments")
	// ErrStreamMissing: no stream of that name or incarnation.
	ErrStreamMissing = errors.New("stream does not exist")

	// ErrSuperStreamExists: the super stream is there, whatever its parts.
	ErrSuperStreamExists = errors.New("super stream exists")
	// ErrSuperStreamMissing: no super stream of that name.
	ErrSuperStreamMissing = errors.New("super stream does not exist")

	// ErrVHostExists: the virtual host is there already.
	ErrVHostExists = errors.New("virtual host exists")
	// ErrVHostMissing: no virtual host of that name.
	ErrVHostMissing = errors.New("virtual host does not exist")

	// ErrUserExists: the user is there already.
	ErrUserExists = errors.New("user exists")
	// ErrUserMissing: no user of that name.
	ErrUserMissing = errors.New("user does not exist")

	// ErrNodeMissing: no node of that id.
	ErrNodeMissing = errors.New("node is not a member")
	// ErrNodeExists: a node of that id is a member with another disk.
	ErrNodeExists = errors.New("node id is taken")
	// ErrNodeInUse: the node still holds what must not be lost.
	ErrNodeInUse = errors.New("node still holds replicas")
	// ErrNotEnoughNodes: too few nodes run for the replicas that are asked for.
	ErrNotEnoughNodes = errors.New("not enough running nodes")

	// ErrReplicaMissing: the stream has no replica on that node.
	ErrReplicaMissing = errors.New("no replica on that node")
	// ErrReplicaExists: the stream has a replica on that node already.
	ErrReplicaExists = errors.New("replica exists on that node")
	// ErrUnsafe: the change could lose data or the stream's majority.
	ErrUnsafe = errors.New("refused because unsafe")

	// ErrStaleEpoch: the command speaks for an epoch that is not the newest.
	ErrStaleEpoch = errors.New("epoch is not the newest")
	// ErrStaleVersion: the command builds on a configuration version that is
	// not the newest.
	ErrStaleVersion = errors.New("configuration version is not the newest")
	// ErrUnsettled: the present configuration is not settled by the leader of
	// the newest epoch, or an election is under way (D3).
	ErrUnsettled = errors.New("configuration is not settled")
	// ErrLeader: the replica leads the stream; move the leader first.
	ErrLeader = errors.New("replica leads the stream")

	// ErrGroupMissing: no such single-active-consumer group or member.
	ErrGroupMissing = errors.New("consumer group member does not exist")
	// ErrGroupDiffers: the group has another partition index.
	ErrGroupDiffers = errors.New("consumer group has another partition index")

	// ErrLimit: a bound of the catalog is reached.
	ErrLimit = errors.New("limit reached")
)

// Errors of Apply itself: the node that meets one must stop, because to skip
// the command would make its state differ from that of the other nodes.
var (
	// ErrUnknownCommand: no such command type in this version.
	ErrUnknownCommand = errors.New("catalog command of an unknown type")
	// ErrNewerVersion: the command or snapshot was written by a later version.
	ErrNewerVersion = errors.New("catalog data of a newer version")
	// ErrMalformed: the bytes are not a command or snapshot.
	ErrMalformed = errors.New("malformed catalog data")
)

// codes gives each refusal its stable name in commands' results, which travel
// between nodes and rest in snapshots.
var codes = []struct {
	code string
	err  error
}{
	{"bad-argument", ErrBadArgument},
	{"stream-exists", ErrStreamExists},
	{"stream-differs", ErrStreamDiffers},
	{"stream-missing", ErrStreamMissing},
	{"super-stream-exists", ErrSuperStreamExists},
	{"super-stream-missing", ErrSuperStreamMissing},
	{"vhost-exists", ErrVHostExists},
	{"vhost-missing", ErrVHostMissing},
	{"user-exists", ErrUserExists},
	{"user-missing", ErrUserMissing},
	{"node-missing", ErrNodeMissing},
	{"node-exists", ErrNodeExists},
	{"node-in-use", ErrNodeInUse},
	{"not-enough-nodes", ErrNotEnoughNodes},
	{"replica-missing", ErrReplicaMissing},
	{"replica-exists", ErrReplicaExists},
	{"unsafe", ErrUnsafe},
	{"stale-epoch", ErrStaleEpoch},
	{"stale-version", ErrStaleVersion},
	{"unsettled", ErrUnsettled},
	{"leader", ErrLeader},
	{"group-missing", ErrGroupMissing},
	{"group-differs", ErrGroupDiffers},
	{"limit", ErrLimit},
}

// Refusal says why a command, or one part of it, was not carried out. It
// unwraps to one of the sentinels above.
type Refusal struct {
	Code string `json:"code"`
	Text string `json:"text,omitempty"` // what exactly, for people
}

func (r *Refusal) Error() string {
	err := r.Unwrap()
	if err == nil {
		return r.Code + ": " + r.Text
	}
	if r.Text == "" {
		return err.Error()
	}
	return err.Error() + ": " + r.Text
}

// Unwrap returns the sentinel of the code, or nil for a code of a later
// version.
func (r *Refusal) Unwrap() error {
	for _, c := range codes {
		if c.code == r.Code {
			return c.err
		}
	}
	return nil
}

// refusalOf is an error of this package as the Refusal that it is.
func refusalOf(err error) *Refusal {
	var r *Refusal
	if !errors.As(err, &r) {
		panic("catalog: no refusal: " + err.Error())
	}
	return r
}

// refuse builds a Refusal of one of the sentinels.
func refuse(err error, format string, args ...any) *Refusal {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return &Refusal{Code: c.code, Text: fmt.Sprintf(format, args...)}
		}
	}
	panic("catalog: refusal without a code: " + err.Error())
}
