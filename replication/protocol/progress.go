package protocol

import "github.com/millrace/millrace/segstore/chunk"

// phase is how far a session has come.
type phase uint8

const (
	phaseDown      phase = iota // no link
	phaseRefused                // waits for the next try
	phaseHello                  // hello is sent
	phaseSearching              // welcome is in, the search goes on
	phaseStreaming              // chunks flow
)

func (p phase) String() string {
	return [...]string{"down", "refused", "hello", "searching", "streaming"}[p]
}

// Progress is what a leader knows of one other replica. All but the member
// entry is void when a session ends (B3).
type Progress struct {
	Member  Member
	phase   phase
	session SessionID
	since   Tick // of the phase
	// What the follower said in this session's welcome.
	run          RunID
	registration Registration
	aside        bool

	acked chunk.LSN // durable there; invariant: acked < next
	next  chunk.LSN // first LSN not sent yet; 0 until joined
	first bool      // the next frame names the chunk before it

	reading  bool      // an OutRead is out
	readFrom chunk.LSN // where it began
	flight   flight

	commitSent chunk.LSN
	startSent  chunk.LSN
	pendingAt  Tick   // when pending updates were last sent
	pendingSet bool   // this session has had the full set
	pendingTo  uint64 // version of the newest sent

	checked    uint64 // highest check confirmed
	proposed   bool   // a clearing or promotion is asked for
	proposedAt Tick
}

// Node is whose progress this is.
func (p *Progress) Node() NodeID { return p.Member.Node }

// Session is the present one's number.
func (p *Progress) Session() SessionID { return p.session }

// Streaming tells whether the search is done.
func (p *Progress) Streaming() bool { return p.phase == phaseStreaming }

// Acked is what is known durable there in this session.
func (p *Progress) Acked() chunk.LSN { return p.acked }

// flight is the window of chunks sent and not acked: a ring of (LSN, bytes).
type flight struct {
	ring  []sent
	head  int
	n     int
	bytes int64
}

type sent struct {
	lsn   chunk.LSN
	bytes uint32
}

func (f *flight) reset() { f.head, f.n, f.bytes = 0, 0, 0 }

// full tells whether the window has no room. An empty window always has.
func (f *flight) full(l Limits) bool {
	return f.n > 0 && (f.n >= l.WindowChunks || f.bytes >= l.WindowBytes)
}

func (f *flight) add(n chunk.LSN, bytes uint32) {
	if f.n == len(f.ring) {
		ring := make([]sent, max(64, 2*len(f.ring)))
		for i := range f.n {
			ring[i] = f.ring[(f.head+i)&(len(f.ring)-1)]
		}
		f.ring, f.head = ring, 0
	}
	f.ring[(f.head+f.n)&(len(f.ring)-1)] = sent{n, bytes}
	f.n++
	f.bytes += int64(bytes)
}

func (f *flight) release(acked chunk.LSN) {
	for f.n > 0 && f.ring[f.head].lsn <= acked {
		f.bytes -= int64(f.ring[f.head].bytes)
		f.head = (f.head + 1) & (len(f.ring) - 1)
		f.n--
	}
}
