package admin

import "time"

// The values that the API answers with. Their JSON is a contract: openapi.yaml
// describes it, the command line prints it with -o json.

// Status is a node at a glance.
type Status struct {
	Node          string    `json:"node"`
	Version       string    `json:"version"`
	Ready         bool      `json:"ready"`
	Reason        string    `json:"reason,omitempty"` // why it is not ready
	Started       time.Time `json:"started"`
	DataDir       string    `json:"data_dir"`
	Disk          Disk      `json:"disk"`
	Scrub         Scrub     `json:"scrub"`
	Addresses     Addresses `json:"addresses"`
	VHosts        int       `json:"vhosts"`
	Streams       int       `json:"streams"`
	Connections   int       `json:"connections"`
	Publishers    int       `json:"publishers"`
	Subscriptions int       `json:"subscriptions"`
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
	Rounds     uint64    `json:"rounds"` // finished since the start
	RoundBegan time.Time `json:"round_began"`
	RoundBytes int64     `json:"round_bytes"` // to be read in this round
	RoundDone  int64     `json:"round_done"`  // of these
	Bytes      uint64    `json:"bytes"`       // read since the start
	Damaged    uint64    `json:"damaged"`     // files found damaged since the start
	Unread     uint64    `json:"unread"`      // files that could not be opened
}

// Addresses are where the node's services are; empty ones are not served.
type Addresses struct {
	Stream     string `json:"stream"`
	Advertised string `json:"advertised"`
	HTTP       string `json:"http"`
	Management string `json:"management,omitempty"`
}

// Stream is a stream with its figures on this node.
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
	Figures
}

// Figures are what a replica knows of its log.
type Figures struct {
	// FirstOffset is the first readable record; NextOffset the one that the
	// next committed record gets, so Messages is their difference.
	FirstOffset   uint64 `json:"first_offset"`
	NextOffset    uint64 `json:"next_offset"`
	Messages      uint64 `json:"messages"`
	CommittedLSN  uint64 `json:"committed_lsn"`
	Segments      int    `json:"segments"`
	Bytes         Bytes  `json:"bytes"`
	StoredOffsets int    `json:"stored_offsets"`
	Sequences     int    `json:"publisher_sequences"`
	// WindowMS is how far back a stored offset may fall if all nodes lose
	// power now, in milliseconds.
	WindowMS int64 `json:"window_ms"`
}

// Bytes tells what a log's bytes are for.
type Bytes struct {
	User     uint64 `json:"user"` // what retention counts
	Trailer  uint64 `json:"trailer"`
	Delta    uint64 `json:"delta"`
	Snapshot uint64 `json:"snapshot"`
	Filter   uint64 `json:"filter"`
	Disk     uint64 `json:"disk"` // of the files
}

// Tracking is the bytes that remember readers.
func (b Bytes) Tracking() uint64 { return b.Trailer + b.Delta + b.Snapshot }

// Segment is one file of a log.
type Segment struct {
	File           string `json:"file"`
	State          string `json:"state"` // active, sealed or damaged
	FirstLSN       uint64 `json:"first_lsn"`
	LastLSN        uint64 `json:"last_lsn"`
	FirstOffset    uint64 `json:"first_offset"`
	NextOffset     uint64 `json:"next_offset"`
	FirstTimestamp int64  `json:"first_timestamp_ms"` // of user chunks; 0: there are none
	LastTimestamp  int64  `json:"last_timestamp_ms"`
	Chunks         uint64 `json:"chunks"` // user chunks
	Records        uint64 `json:"records"`
	Bytes          Bytes  `json:"bytes"`
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
	File     string   `json:"file"`
	Chunks   uint64   `json:"chunks"`
	Records  uint64   `json:"records"`
	Bytes    int64    `json:"bytes"`    // of the file
	Problems []string `json:"problems"` // each says where; empty: all is well
}

// Connection is one client.
type Connection struct {
	Name          string            `json:"name"` // peer -> us, as the ancestor names it
	User          string            `json:"user"`
	VHost         string            `json:"vhost"`
	Connected     time.Time         `json:"connected"`
	Publishers    int               `json:"publishers"`
	Subscriptions int               `json:"subscriptions"`
	Properties    map[string]string `json:"client_properties"`
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
