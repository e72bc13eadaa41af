package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// placement is where replicas are, as operators see and change it.
type placement struct{ n *Node }

func (p placement) Up(node string) bool { return p.n.cluster.Up(protocol.NodeID(node)) }

func (p placement) Low(node string) bool { return p.n.cluster.Low()[protocol.NodeID(node)] }

func (p placement) AddReplica(ctx context.Context, stream chunk.Incarnation, node string) error {
	return answered(p.n.cluster.AddReplica(ctx, stream, protocol.NodeID(node)))
}

func (p placement) RemoveReplica(ctx context.Context, stream chunk.Incarnation, node string) error {
	return answered(p.n.cluster.RemoveReplica(ctx, stream, protocol.NodeID(node)))
}

func (p placement) MoveReplica(ctx context.Context, stream chunk.Incarnation, from, to string) error {
	return answered(p.n.cluster.MoveReplica(ctx, stream, protocol.NodeID(from), protocol.NodeID(to)))
}

func (p placement) Balance(ctx context.Context, all, dry bool) (admin.Balance, error) {
	view := p.n.cluster.View()
	b, err := p.n.cluster.Balance(ctx, all, dry)
	named := func(moves []catalog.Move) []admin.Move {
		list := []admin.Move{}
		for _, m := range moves {
			if s, ok := view.Incarnation(m.Stream); ok {
				list = append(list, admin.Move{VHost: s.VHost, Stream: s.Name, From: string(m.From), To: string(m.To)})
			}
		}
		return list
	}
	return admin.Balance{DryRun: dry, Leaders: named(b.Leaders), Replicas: named(b.Replicas), Later: b.Later}, answered(err)
}

// methodProgress asks how far a replica is:
//
//	request  stream u64
//	answer   committed LSN u64 | next offset u64 | bytes on disk u64 | damaged segments u64
const methodProgress uint16 = groupRepair<<8 + 3

const progressBytes = 32

// progressPatience bounds the wait for one node's answer.
const progressPatience = 2 * time.Second

// Progress is admin.Placement's.
func (p placement) Progress(ctx context.Context, node string, stream chunk.Incarnation) (admin.Progress, error) {
	if node == p.n.config.NodeName {
		return p.n.progress(stream)
	}
	ctx, cancel := context.WithTimeout(ctx, progressPatience)
	defer cancel()
	be := binary.BigEndian
	answer, err := p.n.ask(ctx, protocol.NodeID(node), methodProgress, be.AppendUint64(nil, uint64(stream)))
	if err != nil {
		return admin.Progress{}, err
	}
	if len(answer) != progressBytes {
		return admin.Progress{}, fmt.Errorf("node %s: answer of %d bytes", node, len(answer))
	}
	return admin.Progress{
		CommittedLSN: be.Uint64(answer), NextOffset: be.Uint64(answer[8:]), DiskBytes: be.Uint64(answer[16:]), DamagedSegments: be.Uint64(answer[24:]),
	}, nil
}

func (n *Node) progress(stream chunk.Incarnation) (admin.Progress, error) {
	f, err := figures{n}.Figures(stream)
	return admin.Progress{
		CommittedLSN: f.CommittedLSN, NextOffset: f.NextOffset, DiskBytes: f.Bytes.Disk, DamagedSegments: uint64(f.DamagedSegments),
	}, err
}

// serveProgress answers another node.
func (n *Node) serveProgress(body []byte) (uint16, []byte) {
	be := binary.BigEndian
	p, err := n.progress(chunk.Incarnation(be.Uint64(body)))
	if err != nil {
		return statusRefused, []byte(err.Error())
	}
	answer := be.AppendUint64(nil, p.CommittedLSN)
	answer = be.AppendUint64(answer, p.NextOffset)
	answer = be.AppendUint64(answer, p.DiskBytes)
	return statusDone, be.AppendUint64(answer, p.DamagedSegments)
}
