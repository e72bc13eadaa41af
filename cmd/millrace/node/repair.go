package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// methodReadRange asks for chunks of a stream's log (segstore.Source):
//
//	request  stream u64 | from u64 | last u64 | max u32
//	answer   next u64 | chunks, head and data back to back
const methodReadRange uint16 = groupRepair<<8 + 1

// rangeBytesMax bounds what one request is answered with, one chunk apart.
const rangeBytesMax = 4 << 20

// damaged says what a log has found; it says so once for each segment.
func (n *Node) damaged(l *segstore.Log, d *segstore.DamageError) {
	n.mender.found(l.Incarnation())
	n.log.Error("a log is damaged", "stream", l.Incarnation().String(), "error", d, "try", "millrace replica repair STREAM")
}

// serveRepair gives other nodes what is good here.
func (n *Node) serveRepair(_ context.Context, _ protocol.NodeID, method uint16, body []byte) (uint16, []byte) {
	want, known := map[uint16]int{methodReadRange: 28, methodBoundaries: 8, methodProgress: 8}[method]
	switch {
	case !known:
		return statusUnknown, nil
	case len(body) != want:
		return statusRefused, []byte("malformed request")
	}
	if method == methodProgress {
		return n.serveProgress(body)
	}
	be := binary.BigEndian
	r, ok := n.replicas.Replica(chunk.Incarnation(be.Uint64(body)))
	if !ok {
		return statusRefused, []byte(admin.ErrNoReplica.Error())
	}
	if method == methodBoundaries {
		return statusDone, encodeBoundaries(r.Boundaries())
	}
	most := int(min(be.Uint32(body[24:]), rangeBytesMax))
	chunks, next, err := r.ReadRange(chunk.LSN(be.Uint64(body[8:])), chunk.LSN(be.Uint64(body[16:])), most)
	if err != nil {
		return statusRefused, []byte(err.Error())
	}
	return statusDone, append(be.AppendUint64(nil, uint64(next)), chunks...)
}

// holders are other nodes that hold a replica of a stream, as a segstore.Source.
// The first that answers a request is kept to; one that has not what is asked
// for, or is damaged itself, is passed over.
type holders struct {
	ask   func(ctx context.Context, to protocol.NodeID, method uint16, body []byte) ([]byte, error)
	nodes []protocol.NodeID
}

// ReadRange is segstore.Source's.
func (p *holders) ReadRange(ctx context.Context, stream chunk.Incarnation, from, last chunk.LSN, max int) ([]byte, chunk.LSN, error) {
	be := binary.BigEndian
	body := be.AppendUint64(nil, uint64(stream))
	body = be.AppendUint64(body, uint64(from))
	body = be.AppendUint64(body, uint64(last))
	body = be.AppendUint32(body, uint32(max))
	var problems []error
	for i, node := range p.nodes {
		answer, err := p.ask(ctx, node, methodReadRange, body)
		if err == nil && len(answer) < 8 {
			err = fmt.Errorf("node %s: answer of %d bytes", node, len(answer))
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		p.nodes[0], p.nodes[i] = p.nodes[i], p.nodes[0]
		return answer[8:], chunk.LSN(be.Uint64(answer)), nil
	}
	return nil, 0, errors.Join(problems...)
}

// holdersOf are the nodes that hold the stream's other replicas.
func (n *Node) holdersOf(stream *catalog.Stream) *holders {
	p := &holders{ask: n.ask}
	for _, r := range stream.Replicas {
		if string(r.Node) != n.config.NodeName {
			p.nodes = append(p.nodes, r.Node)
		}
	}
	return p
}

// Repair is admin.Replicas'.
func (f figures) Repair(ctx context.Context, stream chunk.Incarnation) (admin.Repair, error) {
	done := admin.Repair{Repaired: []string{}, Damaged: []string{}}
	r, err := f.replica(stream)
	if err != nil {
		return done, err
	}
	s, ok := f.n.cluster.View().Incarnation(stream)
	if !ok {
		return done, fmt.Errorf("%w: %s", catalog.ErrStreamMissing, stream)
	}
	damage := r.Damage()
	if len(damage) == 0 {
		return done, nil
	}
	from := f.n.holdersOf(s)
	if len(from.nodes) == 0 {
		return done, fmt.Errorf("%w: stream %q has its only copy on this node\n%s", admin.ErrNoPeer, s.Name, told(damage))
	}
	files, problem := r.Repair(ctx, from)
	done.Repaired = append(done.Repaired, files...)
	for _, d := range r.Damage() {
		done.Damaged = append(done.Damaged, d.Error())
	}
	if len(done.Repaired) == 0 && problem != nil {
		return done, fmt.Errorf("%w: %w", admin.ErrNoPeer, problem)
	}
	return done, nil
}

// told lists damage, a line each.
func told(damage []*segstore.DamageError) string {
	var lines []string
	for _, d := range damage {
		lines = append(lines, d.Error())
	}
	return strings.Join(lines, "\n")
}
