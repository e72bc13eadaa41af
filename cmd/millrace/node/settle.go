package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// touch has streams settled.
func (r *residents) touch(streams ...chunk.Incarnation) {
	if len(streams) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range streams {
		if _, at := r.busy[i]; at {
			r.busy[i] = true
			continue
		}
		r.dirty = append(r.dirty, i)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// settleAll settles what is dirty until the node stops.
func (r *residents) settleAll() {
	for {
		select {
		case <-r.wake:
		case <-r.ctx.Done():
			r.askRest(r.takeDirty())
			return
		}
		list := r.takeDirty()
		for at, i := range list {
			if !r.begin(i) {
				continue
			}
			if r.tellRunning(i) {
				r.end(i)
				continue
			}
			select {
			case r.places <- struct{}{}:
			case <-r.ctx.Done():
				r.end(i)
				r.askRest(append(list[at:], r.takeDirty()...))
				return
			}
			r.work.Go(func() {
				r.settle(i)
				r.end(i)
				<-r.places
			})
		}
	}
}

// tellRunning is settle where nothing waits for the disk.
func (r *residents) tellRunning(i chunk.Incarnation) bool {
	s, known := r.stream(i)
	if _, runs := r.replicas.Replica(i); !runs || !known || !r.holds(s) {
		return false
	}
	r.tell(s)
	return true
}

// askRest has what was given up last removed by the replicas' close.
func (r *residents) askRest(list []chunk.Incarnation) {
	for _, i := range list {
		if s, known := r.stream(i); !known || !r.holds(s) {
			r.giveUp(i)
		}
	}
}

func (r *residents) takeDirty() []chunk.Incarnation {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.dirty
	r.dirty = nil
	return list
}

// begin takes a stream to work at it; false if somebody does, who will look
// once more.
func (r *residents) begin(i chunk.Incarnation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, at := r.busy[i]; at {
		r.busy[i] = true
		return false
	}
	r.busy[i] = false
	return true
}

// await is begin that waits.
func (r *residents) await(i chunk.Incarnation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if _, at := r.busy[i]; !at {
			break
		}
		r.free.Wait()
	}
	r.busy[i] = false
}

func (r *residents) end(i chunk.Incarnation) {
	r.mu.Lock()
	again := r.busy[i]
	delete(r.busy, i)
	r.free.Broadcast()
	r.mu.Unlock()
	if again {
		r.touch(i)
	}
}

// settlePause is how long a stream rests that failed; twice as long each time
// that it fails again, so that one for which only an operator can do something
// does not fill the log.
const (
	settlePause     = time.Second
	settlePauseMost = 16 * time.Second
)

// later settles a stream after a pause.
func (r *residents) later(i chunk.Incarnation) {
	time.AfterFunc(r.pause(i), func() { r.touch(i) })
}

// pause returns how long a stream that has failed rests now.
func (r *residents) pause(i chunk.Incarnation) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pauses[i] = min(max(2*r.pauses[i], settlePause), settlePauseMost)
	return r.pauses[i]
}

// settled notes that a stream is as it should be.
func (r *residents) settled(i chunk.Incarnation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pauses, i)
}

// settle makes this node's replica of a stream what it should be.
func (r *residents) settle(i chunk.Incarnation) {
	s, known := r.stream(i)
	if !known || !r.holds(s) {
		r.giveUp(i)
		return
	}
	switch err := r.start(s); {
	case err == nil, errors.Is(err, errEnteringAnew):
		r.settled(i)
	case r.ctx.Err() == nil:
		r.log.Warn("start a replica; it will be tried again", "stream", s.Name, "vhost", s.VHost, "error", err)
		r.later(i)
	}
}

// giveUp removes a replica with its files: one after the other, since nobody
// waits for it.
func (r *residents) giveUp(i chunk.Incarnation) {
	r.removing.Lock()
	defer r.removing.Unlock()
	switch err := r.replicas.Remove(r.ctx, i); {
	case err == nil:
		r.settled(i)
	case r.ctx.Err() == nil:
		r.log.Warn("remove a stream's files; it will be tried again", "stream", i.String(), "error", err)
		r.later(i)
	}
}

// open starts a replica that a fence asks for, of the newest known state of the
// stream.
func (r *residents) open(s *catalog.Stream) error {
	s, err := r.hear(s)
	if err != nil {
		return err
	}
	if !r.holds(s) {
		return fmt.Errorf("stream %q has no replica on %s", s.Name, r.node)
	}
	r.await(s.Incarnation)
	defer r.end(s.Incarnation)
	return r.start(s)
}

// errEnteringAnew: a replica has lost its files, and the metadata is asked to
// enter it anew.
var errEnteringAnew = errors.New("the replica has lost its files and is being entered anew")

// start has the stream's replica run here, and tells it what the metadata says.
// The caller has begun with the stream.
func (r *residents) start(s *catalog.Stream) error {
	if _, runs := r.replicas.Replica(s.Incarnation); !runs {
		if err := r.openFiles(s); err != nil {
			return err
		}
	}
	r.tell(s)
	return nil
}

// openFiles opens the replica's files, or makes them.
func (r *residents) openFiles(s *catalog.Stream) error {
	entry, _ := s.Replica(r.node)
	of := replication.Stream{Incarnation: s.Incarnation, Name: LogName(s.VHost, s.Name), Settings: settings(s.Arguments, &r.tracking)}
	var err error
	switch s.Residence(r.node, r.found(s.Incarnation)) {
	case catalog.OpenFiles:
		_, err = r.replicas.Open(of, false)
	case catalog.MakeEmpty:
		_, err = r.replicas.Open(of, true)
	case catalog.JoinEmpty:
		_, err = r.replicas.Join(of, s.Epoch, entry.Registration)
	case catalog.LostAlone:
		return fmt.Errorf("%w: they were the only ones of %q; put them back from a backup, or delete the stream", segstore.ErrMissing, s.Name)
	case catalog.EnterAnew:
		r.log.Warn("a replica's files are gone; it is entered anew and filled by its leader", "stream", s.Name, "vhost", s.VHost)
		r.propose(s.Incarnation)
		return errEnteringAnew
	}
	return err
}

// found is what is on this node's disk of a replica.
func (r *residents) found(i chunk.Incarnation) catalog.Found {
	state, remembered := r.store.Journal().State(i)
	return catalog.Found{
		Files: r.store.Has(i), Remembered: remembered, Registration: protocol.Registration(state.Registration),
		Forgotten: state.Aside == segstore.AsideJournalLost,
	}
}

// propose has this node's replica of a stream entered anew.
func (r *residents) propose(i chunk.Incarnation) {
	r.mu.RLock()
	meta := r.meta
	r.mu.RUnlock()
	if meta != nil {
		meta.Proposed(i, protocol.Proposal{Kind: protocol.ProposeRegister, Node: r.node})
	}
}

// tell brings a replica what the metadata says of it: its entry, if that is
// newer than the one it knows itself by, the configuration, and how the stream
// is kept. A replica that waits to be entered anew hears of that by registered
// alone.
func (r *residents) tell(s *catalog.Stream) {
	switch s.Entry(r.node, r.found(s.Incarnation)) {
	case catalog.EntryIsNew:
		entry, _ := s.Replica(r.node)
		r.replicas.BeginRegistered(s.Incarnation, s.Epoch, entry.Registration, ignore)
	case catalog.EntryOfOther:
		r.propose(s.Incarnation)
	case catalog.EntryKnown:
	}
	r.replicas.BeginConfigure(s.Incarnation, s.Configuration(), ignore)
	if replica, ok := r.replicas.Replica(s.Incarnation); ok {
		replica.SetSettings(settings(s.Arguments, &r.tracking))
		r.endOldReign(s, replica)
	}
}

func ignore(error) {}

// endOldReign gives up an epoch that an earlier run of this node's replica led:
// a leader never goes on in an epoch after a restart (A5).
func (r *residents) endOldReign(s *catalog.Stream, replica *replication.Replica) {
	r.mu.RLock()
	meta := r.meta
	r.mu.RUnlock()
	if meta != nil && s.Leader.Node == r.node && s.Leader.Run != replica.Standing().Run {
		meta.LeaderOver(s.Incarnation, s.Epoch)
	}
}

// registered hears that the metadata has entered a replica of this node anew, as
// it was asked to. It does not block.
func (r *residents) registered(i chunk.Incarnation, epoch chunk.Epoch, as protocol.Registration) {
	if _, runs := r.replicas.Replica(i); runs {
		r.replicas.BeginRegistered(i, epoch, as, ignore)
		return
	}
	r.touch(i) // the catalog here shows the entry, now or soon, and is followed
}

// settings is how a stream with the arguments is kept.
func settings(a catalog.Arguments, t *config.Tracking) replication.Settings {
	s := replication.Settings{
		Log: segstore.Config{
			SegmentBytes: a.SegmentSize(), ControlBytes: t.ControlRollBytes,
			Caps: tracking.Caps{Offsets: t.StoredOffsets, Publishers: t.Publishers},
		},
		FilterLength: a.FilterSize(), Pacing: t.Pacing(), Grace: t.Grace,
	}
	if t.Grace == 0 {
		s.Grace = -1 // none, where the zero value is the default
	}
	if bytes, ok := a.MaxLength(); ok {
		s.RetainBytes = bytes
	}
	if seconds, ok := a.MaxAgeSeconds(); ok {
		s.RetainAge = time.Duration(seconds) * time.Second
		s.Log.MaxAge = s.RetainAge
	}
	return s
}
