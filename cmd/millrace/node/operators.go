package node

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
)

// methodAdmin asks a node's server of operators. The request is an admin.Asked
// as JSON; the answer's status is that of HTTP, its body what goes with it.
const methodAdmin uint16 = groupAdmin<<8 + 1

// operators carries operators' requests between nodes: admin.Peers over
// the link.
type operators struct{ *transport }

// Ask is admin.Peers'.
func (c operators) Ask(ctx context.Context, node string, r *admin.Asked) (admin.Answer, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return admin.Answer{}, err
	}
	links := c.opened()
	if links == nil {
		return admin.Answer{}, fmt.Errorf("%w: %s: %w", admin.ErrSilent, node, errNoLink)
	}
	to := protocol.NodeID(node)
	links.Connect(to)
	answer, err := links.Request(ctx, to, methodAdmin, body)
	switch {
	case err != nil:
		return admin.Answer{}, fmt.Errorf("%w: %s: %w", admin.ErrSilent, node, err)
	case answer.Status >= link.StatusReserved, answer.Status == statusUnknown:
		return admin.Answer{}, fmt.Errorf("%w: %s is starting, or runs an older version", admin.ErrSilent, node)
	}
	return admin.Answer{Status: int(answer.Status), Body: answer.Body}, nil
}

// servePeer answers another node's operators.
func (n *Node) servePeer(server *admin.Server) func(context.Context, protocol.NodeID, uint16, []byte) (uint16, []byte) {
	return func(ctx context.Context, _ protocol.NodeID, method uint16, body []byte) (uint16, []byte) {
		var r admin.Asked
		if method != methodAdmin || json.Unmarshal(body, &r) != nil {
			return statusUnknown, nil
		}
		answer := server.ServePeer(ctx, &r)
		return uint16(answer.Status), answer.Body
	}
}
