package admin

import "time"

// The values that the API answers with. Their JSON is a contract: openapi.yaml
// describes it, the command line prints it with -o json.

// Status is a node at a glance.
type Status struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Ready   bool      `json:"ready"`
	Reason  string    `json:"reason,omitempty"` // why it is not ready
	Started time.Time `json:"started"`
	DataDir string    `json:"data_dir"`
	Disk    Disk      `json:"disk"`
	Scrub   Scrub     `json:"scrub"`
	// DamagedSegments are those of all streams here; the end of a log counts as one.
	DamagedSegments int `json:"damaged_segments"`
	// Certificates are those that this node shows.
	Certificates  []Certificate `json:"certificates,omitempty"`
	Addresses     Addresses     `json:"addresses"`
	VHosts        int           `json:"vhosts"`
	Streams       int           `json:"streams"`
	Connections   int           `json:"connections"`
	Publishers    int           `json:"publishers"`
	Subscriptions int           `json:"subscriptions"`
}

// Certificate is one that the node shows to others.
type Certificate struct {
	For     string    `json:"for"` // clients (and operators), or nodes
	Subject string    `json:"subject"`
	Issuer  string    `json:"issuer"`
	Hosts   []string  `json:"hosts,omitempty"`
	Ends    time.Time `json:"ends"`
	// Error is why its files, which have changed, can't be taken; the one above
	// is shown on.
	Error string `json:"error,omitempty"`
}

// Disk is the disk of the data directory, and what its free space leads to.
type Disk struct {
	Level      string     `json:"level"`           // ok, low or alarm
	Since      *time.Time `json:"since,omitempty"` // when that was reached
	FreeBytes  uint64     `json:"free_bytes"`
	TotalBytes uint64     `json:"total_bytes"`
	// Watched: the limits below are at work.
	Watched bool `json:"watched"`
	// Below LowBelowBytes retention runs; below AlarmBelowBytes publishers are
	// stopped, until there are LowBelowBytes again; below FloorBytes no message
	// is written.
	LowBelowBytes   uint64 `json:"low_below_bytes"`
	AlarmBelowBytes uint64 `json:"alarm_below_bytes"`
	FloorBytes      uint64 `json:"floor_bytes"`
	Error           string `json:"error,omitempty"` // why the disk could not be measured
}

// Scrub is how far the node is with reading its disk through for rot.
type Scrub struct {
	Rounds     uint64    `json:"rounds"`               // finished since the start
	RoundBegan time.Time `json:"round_began,omitzero"` // absent before the first
	RoundBytes int64     `json:"round_bytes"`          // to be read in this round
	RoundDone  int64     `json:"round_done"`           // of these
	Bytes      uint64    `json:"bytes"`                // read since the start
	Damaged    uint64    `json:"damaged"`              // files found damaged since the start
	// Compared are places at which a follower here and its leader were held
	// against each other since the start; Differing those where they differ.
	Compared  uint64 `json:"compared"`
	Differing uint64 `json:"differing"`
	Unread    uint64 `json:"unread"` // files that could not be opened
}

// Addresses are where the node's services are; empty ones are not served.
type Addresses struct {
	Stream        string `json:"stream"`
	Advertised    string `json:"advertised"`
	StreamTLS     string `json:"stream_tls,omitempty"`
	AdvertisedTLS string `json:"advertised_tls,omitempty"`
	HTTP          string `json:"http"`
	HTTPTLS       string `json:"http_tls,omitempty"`
	Management    string `json:"management,omitempty"`
}

// Stream is a stream with the figures of one replica: the leader's, or where
// that does not answer the one on the node that was asked.
type Stream struct {
	VHost       string            `json:"vhost"`
	Name        string            `json:"name"`
	Incarnation string            `json:"incarnation"`
	Created     time.Time         `json:"created"`
	Creator     string            `json:"creator,omitempty"`
	Arguments   map[string]string `json:"arguments"`
	Leader      string            `json:"leader,omitempty"` // empty: none at present
	Epoch       uint64            `json:"epoch"`
	Replicas    []string          `json:"replicas"`
	// FiguresOf is the node whose replica tells the figures below. Where it is
	// empty they are unknown and zero, and Unknown says why.
	FiguresOf string `json:"figures_of,omitempty"`
	Unknown   string `json:"unknown,omitempty"`
	Figures
}

// Figures are what a replica knows of its log.
type Figures struct {
	// FirstOffset is the first readable record; NextOffset the one that the
	// next committed record gets, so Messages is their difference.
	FirstOffset  uint64 `json:"first_offset"`
	NextOffset   uint64 `json:"next_offset"`
	Messages     uint64 `json:"messages"`
	CommittedLSN uint64 `json:"committed_lsn"`
	Segments     int    `json:"segments"`
	// DamagedSegments are known to be damaged; the log's end counts as one.
	DamagedSegments int   `json:"damaged_segments"`
	Bytes           Bytes `json:"bytes"`
	StoredOffsets   int   `json:"stored_offsets"`
	Sequences       int   `json:"publisher_sequences"`
	// WindowMS is how far back a stored offset may fall if all nodes lose
	// power now, in milliseconds.
	WindowMS int64 `json:"window_ms"`
	// The caps, and what has been evicted because of them since the start.
	StoredOffsetsMax     int    `json:"stored_offsets_max"`
	StoredOffsetsEvicted uint64 `json:"stored_offsets_evicted"`
	SequencesMax         int    `json:"publisher_sequences_max"`
	SequencesEvicted     uint64 `json:"publisher_sequences_evicted"`
	// StoredOffsetsPending wait to be written, at most for the window.
	StoredOffsetsPending int `json:"stored_offsets_pending"`
	// TrackingBytes is what stored offsets take on disk, with the barrier of 96
	// bytes that each leader begins with; TrackingBound what they may: 5 % of user bytes, or nine snapshots and 4 MiB. SequenceBytes, of
	// publishers, are apart.
	TrackingBytes uint64     `json:"tracking_bytes"`
	TrackingBound uint64     `json:"tracking_bound_bytes"`
	SequenceBytes uint64     `json:"sequence_bytes"`
	Compaction    Compaction `json:"compaction"`
	// Leads: it is the leader's replica. The rest is the leader's alone.
	Leads bool `json:"leads"`
	// PublishersStopped: the disks of so many of the stream's nodes are low that
	// no majority has room.
	PublishersStopped bool       `json:"publishers_stopped"`
	Followers         []Follower `json:"followers,omitempty"`
}

// Follower is another replica as the leader sees it.
type Follower struct {
	Node   string `json:"node"`
	Linked bool   `json:"linked"` // chunks flow
	// Behind are chunks of the leader's log that are not known to be durable
	// there; of one that is not linked, all.
	Behind uint64 `json:"behind_chunks"`
}

// Compaction tells what compacting a log could gain now, and what it has done
// since the log was opened.
type Compaction struct {
	Droppable uint64 `json:"droppable_bytes"`
	Dropped   uint64 `json:"dropped_bytes"`
	Rewritten uint64 `json:"rewritten_bytes"` // copied for it
	Pinned    uint64 `json:"pinned_bytes"`    // of replaced files that are still read
	Drops     uint64 `json:"drops"`           // segments that lost tracking
	Merges    uint64 `json:"merges"`
	Failures  uint64 `json:"failures"`
	LastError string `json:"last_error,omitempty"`
}

// Bytes tells what a log's bytes are for.
type Bytes struct {
	User     uint64 `json:"user"` // what retention counts
	Trailer  uint64 `json:"trailer"`
	Delta    uint64 `json:"delta"`
	Snapshot uint64 `json:"snapshot"`
	Filter   uint64 `json:"filter"`
	Index    uint64 `json:"index"` // beside the segments' files
	Disk     uint64 `json:"disk"`  // of the segments' files
}

// Tracking is the bytes that remember readers.
func (b Bytes) Tracking() uint64 { return b.Trailer + b.Delta + b.Snapshot }

// Segment is one file of a log.
type Segment struct {
	File           string `json:"file"`
	Generation     uint32 `json:"generation"` // 0 as written, higher after each compaction
	UnitStart      bool   `json:"unit_start"` // a unit of retention begins here
	State          string `json:"state"`      // active, sealed or damaged
	FirstLSN       uint64 `json:"first_lsn"`
	LastLSN        uint64 `json:"last_lsn"`
	FirstOffset    uint64 `json:"first_offset"`
	NextOffset     uint64 `json:"next_offset"`
	FirstTimestamp int64  `json:"first_timestamp_ms"` // of user chunks; 0: there are none
	LastTimestamp  int64  `json:"last_timestamp_ms"`
	Chunks         uint64 `json:"chunks"` // user chunks
	Records        uint64 `json:"records"`
	Bytes          Bytes  `json:"bytes"`
	TrackingBytes  uint64 `json:"tracking_bytes"` // of stored offsets
	SequenceBytes  uint64 `json:"sequence_bytes"` // of publishers
	// Droppable could be gained by compaction now; Dropped has been since the
	// log was opened. The files of a stopped node tell neither.
	Droppable uint64 `json:"droppable_bytes"`
	Dropped   uint64 `json:"dropped_bytes"`
}

// Chunk is one chunk of a segment.
type Chunk struct {
	Position     int64  `json:"position"` // in the file
	LSN          uint64 `json:"lsn"`
	Epoch        uint64 `json:"epoch"`
	Type         string `json:"type"`
	Flags        string `json:"flags,omitempty"`
	FirstOffset  uint64 `json:"first_offset"`
	Entries      int    `json:"entries"`
	Records      uint32 `json:"records"`
	Timestamp    int64  `json:"timestamp_ms"`
	DataBytes    int    `json:"data_bytes"`
	TrailerBytes int    `json:"trailer_bytes"`
	FilterBytes  int    `json:"filter_bytes"`
}

// Verdict is what reading a whole file found.
type Verdict struct {
	Node     string   `json:"node,omitempty"` // whose replica; absent of a stopped node
	File     string   `json:"file"`
	Chunks   uint64   `json:"chunks"`
	Records  uint64   `json:"records"`
	Bytes    int64    `json:"bytes"`    // of the file
	Problems []string `json:"problems"` // each says where; empty: all is well
	// Unknown: the node could not be asked, Problems says why, and nothing is
	// known of any of its files.
	Unknown bool `json:"unknown,omitempty"`
}

// The kinds of a Reference.
const (
	KindOffset = "offset"
	KindWriter = "writer"
)

// Reference is what a stream remembers of a reader (kind offset) or of a
// publisher (kind writer).
type Reference struct {
	Reference string `json:"reference"`
	Kind      string `json:"kind"`
	// Value is the stored offset, or the last publishing id.
	Value uint64 `json:"value"`
	// State is pending while no chunk of the log carries the value, else
	// written.
	State string `json:"state"`

	// Of readers only. Lag is the last committed offset less the stored one, 0
	// where that is Ahead of the log; LagMS the age of the first message that
	// was not read, absent where it could not be found out. Stale: retention has
	// taken the message behind the stored one.
	Lag     *uint64    `json:"lag_messages,omitempty"`
	LagMS   *int64     `json:"lag_ms,omitempty"`
	Updated *time.Time `json:"updated,omitempty"`
	AgeMS   *int64     `json:"age_ms,omitempty"` // of the last update
	Stale   bool       `json:"stale,omitempty"`
	Ahead   bool       `json:"ahead,omitempty"`

	// Of writers only: the chunk that carries the value, and the sessions that
	// publish under the reference now.
	LSN      uint64 `json:"lsn,omitempty"`
	Sessions int    `json:"sessions,omitempty"`
}

// SetOffset is the body of a set: Offset as it is, or At.
type SetOffset struct {
	Offset *uint64 `json:"offset,omitempty"`
	// At names the message that is to be read next: first, last (the last
	// chunk's first), next, or time with TimestampMS.
	At          string `json:"at,omitempty"`
	TimestampMS int64  `json:"timestamp_ms,omitempty"`
	DryRun      bool   `json:"dry_run,omitempty"`
}

// CopyOffset is the body of a copy.
type CopyOffset struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Overwrite bool   `json:"overwrite,omitempty"` // what is stored under To
	DryRun    bool   `json:"dry_run,omitempty"`
}

// MovedOffset is what a set or a copy did, or would do.
type MovedOffset struct {
	Reference string  `json:"reference"`
	Before    *uint64 `json:"before,omitempty"` // absent: nothing was stored
	Value     uint64  `json:"value"`
	DryRun    bool    `json:"dry_run,omitempty"`
}

// ExpireOffsets is the body of an expiry of stored offsets.
type ExpireOffsets struct {
	OlderThanMS int64 `json:"older_than_ms"`
	DryRun      bool  `json:"dry_run,omitempty"`
}

// Repair is what fetching damaged segments from another replica came to.
type Repair struct {
	Repaired []string `json:"repaired"`          // NODE: FILE
	Damaged  []string `json:"damaged"`           // what is damaged still; each says where
	Unknown  []string `json:"unknown,omitempty"` // nodes that did not answer, and why
}

// Connection is one client.
type Connection struct {
	Name          string            `json:"name"` // peer -> us, as the ancestor names it
	Node          string            `json:"node"` // that it is connected to
	User          string            `json:"user"`
	VHost         string            `json:"vhost"`
	Mechanism     string            `json:"mechanism"`     // by which it logged in
	TLS           string            `json:"tls,omitempty"` // version and cipher; absent on the plain port
	Connected     time.Time         `json:"connected"`
	Publishers    int               `json:"publishers"`
	Subscriptions int               `json:"subscriptions"`
	Properties    map[string]string `json:"client_properties"`
}

// AtStream is what a connection has at a stream.
type AtStream struct {
	Stream     string `json:"stream"`
	VHost      string `json:"vhost"`
	Reference  string `json:"reference,omitempty"`
	Node       string `json:"node"`
	Connection string `json:"connection"`
	User       string `json:"user"`
	ID         int    `json:"id"` // within its connection
}

// Publisher is one of a connection's publishers. Counts are of messages, a
// sub-batch being one, since it was declared.
type Publisher struct {
	AtStream
	Published uint64 `json:"published"`
	Confirmed uint64 `json:"confirmed"`
	Refused   uint64 `json:"refused"`
}

// Consumer is one of a connection's subscriptions.
type Consumer struct {
	AtStream
	Offset   *uint64 `json:"offset,omitempty"` // of the last message sent; nil before the first
	Lag      *uint64 `json:"lag_messages,omitempty"`
	Consumed uint64  `json:"consumed"` // messages sent
	Credit   int     `json:"credit"`   // chunks that it may be sent
	// Activity of a single active consumer is single_active or waiting; Why says
	// what it waits for, or why it is it. Both are empty for others.
	Activity string `json:"activity,omitempty"`
	Why      string `json:"why,omitempty"`
}

// CreateStream is the body of a create.
type CreateStream struct {
	VHost     string            `json:"vhost"`
	Name      string            `json:"name"`
	Arguments map[string]string `json:"arguments"`
}

// Failure is the body of every answer that is no success.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Try     string `json:"try,omitempty"`
}
