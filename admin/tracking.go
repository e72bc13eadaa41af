package admin

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

// What operators see and change of stored offsets and publishers' sequences. A
// stored offset names the last message that was read: a reader goes on at the
// one behind it.

// referenceMax is the protocol's limit for a reference, in bytes.
const referenceMax = 255

// listTracking lists references by name and kind, or those of one kind (?kind=).
func (s *Server) listTracking(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	kind, err := kindOf(req, "")
	if err != nil {
		return err
	}
	list, err := s.tracking.References(req.Context(), stream, TrackingQuery{Kind: kind})
	if err != nil {
		return err
	}
	if list == nil {
		list = []Reference{}
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s *Server) getTracking(w http.ResponseWriter, req *http.Request) error {
	stream, reference, err := s.reference(req)
	if err != nil {
		return err
	}
	kind, err := kindOf(req, KindOffset)
	if err != nil {
		return err
	}
	r, err := s.find(req, stream, kind, reference)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, r)
	return nil
}

func (s *Server) setTracking(w http.ResponseWriter, req *http.Request) error {
	stream, reference, err := s.reference(req)
	if err != nil {
		return err
	}
	var body SetOffset
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	value, err := s.valueOf(req, stream, &body)
	if err != nil {
		return err
	}
	return s.move(w, req, stream, MovedOffset{Reference: reference, Value: value, DryRun: body.DryRun}, false)
}

// valueOf is the offset to be stored. For a place it is the one before, which
// was read last then; at offset 0 there is none, and the message there counts as
// read.
func (s *Server) valueOf(req *http.Request, stream *catalog.Stream, body *SetOffset) (uint64, error) {
	if (body.Offset == nil) == (body.At == "") {
		return 0, fmt.Errorf("%w: give offset or at", errBadQuery)
	}
	if body.Offset != nil {
		return *body.Offset, nil
	}
	if !slices.Contains([]string{"first", "last", "next", "time"}, body.At) {
		return 0, fmt.Errorf("%w: at %q is none of first, last, next, time", errBadQuery, body.At)
	}
	next, err := s.tracking.Place(req.Context(), stream, Position{At: "next"})
	if err != nil {
		return 0, err
	}
	if next == 0 {
		return 0, errNothingRead
	}
	place, err := s.tracking.Place(req.Context(), stream, Position{At: body.At, TimestampMS: body.TimestampMS})
	if err != nil {
		return 0, err
	}
	return max(place, 1) - 1, nil
}

// move stores an offset and answers what that has changed. fresh lets it happen
// only if nothing is stored so far.
func (s *Server) move(w http.ResponseWriter, req *http.Request, stream *catalog.Stream, m MovedOffset, fresh bool) error {
	before, err := s.find(req, stream, KindOffset, m.Reference)
	switch {
	case err == nil && fresh:
		return fmt.Errorf("%w: %q", errReferenceTaken, m.Reference)
	case err == nil:
		m.Before = &before.Value
	case !errors.Is(err, errNoReference):
		return err
	}
	if !m.DryRun {
		change := TrackingChange{Reference: m.Reference, Kind: KindOffset, Offset: m.Value, New: fresh}
		changed, err := s.tracking.Change(req.Context(), stream, []TrackingChange{change})
		if err != nil {
			return err
		}
		if len(changed) == 0 {
			return fmt.Errorf("%w: %q", errReferenceTaken, m.Reference)
		}
		s.log.Info("stored offset set", "stream", stream.Name, "vhost", stream.VHost, "reference", m.Reference,
			"offset", m.Value, "by", caller(req))
	}
	writeJSON(w, http.StatusOK, m)
	return nil
}

func (s *Server) copyTracking(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	var body CopyOffset
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	if err := errors.Join(checkReference(body.From), checkReference(body.To)); err != nil {
		return err
	}
	from, err := s.find(req, stream, KindOffset, body.From)
	if err != nil {
		return err
	}
	return s.move(w, req, stream, MovedOffset{Reference: body.To, Value: from.Value, DryRun: body.DryRun}, !body.Overwrite)
}

func (s *Server) deleteTracking(w http.ResponseWriter, req *http.Request) error {
	stream, reference, err := s.reference(req)
	if err != nil {
		return err
	}
	kind, err := kindOf(req, KindOffset)
	if err != nil {
		return err
	}
	changed, err := s.tracking.Change(req.Context(), stream, []TrackingChange{{Reference: reference, Kind: kind, Forget: true}})
	if err != nil {
		return err
	}
	if len(changed) == 0 {
		return fmt.Errorf("%w: %s %q", errNoReference, kind, reference)
	}
	s.log.Info("reference deleted", "stream", stream.Name, "vhost", stream.VHost, "reference", reference, "kind", kind, "by", caller(req))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// expireTracking deletes the stored offsets whose last update is long ago, and
// answers which.
func (s *Server) expireTracking(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	var body ExpireOffsets
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	if body.OlderThanMS <= 0 {
		return fmt.Errorf("%w: older_than_ms must be above 0", errBadQuery)
	}
	list, err := s.tracking.References(req.Context(), stream, TrackingQuery{Kind: KindOffset})
	if err != nil {
		return err
	}
	gone := []Reference{}
	var changes []TrackingChange
	for _, r := range list {
		if *r.AgeMS < body.OlderThanMS {
			continue
		}
		gone = append(gone, r)
		changes = append(changes, TrackingChange{
			Reference: r.Reference, Kind: KindOffset, Forget: true, UpdatedBefore: r.Updated.Add(time.Millisecond),
		})
	}
	if !body.DryRun && len(changes) > 0 {
		changed, err := s.tracking.Change(req.Context(), stream, changes)
		if err != nil {
			return err
		}
		went := map[string]bool{}
		for _, reference := range changed {
			went[reference] = true
		}
		// What was stored again meanwhile stays.
		gone = slices.DeleteFunc(gone, func(r Reference) bool { return !went[r.Reference] })
		s.log.Info("stored offsets expired", "stream", stream.Name, "vhost", stream.VHost, "count", len(gone), "by", caller(req))
	}
	writeJSON(w, http.StatusOK, gone)
	return nil
}

// reference finds the stream, and the reference that the path names.
func (s *Server) reference(req *http.Request) (*catalog.Stream, string, error) {
	reference := pathName(req, "reference")
	if err := checkReference(reference); err != nil {
		return nil, "", err
	}
	stream, err := s.stream(req)
	return stream, reference, err
}

func checkReference(reference string) error {
	if len(reference) == 0 || len(reference) > referenceMax {
		return fmt.Errorf("%w: a reference has 1 to %d bytes", errBadQuery, referenceMax)
	}
	return nil
}

// kindOf is the request's ?kind=, or standard without one.
func kindOf(req *http.Request, standard string) (string, error) {
	kind := req.URL.Query().Get("kind")
	switch kind {
	case "":
		return standard, nil
	case KindOffset, KindWriter:
		return kind, nil
	}
	return "", fmt.Errorf("%w: kind %q is none of %s, %s", errBadQuery, kind, KindOffset, KindWriter)
}

// find returns one reference of a stream.
func (s *Server) find(req *http.Request, stream *catalog.Stream, kind, reference string) (Reference, error) {
	list, err := s.tracking.References(req.Context(), stream, TrackingQuery{kind, reference})
	if err != nil {
		return Reference{}, err
	}
	if len(list) > 0 {
		return list[0], nil
	}
	return Reference{}, fmt.Errorf("%w: %s %q", errNoReference, kind, reference)
}
