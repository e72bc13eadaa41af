package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
)

// machine is the catalog under raft. raft calls it from one goroutine at a
// time; readers take the view.
type machine struct {
	view    *atomic.Pointer[catalog.State]
	shown   *watermark // how far view is
	told    *listeners
	failed  func(error)
	state   *catalog.State // of the applying goroutine
	applied uint64         // index of the last entry in state
	// hold is the index up to which the view is ahead already, because a raft
	// instance before this one has published it; nothing is told again below.
	hold   uint64
	broken error // set once: nothing more is applied
}

// Apply is not used: the machine takes batches.
func (m *machine) Apply(log *raft.Log) any { return m.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch carries commands out and publishes the state behind the last.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	answers := make([]any, len(logs))
	var changes []catalog.Change
	for i, log := range logs {
		m.applied = log.Index
		if log.Type != raft.LogCommand {
			continue
		}
		if m.broken != nil {
			answers[i] = m.broken
			continue
		}
		next, result, changed, err := m.state.Apply(log.Data)
		if err != nil {
			m.stop(fmt.Errorf("apply catalog command at index %d: %w", log.Index, err))
			answers[i] = m.broken
			continue
		}
		m.state = next
		changes = append(changes, changed...)
		answers[i] = result
	}
	m.publish(changes)
	return answers
}

// publish shows the state and then tells who listens.
func (m *machine) publish(changes []catalog.Change) {
	if m.applied < m.hold || m.broken != nil {
		return
	}
	if m.hold > 0 { // level with the instance before; the states are the same
		m.hold = 0
		changes = catalog.Diff(m.view.Load(), m.state)
	}
	m.view.Store(m.state)
	m.shown.reach(m.applied)
	if len(changes) > 0 {
		m.told.tell(changes)
	}
}

func (m *machine) stop(err error) {
	m.broken = fmt.Errorf("%w: %w", ErrFailed, err)
	m.failed(err)
}

// Snapshot takes the state, which is immutable: encoding happens in Persist.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if m.broken != nil {
		return nil, m.broken // the state lacks what could not be applied
	}
	return &frozen{m.state, m.applied}, nil
}

// Restore replaces the state by a snapshot.
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("read catalog snapshot: %w", err)
	}
	index, body := unframe(b)
	next, err := catalog.Restore(body)
	if err != nil {
		m.stop(err)
		return err
	}
	before := m.state
	m.state, m.applied = next, index
	if m.hold == 0 {
		m.publish(catalog.Diff(before, next))
	}
	return nil
}

// snapshotMagic begins a snapshot; the index of the last entry in it follows,
// since raft does not tell Restore.
const snapshotMagic = "MRCAT1\r\n"

// unframe returns the index and the state of a snapshot. One that was made
// before snapshots had an index is the state alone.
func unframe(b []byte) (uint64, []byte) {
	rest, framed := bytes.CutPrefix(b, []byte(snapshotMagic))
	if !framed || len(rest) < 8 {
		return 0, b
	}
	return binary.BigEndian.Uint64(rest), rest[8:]
}

// frozen is a state on its way to a snapshot file.
type frozen struct {
	state   *catalog.State
	applied uint64
}

func (f *frozen) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(binary.BigEndian.AppendUint64([]byte(snapshotMagic), f.applied)); err != nil {
		sink.Cancel()
		return fmt.Errorf("write catalog snapshot: %w", err)
	}
	if _, err := sink.Write(f.state.Encode()); err != nil {
		sink.Cancel()
		return fmt.Errorf("write catalog snapshot: %w", err)
	}
	return sink.Close()
}

func (f *frozen) Release() {}

// listeners are told of changes, in order, by the applying goroutine.
type listeners struct {
	mu   sync.Mutex // guards all; held while telling, so cancel waits
	next int
	all  map[int]func([]catalog.Change)
}

func (l *listeners) tell(changes []catalog.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, told := range l.all {
		told(changes)
	}
}

func (l *listeners) add(told func([]catalog.Change)) (cancel func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = make(map[int]func([]catalog.Change))
	}
	id := l.next
	l.next++
	l.all[id] = told
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.all, id)
	}
}

// watermark is an index that grows and can be waited for.
type watermark struct {
	mu      sync.Mutex // guards the two below
	index   uint64
	reached chan struct{} // closed with the next growth; nil while nobody waits
}

func (w *watermark) reach(index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if index <= w.index {
		return
	}
	w.index = index
	if w.reached != nil {
		close(w.reached)
		w.reached = nil
	}
}

// await returns once the index is reached, or with the end of ctx.
func (w *watermark) await(ctx context.Context, index uint64) error {
	for {
		w.mu.Lock()
		if w.index >= index {
			w.mu.Unlock()
			return nil
		}
		if w.reached == nil {
			w.reached = make(chan struct{})
		}
		reached := w.reached
		w.mu.Unlock()
		select {
		case <-reached:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// at returns the index.
func (w *watermark) at() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.index
}
