package link

import "github.com/millrace/millrace/segstore/chunk"

// queue is what waits for a connection's writer: one line for each stream, so
// that none waits behind a stream that has no credit, and messages go before
// chunks of other streams.
//
//	line A  ack                  ─▶ urgent ─┐
//	line B  chunk chunk commit   ─▶ bulk   ─┼─▶ batch ─▶ writer
//	line C  chunk (no credit)       waits   ┘
//
// A line is in the urgent ring if its first item costs nothing, in the bulk ring
// if that is a chunk and the line has credit, else in none.
type queue struct {
	window              int
	lineBytes, lineSize int // bounds of a line
	bytesMax            int
	lines               map[chunk.Incarnation]*line
	free                []*line
	plain               line // requests and responses
	urgent, bulk        ring[*line]
	bytes               int     // of all lines, and of the batch being written
	down                []*line // dropped, and to be told when the queue is shorter
}

// line is one stream's items, in order.
type line struct {
	stream chunk.Incarnation
	items  ring[item]
	bytes  int
	credit int  // what may be sent; a frame may overdraw it, once
	ready  bool // in a ring
	down   bool // dropped; takes nothing
}

// item is a frame that waits.
type item struct {
	header     [headerRoom]byte // length and fields
	size       int              // of header; 0: they are in large
	large      []byte
	head, data []byte // beside
	held       Held
	cost       int // of credit
}

func (i *item) bytes() int { return i.size + len(i.large) + len(i.head) + len(i.data) }

// freeLines bounds the lines that are kept for reuse.
const freeLines = 1024

func (q *queue) init(c *Config) {
	q.window, q.bytesMax = c.WindowBytes, c.QueueBytes
	q.lineBytes, q.lineSize = c.StreamQueueBytes, c.StreamQueueFrames
	q.lines = map[chunk.Incarnation]*line{}
}

// push queues a frame; false if its stream had to be dropped.
func (q *queue) push(f *Frame) bool {
	l := q.line(f.Stream)
	if l.down {
		return true // has been told
	}
	cost := f.Credit()
	full := l.items.n >= q.lineSize || cost > 0 && l.items.n > 0 && (l.bytes+cost > q.lineBytes || q.bytes+cost > q.bytesMax)
	if full {
		q.dropLine(l)
		return false
	}
	it := l.items.push()
	fields, err := appendFrame(it.header[:0], f)
	if err != nil {
		l.items.unpush()
		q.dropLine(l)
		return false
	}
	it.size, it.cost = len(fields), cost
	if len(fields) > headerRoom || len(f.Pending) > 0 {
		it.large, it.size = append(fields[:len(fields):len(fields)], f.Pending...), 0
	}
	it.head, it.data, it.held = f.Head, f.Data, f.Held
	if f.Held != nil {
		f.Held.Retain()
	}
	l.bytes += it.bytes()
	q.bytes += it.bytes()
	q.place(l)
	return true
}

func (q *queue) line(s chunk.Incarnation) *line {
	l := q.lines[s]
	if l != nil {
		return l
	}
	if n := len(q.free); n > 0 {
		l, q.free = q.free[n-1], q.free[:n-1]
	} else {
		l = &line{}
	}
	l.stream, l.credit = s, q.window
	q.lines[s] = l
	return l
}

// pushPlain queues a request or response with its body.
func (q *queue) pushPlain(c *control, body []byte) {
	it := q.plain.items.push()
	it.size = len(appendControl(it.header[:0], c))
	it.data = body
	q.plain.bytes += it.bytes()
	q.bytes += it.bytes()
	q.place(&q.plain)
}

// place puts a line into the ring that its first item belongs to.
func (q *queue) place(l *line) {
	if l.ready || l.items.n == 0 {
		return
	}
	switch first := l.items.at(0); {
	case first.cost == 0:
		*q.urgent.push() = l
	case l.credit > 0:
		*q.bulk.push() = l
	default:
		return
	}
	l.ready = true
}

// Bounds of a batch: what is written at once.
const (
	batchBytes = 256 << 10
	batchItems = 256
	// urgentRun is how many messages go before a chunk gets its turn.
	urgentRun = 64
)

// batch moves what goes next into b.
func (q *queue) batch(b []item) []item {
	bytes := 0
	for run := 0; bytes < batchBytes && len(b) < batchItems; {
		from := &q.urgent
		if from.n == 0 || run >= urgentRun && q.bulk.n > 0 {
			from, run = &q.bulk, 0
		}
		if from.n == 0 {
			break
		}
		l := *from.at(0)
		from.pop()
		l.ready = false
		it := l.items.at(0)
		b = append(b, *it)
		bytes += it.bytes()
		l.bytes -= it.bytes()
		l.credit -= it.cost
		*it = item{}
		l.items.pop()
		q.place(l)
		q.retire(l)
		run++
	}
	return b
}

// done takes a written batch off the count, and returns the streams that were
// dropped and may go on.
func (q *queue) done(b []item) (up []chunk.Incarnation) {
	for i := range b {
		q.bytes -= b[i].bytes()
	}
	if len(q.down) == 0 || q.bytes > q.bytesMax/2 {
		return nil
	}
	for _, l := range q.down {
		l.down = false
		up = append(up, l.stream)
		q.retire(l)
	}
	q.down = q.down[:0]
	return up
}

// credited lets a stream send so much more; false if that is more than it can
// have spent.
func (q *queue) credited(s chunk.Incarnation, n int) bool {
	l := q.lines[s]
	if l == nil || l.credit+n > q.window {
		return false
	}
	l.credit += n
	q.place(l)
	q.retire(l)
	return true
}

// retire forgets a line that is as it was when it was made.
func (q *queue) retire(l *line) {
	if l == &q.plain || l.items.n > 0 || l.down || l.credit != q.window {
		return
	}
	delete(q.lines, l.stream)
	if len(q.free) < freeLines {
		l.items.shrink()
		q.free = append(q.free, l)
	}
}

func (q *queue) dropLine(l *line) {
	l.down = true
	q.down = append(q.down, l)
	q.clear(l)
}

func (q *queue) clear(l *line) {
	for l.items.n > 0 {
		it := l.items.at(0)
		q.bytes -= it.bytes()
		if it.held != nil {
			it.held.Release()
		}
		*it = item{}
		l.items.pop()
	}
	l.bytes = 0
	if l.ready {
		q.urgent.remove(func(o *line) bool { return o == l })
		q.bulk.remove(func(o *line) bool { return o == l })
		l.ready = false
	}
}

// drop forgets everything that waits.
func (q *queue) drop() {
	for _, l := range q.lines {
		q.clear(l)
	}
	q.clear(&q.plain)
	q.lines, q.free, q.down = map[chunk.Incarnation]*line{}, nil, nil
}
