package admin

import (
	"fmt"
	"net/http"

	"github.com/millrace/millrace/cluster/catalog"
)

// LeaderRequest names the node that a stream shall be led from.
type LeaderRequest struct {
	Node string `json:"node"`
}

// moveLeader has a stream led from another node, and answers once it is.
func (s *Server) moveLeader(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	var body LeaderRequest
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	if body.Node == "" {
		return fmt.Errorf("%w: name the node", catalog.ErrBadArgument)
	}
	if err := s.metadata.MoveLeader(req.Context(), stream.Incarnation, body.Node); err != nil {
		return err
	}
	s.log.Info("leader moved", "stream", stream.Name, "vhost", stream.VHost, "to", body.Node, "by", caller(req))
	if stream, err = s.stream(req); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.view(req, stream))
	return nil
}
