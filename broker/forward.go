package broker

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// Method says what a node asks of another's broker. Layouts are big-endian; text
// is a length byte and so many bytes.
type Method byte

const (
	// methodDeclare: stream u64, epoch u64, publisher u64, reference text. The
	// publisher's number is the asker's, never used twice on a link.
	methodDeclare Method = 1 + iota
	// methodPublish: publisher u64, entries u32, then a client's Publish frame, of
	// which so many entries are meant. The answer comes when they are committed.
	methodPublish
	// methodClose: publishers, u64 each.
	methodClose
	// methodSequence and methodOffset: stream u64, epoch u64, reference text. The
	// answer: known u8 (0 or 1), value u64.
	methodSequence
	methodOffset
	// methodStore: for each offset stream u64, epoch u64, since u64, value u64,
	// reference text. The answer: for each stream of which one was taken stream u64,
	// epoch u64, place of the last u64.
	methodStore
	// methodExtent: stream u64, of which the node has a replica. The answer: the
	// first and the last committed chunk's offset i64, -1 if there is none, and
	// the offset behind the last record i64.
	methodExtent
	// methodPlace: stream u64, kind of place u8 as segstore numbers them, offset or
	// time u64. The answer: where a reader would begin u64.
	methodPlace
)

// Status answers a request.
type Status uint16

const (
	statusDone Status = iota
	// statusNotLeader: the node does not lead the stream, in that epoch. Of what
	// was published nobody knows whether it is stored.
	statusNotLeader
	statusFenced
	statusReferenceInUse
	statusReferenceLength
	statusEntry
	statusBacklog
	statusUnavailable
	// statusPublisher: the node knows no publisher of that number.
	statusPublisher
	// statusMalformed: the request says nothing in this language.
	statusMalformed
	// statusAlarm: publishers are held up there.
	statusAlarm
	statusInternal
	// statusNoOffset: the log has no such place.
	statusNoOffset
)

// The conditions that another node answers beside those of replicas.
var (
	errMalformedRequest = errors.New("request of another node is malformed")
	errPublisherUnknown = errors.New("the leader's node does not know the publisher any more")
	errPeer             = errors.New("the leader's node failed")
)

// statuses is the one table between errors here and answers to other nodes. The
// first row that matches counts; what no row matches is statusInternal.
var statuses = []struct {
	status Status
	err    error
}{
	{statusNotLeader, replication.ErrNotLeader},
	{statusNotLeader, replication.ErrMissing},
	{statusFenced, replication.ErrFenced},
	{statusReferenceInUse, replication.ErrReferenceInUse},
	{statusReferenceLength, replication.ErrReferenceLength},
	{statusEntry, replication.ErrEntry},
	{statusBacklog, replication.ErrBacklog},
	{statusUnavailable, replication.ErrUnavailable},
	{statusUnavailable, replication.ErrClosed},
	{statusUnavailable, replication.ErrTrackingUnknown},
	{statusPublisher, errPublisherUnknown},
	{statusMalformed, errMalformedRequest},
	{statusAlarm, errAlarm},
	{statusAlarm, replication.ErrStarved},
	{statusNoOffset, errNoOffset},
	{statusInternal, errPeer},
}

func statusOf(err error) Status {
	if err == nil {
		return statusDone
	}
	for _, row := range statuses {
		if errors.Is(err, row.err) {
			return row.status
		}
	}
	return statusInternal
}

// errorOf is what a status means to who asked; a newer node's is errPeer.
func errorOf(status Status) error {
	if status == statusDone {
		return nil
	}
	for _, row := range statuses {
		if row.status == status {
			return row.err
		}
	}
	return fmt.Errorf("%w: status %d", errPeer, status)
}

// declaration is methodDeclare's body.
type declaration struct {
	stream    chunk.Incarnation
	epoch     chunk.Epoch
	publisher uint64
	reference string
}

func (d *declaration) append(body []byte) []byte {
	body = binary.BigEndian.AppendUint64(body, uint64(d.stream))
	body = binary.BigEndian.AppendUint64(body, uint64(d.epoch))
	body = binary.BigEndian.AppendUint64(body, d.publisher)
	return appendText(body, d.reference)
}

func decodeDeclaration(body []byte) (d declaration, err error) {
	r := requestReader{rest: body}
	d.stream, d.epoch = chunk.Incarnation(r.u64()), chunk.Epoch(r.u64())
	d.publisher, d.reference = r.u64(), r.text()
	return d, r.end()
}

// question is the body of methodSequence and methodOffset.
type question struct {
	stream    chunk.Incarnation
	epoch     chunk.Epoch
	reference string
}

func (q *question) append(body []byte) []byte {
	body = binary.BigEndian.AppendUint64(body, uint64(q.stream))
	body = binary.BigEndian.AppendUint64(body, uint64(q.epoch))
	return appendText(body, q.reference)
}

func decodeQuestion(body []byte) (q question, err error) {
	r := requestReader{rest: body}
	q.stream, q.epoch, q.reference = chunk.Incarnation(r.u64()), chunk.Epoch(r.u64()), r.text()
	return q, r.end()
}

// appendKnown is the answer to a question.
func appendKnown(body []byte, value uint64, known bool) []byte {
	if !known {
		return binary.BigEndian.AppendUint64(append(body, 0), 0)
	}
	return binary.BigEndian.AppendUint64(append(body, 1), value)
}

func decodeKnown(body []byte) (value uint64, known bool, err error) {
	r := requestReader{rest: body}
	flag := r.u8()
	value = r.u64()
	if flag > 1 || flag == 0 && value != 0 {
		r.failed = true
	}
	return value, flag == 1, r.end()
}

// appendPublish heads a client's frame, the rest of the body.
func appendPublish(body []byte, publisher uint64, entries int, frame []byte) []byte {
	body = binary.BigEndian.AppendUint64(body, publisher)
	body = binary.BigEndian.AppendUint32(body, uint32(entries))
	return append(body, frame...)
}

// publishHead is how much of methodPublish's body is before the frame.
const publishHead = 8 + 4

func decodePublish(body []byte) (publisher uint64, entries int, frame []byte, err error) {
	r := requestReader{rest: body}
	publisher, entries = r.u64(), int(r.u32())
	if r.failed || entries == 0 {
		return 0, 0, nil, errMalformedRequest
	}
	return publisher, entries, r.rest, nil
}

func appendClosed(body []byte, publishers []uint64) []byte {
	for _, p := range publishers {
		body = binary.BigEndian.AppendUint64(body, p)
	}
	return body
}

func decodeClosed(body []byte) (publishers []uint64, err error) {
	r := requestReader{rest: body}
	for len(r.rest) > 0 && !r.failed {
		publishers = append(publishers, r.u64())
	}
	return publishers, r.end()
}

// stored is one offset of methodStore, for the leader of an epoch and for no later
// one: what comes late must not pass for newer than what its client has stored
// with a leader in between.
type stored struct {
	stream    chunk.Incarnation
	epoch     chunk.Epoch
	since     uint64 // replication.Origin's
	offset    chunk.Offset
	reference string
}

func (s *stored) append(body []byte) []byte {
	body = binary.BigEndian.AppendUint64(body, uint64(s.stream))
	body = binary.BigEndian.AppendUint64(body, uint64(s.epoch))
	body = binary.BigEndian.AppendUint64(body, s.since)
	body = binary.BigEndian.AppendUint64(body, uint64(s.offset))
	return appendText(body, s.reference)
}

func decodeStored(body []byte) (list []stored, err error) {
	r := requestReader{rest: body}
	for len(r.rest) > 0 && !r.failed {
		list = append(list, stored{chunk.Incarnation(r.u64()), chunk.Epoch(r.u64()), r.u64(), chunk.Offset(r.u64()), r.text()})
	}
	return list, r.end()
}

// placed is a stream in the answer to methodStore: how far the order of its reign
// had come with the last store of the request.
type placed struct {
	stream chunk.Incarnation
	epoch  chunk.Epoch
	place  uint64
}

func (p *placed) append(body []byte) []byte {
	body = binary.BigEndian.AppendUint64(body, uint64(p.stream))
	body = binary.BigEndian.AppendUint64(body, uint64(p.epoch))
	return binary.BigEndian.AppendUint64(body, p.place)
}

func decodePlaced(body []byte) (list []placed, err error) {
	r := requestReader{rest: body}
	for len(r.rest) > 0 && !r.failed {
		list = append(list, placed{chunk.Incarnation(r.u64()), chunk.Epoch(r.u64()), r.u64()})
	}
	return list, r.end()
}

func appendStream(body []byte, stream chunk.Incarnation) []byte {
	return binary.BigEndian.AppendUint64(body, uint64(stream))
}

func decodeStream(body []byte) (chunk.Incarnation, error) {
	r := requestReader{rest: body}
	stream := chunk.Incarnation(r.u64())
	return stream, r.end()
}

// append is the answer to methodExtent.
func (e extent) append(body []byte) []byte {
	for _, v := range []int64{e.first, e.last, e.next} {
		body = binary.BigEndian.AppendUint64(body, uint64(v))
	}
	return body
}

func decodeExtent(body []byte) (extent, error) {
	r := requestReader{rest: body}
	e := extent{int64(r.u64()), int64(r.u64()), int64(r.u64())}
	return e, r.end()
}

// place is the body of methodPlace.
type place struct {
	stream chunk.Incarnation
	spec   segstore.Spec
}

func (p *place) append(body []byte) []byte {
	body = append(appendStream(body, p.stream), byte(p.spec.Kind))
	value := uint64(p.spec.Offset)
	if p.spec.Kind == segstore.AtTimestamp {
		value = uint64(p.spec.Timestamp)
	}
	return binary.BigEndian.AppendUint64(body, value)
}

func decodePlace(body []byte) (p place, err error) {
	r := requestReader{rest: body}
	p.stream, p.spec.Kind = chunk.Incarnation(r.u64()), segstore.SpecKind(r.u8())
	switch value := r.u64(); p.spec.Kind {
	case segstore.AtTimestamp:
		p.spec.Timestamp = chunk.Timestamp(value)
	case segstore.AtOffset:
		p.spec.Offset = chunk.Offset(value)
	case segstore.First, segstore.Last, segstore.Next:
		r.failed = r.failed || value != 0
	default:
		r.failed = true
	}
	return p, r.end()
}

func appendOffset(body []byte, offset chunk.Offset) []byte {
	return binary.BigEndian.AppendUint64(body, uint64(offset))
}

func decodeOffset(body []byte) (chunk.Offset, error) {
	r := requestReader{rest: body}
	offset := chunk.Offset(r.u64())
	return offset, r.end()
}

func appendText(body []byte, text string) []byte {
	return append(append(body, byte(len(text))), text...)
}

// requestReader takes fields off a body; once one is missing all are zero.
type requestReader struct {
	rest   []byte
	failed bool
}

func (r *requestReader) take(n int) []byte {
	if r.failed || len(r.rest) < n {
		r.failed = true
		return nil
	}
	field := r.rest[:n]
	r.rest = r.rest[n:]
	return field
}

func (r *requestReader) u8() (v byte) {
	if field := r.take(1); field != nil {
		v = field[0]
	}
	return v
}

func (r *requestReader) u32() (v uint32) {
	if field := r.take(4); field != nil {
		v = binary.BigEndian.Uint32(field)
	}
	return v
}

func (r *requestReader) u64() (v uint64) {
	if field := r.take(8); field != nil {
		v = binary.BigEndian.Uint64(field)
	}
	return v
}

func (r *requestReader) text() string { return string(r.take(int(r.u8()))) }

// end says whether the body held what it should, and nothing more.
func (r *requestReader) end() error {
	if r.failed || len(r.rest) > 0 {
		return errMalformedRequest
	}
	return nil
}
