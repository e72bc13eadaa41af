package admin

import (
	"errors"
	"net/http"
)

// verifyStream reads every byte of all replicas' files, or of those on ?node=.
// A node that does not answer has a verdict too: that nothing is known.
func (s *Server) verifyStream(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	if byItself(req) {
		list, err := s.replicas.Verify(req.Context(), stream.Incarnation)
		if err != nil {
			return err
		}
		for i := range list {
			list[i].Node = s.self()
		}
		writeJSON(w, http.StatusOK, list)
		return nil
	}
	list := []Verdict{}
	answers, errs := everywhere[[]Verdict](s, req, stream)
	for i, verdicts := range answers {
		if errs[i] != nil {
			verdicts = []Verdict{{Node: string(stream.Replicas[i].Node), Unknown: true, Problems: []string{"unknown: " + errs[i].Error()}}}
		}
		list = append(list, verdicts...)
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// repairStream has the damaged segments of all replicas, or of that on ?node=,
// fetched from others.
func (s *Server) repairStream(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	if byItself(req) {
		done, err := s.replicas.Repair(req.Context(), stream.Incarnation)
		if err != nil {
			return err
		}
		s.log.Info("stream repaired", "stream", stream.Name, "vhost", stream.VHost, "by", caller(req), "files", done.Repaired, "damaged", len(done.Damaged))
		done.Repaired, done.Damaged = on(s.self(), done.Repaired), on(s.self(), done.Damaged)
		writeJSON(w, http.StatusOK, done)
		return nil
	}
	all := Repair{Repaired: []string{}, Damaged: []string{}}
	answers, errs := everywhere[Repair](s, req, stream)
	for i, done := range answers {
		all.Repaired, all.Damaged = append(all.Repaired, done.Repaired...), append(all.Damaged, done.Damaged...)
		node := string(stream.Replicas[i].Node)
		var no *failedThere
		switch {
		case errs[i] == nil:
		case errors.As(errs[i], &no) && len(errs) == 1:
			return no
		case errors.As(errs[i], &no):
			all.Damaged = append(all.Damaged, on(node, []string{no.Error()})...)
		default:
			all.Unknown = append(all.Unknown, on(node, []string{errs[i].Error()})...)
		}
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

// on says of each where it is.
func on(node string, list []string) []string {
	for i := range list {
		list[i] = node + ": " + list[i]
	}
	return list
}
