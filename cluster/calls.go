package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// CreateStream is what a client wants created.
type CreateStream struct {
	VHost     string
	Name      string // as the client sent it; line breaks are dropped
	Arguments catalog.Arguments
	Creator   string // user name
	// Local is the node that the client is connected to; "" is this one.
	Local protocol.NodeID
	// Incarnation is drawn here.
	Incarnation chunk.Incarnation
}

// undoPatience bounds the removal of a stream that found no leader in time.
const undoPatience = 5 * time.Second

// CreateStream makes a stream and returns when its leader leads. The errors are
// the catalog's; a stream that gets no leader in time is taken back.
func (c *Cluster) CreateStream(ctx context.Context, request CreateStream) error {
	name, err := catalog.StreamName(request.Name)
	if err != nil {
		return err
	}
	request.Name = name
	if request.Local == "" {
		request.Local = c.config.Node
	}
	request.Incarnation = drawIncarnation()
	_, err = atLeader(ctx, c, methodCreate, request, c.createHere)
	return err
}

// nothing is the answer of calls that have none.
type nothing struct{}

// createHere is CreateStream on the leader. It may be repeated: the stream that
// an earlier attempt made is known by its incarnation.
func (c *Cluster) createHere(ctx context.Context, request CreateStream) (nothing, error) {
	err := c.creates.ask(ctx, c.done, request)
	s, ok := c.View().Stream(request.VHost, request.Name)
	made := ok && s.Incarnation == request.Incarnation
	if made && errors.Is(err, catalog.ErrStreamExists) {
		err = nil
	}
	forsaken := made && errors.Is(err, errGivenUp)
	if err == nil {
		err = c.coord.await(ctx, request.Incarnation)
		forsaken = err != nil && !retryable(err)
	}
	if forsaken {
		err = errors.Join(err, c.undo(ctx, &catalog.DeleteStreams{Streams: []catalog.OldStream{request.old()}}))
	}
	return nothing{}, err
}

// old is the stream that a request has made.
func (r CreateStream) old() catalog.OldStream {
	return catalog.OldStream{VHost: r.VHost, Name: r.Name, Incarnation: r.Incarnation}
}

// undo takes back what was made, though ctx is over. What is gone already is no
// error.
func (c *Cluster) undo(ctx context.Context, body catalog.Body) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoPatience)
	defer cancel()
	_, err := c.Propose(ctx, body)
	if errors.Is(err, catalog.ErrStreamMissing) {
		return nil
	}
	return err
}

// DeleteStream removes a stream everywhere. Its name is free when it returns;
// files go in the background.
func (c *Cluster) DeleteStream(ctx context.Context, vhost, name string) error {
	stream, ok := c.View().Stream(vhost, name)
	if !ok {
		return missing(vhost, name)
	}
	old := catalog.OldStream{VHost: vhost, Name: name, Incarnation: stream.Incarnation}
	return c.do(ctx, &catalog.DeleteStreams{Streams: []catalog.OldStream{old}})
}

// SetRetention changes the limits of a stream that exists. They are in force on
// this node when it returns, or at a later moment on others.
func (c *Cluster) SetRetention(ctx context.Context, vhost, name string, change catalog.RetentionChange) error {
	stream, ok := c.View().Stream(vhost, name)
	if !ok {
		return missing(vhost, name)
	}
	return c.do(ctx, &catalog.SetRetention{VHost: vhost, Name: name, Incarnation: stream.Incarnation, Change: change})
}

// missing is the catalog's refusal for a stream that is not there.
func missing(vhost, name string) error {
	return &streamError{vhost, name}
}

type streamError struct{ vhost, name string }

func (e *streamError) Error() string {
	return catalog.ErrStreamMissing.Error() + ": \"" + e.name + "\" in virtual host \"" + e.vhost + "\""
}

func (e *streamError) Unwrap() error { return catalog.ErrStreamMissing }

// CreateVHost makes a virtual host. The user, if there is one of that name, may
// do everything in it.
func (c *Cluster) CreateVHost(ctx context.Context, user, name string) error {
	return c.do(ctx, &catalog.CreateVHost{Name: name, Owner: user})
}

// DeleteVHost deletes a virtual host with all its streams.
func (c *Cluster) DeleteVHost(ctx context.Context, name string) error {
	return c.do(ctx, &catalog.DeleteVHost{Name: name})
}

// PutUser makes a user, or gives it another password and other tags. An empty
// hash, which no password matches, locks the user out.
func (c *Cluster) PutUser(ctx context.Context, user catalog.User) error {
	if err := CheckHash(user.Hash); err != nil {
		return err
	}
	return c.do(ctx, &catalog.PutUser{Name: user.Name, Hash: user.Hash, Tags: user.Tags})
}

// CreateUser makes a user that is not there yet.
func (c *Cluster) CreateUser(ctx context.Context, user catalog.User) error {
	if err := CheckHash(user.Hash); err != nil {
		return err
	}
	return c.do(ctx, &catalog.PutUser{Name: user.Name, Hash: user.Hash, Tags: user.Tags, New: true})
}

// ChangeUser gives a user another hash or other tags; nil leaves what there is.
func (c *Cluster) ChangeUser(ctx context.Context, name string, hash *string, tags *[]string) error {
	if hash != nil {
		if err := CheckHash(*hash); err != nil {
			return err
		}
	}
	return c.do(ctx, &catalog.ChangeUser{Name: name, Hash: hash, Tags: tags})
}

// DeleteUser deletes a user and its permissions.
func (c *Cluster) DeleteUser(ctx context.Context, name string) error {
	return c.do(ctx, &catalog.DeleteUser{Name: name})
}

// SetPermission says what a user may do in a virtual host.
func (c *Cluster) SetPermission(ctx context.Context, p catalog.SetPermission) error {
	return c.do(ctx, &p)
}

// ClearPermission takes a user's access to a virtual host away.
func (c *Cluster) ClearPermission(ctx context.Context, vhost, user string) error {
	return c.do(ctx, &catalog.ClearPermission{VHost: vhost, User: user})
}

// DeleteSuperStream deletes a super stream and its partitions.
func (c *Cluster) DeleteSuperStream(ctx context.Context, vhost, name string) error {
	return c.do(ctx, &catalog.DeleteSuperStream{VHost: vhost, Name: name})
}

// NewSuperStream is what a client wants created: partitions in order, with the
// binding key of each.
type NewSuperStream struct {
	VHost      string
	Name       string
	Partitions []catalog.Partition
	Arguments  catalog.Arguments // of each partition
	Creator    string            // user name
	Local      protocol.NodeID   // the node that the client is connected to; "" is this one
}

// CreateSuperStream makes a super stream with all its partitions, or nothing,
// and returns when each partition has its leader. Without a locator the leaders
// are balanced.
func (c *Cluster) CreateSuperStream(ctx context.Context, request NewSuperStream) error {
	name, err := catalog.StreamName(request.Name)
	if err != nil {
		return err
	}
	local := request.Local
	if local == "" {
		local = c.config.Node
	}
	if request.Arguments.LeaderLocator == "" {
		local = "" // nowhere: balanced, though not stored as the argument
	}
	var streams []CreateStream
	for _, p := range request.Partitions {
		partition, err := catalog.StreamName(p.Stream)
		if err != nil {
			return err
		}
		streams = append(streams, CreateStream{
			VHost: request.VHost, Name: partition, Arguments: request.Arguments, Creator: request.Creator, Local: local,
			Incarnation: drawIncarnation(),
		})
	}
	_, err = atLeader(ctx, c, methodCreateSuper, superCreation{request.VHost, name, streams, request.Partitions}, c.createSuperHere)
	return err
}

// superCreation is a super stream on its way to the leader.
type superCreation struct {
	VHost, Name string
	Streams     []CreateStream
	Partitions  []catalog.Partition
}

// createSuperHere is CreateSuperStream on the leader. It may be repeated.
func (c *Cluster) createSuperHere(ctx context.Context, request superCreation) (nothing, error) {
	body := &catalog.CreateSuperStream{VHost: request.VHost, Name: request.Name}
	placer := catalog.NewPlacer(c.View(), c.coord.isUp)
	for i, s := range request.Streams {
		stream, err := c.newStream(placer, s)
		if err != nil {
			return nothing{}, err
		}
		body.Partitions = append(body.Partitions, catalog.NewPartition{NewStream: stream, Key: request.Partitions[i].Key})
	}
	err := c.do(ctx, body)
	if errors.Is(err, catalog.ErrSuperStreamExists) && c.madeAll(request.Streams) {
		err = nil
	}
	if err != nil {
		return nothing{}, err
	}
	for _, s := range request.Streams {
		err := c.coord.await(ctx, s.Incarnation)
		if retryable(err) {
			return nothing{}, err
		}
		if err != nil {
			return nothing{}, errors.Join(err, c.undo(ctx, &catalog.DeleteSuperStream{VHost: request.VHost, Name: request.Name}))
		}
	}
	return nothing{}, nil
}

// madeAll tells whether the streams are those that an earlier attempt made.
func (c *Cluster) madeAll(streams []CreateStream) bool {
	for _, s := range streams {
		if made, ok := c.View().Stream(s.VHost, s.Name); !ok || made.Incarnation != s.Incarnation {
			return false
		}
	}
	return true
}
