package integration

// A room is a package of the house with the question that it answers and what
// it may import of ours. README draws the same table; TestLayers_readmeAgrees
// compares the two.
type room struct {
	path string
	// pure rooms decide and never act: no clock, I/O, goroutine, lock, global
	// randomness or unsorted map iteration, standard library only, so that a
	// simulator can replay them by seed.
	pure     bool
	question string
	may      []string // our rooms that it may import
	reason   string   // what an import beyond may would break
	// later marks a room of the plan that has no code yet.
	later bool
	// libraries: "" means the standard library and golang.org/x alone; "any"
	// that the room may use other modules too. Pure rooms get no module at all.
	libraries string
	// testsMay lists rooms that only the room's tests may import.
	testsMay []string
}

const moduleName = "github.com/millrace/millrace"

// house is design in a table: imports point down, from a row to rows above it.
var house = []room{
	{path: "segstore/chunk", pure: true, question: "what is a chunk, byte for byte?",
		reason: "everything is built on the chunk, so it can lean on nothing"},
	{path: "wire", pure: true, question: "what do clients say?",
		reason: "the client's language must not depend on how we store or replicate"},
	{path: "segstore/vfs", question: "how is the disk reached?",
		reason: "a file system that knew what is stored in it could not be swapped for a faulty one"},
	{path: "tracking", pure: true, question: "who has read and written how far, and when is it worth writing?",
		may: []string{"segstore/chunk"}, reason: "tracking is a value that is folded from chunks; who stores or ships it is not its business"},
	{path: "segstore/manifest", pure: true, question: "what do the sealed segments contain?",
		may: []string{"segstore/chunk"}, reason: "a manifest describes files; opening them is segstore's work"},
	{path: "replication/protocol", pure: true, question: "how do replicas agree?",
		may: []string{"segstore/chunk"}, reason: "the rules are searched by a simulator, which has no disk, network or clock"},
	{path: "segstore/plan", pure: true, question: "what may be deleted, compacted, merged?",
		may: []string{"segstore/chunk", "segstore/manifest"}, reason: "a plan is decided from summaries alone; carrying it out is segstore's work"},
	{path: "cluster/catalog", pure: true, question: "what streams, replicas, users exist; what is the next step?",
		may: []string{"segstore/chunk", "replication/protocol"}, reason: "every node must come to the same catalog from the same commands"},
	{path: "segstore", question: "append, recover, read, seal, compact; the node journal",
		may:      []string{"segstore/chunk", "segstore/manifest", "segstore/plan", "segstore/vfs", "tracking"},
		reason:   "a log that knew of leaders or clients could not be recovered or inspected alone",
		testsMay: []string{"segstore/crashtest"}},
	{path: "replication/link", question: "how do nodes talk?",
		may: []string{"segstore/chunk", "replication/protocol"}, reason: "the link carries messages of the protocol and decides nothing"},
	{path: "cluster", libraries: "any", question: "who is here, and who leads?",
		may: []string{"segstore/chunk", "cluster/catalog", "replication/protocol"}, testsMay: []string{"replication/link"}, reason: "the metadata plane never touches a log: no message and no stored offset passes through it"},
	{path: "replication", question: "run this node's replicas: one short turn for each event",
		may:      []string{"segstore/chunk", "tracking", "segstore", "replication/protocol"},
		reason:   "replicas take assignments as values; where these come from is joined in cmd",
		testsMay: []string{"segstore/vfs"}},
	{path: "broker", question: "serve clients: sessions, publishers, subscriptions, credit",
		may:      []string{"wire", "segstore/chunk", "cluster/catalog", "segstore", "replication"},
		reason:   "a session speaks to the catalog and to replicas, never to raft or files",
		testsMay: []string{"client", "segstore/vfs"}},
	{path: "client", libraries: "any", question: "how do our own tools talk to any broker of this protocol?",
		may: []string{"wire", "segstore/chunk"}, reason: "a client that knew our broker could not be pointed at another one"},
	{path: "admin", libraries: "any", question: "serve operators: HTTP API `/api/v1`, management subset, metrics, embedded page",
		may: []string{"cluster/catalog", "segstore/chunk"}, testsMay: []string{"replication/protocol"}, reason: "operators' answers come through small interfaces, so that the page never reaches into a replica"},
	{path: "cmd/millrace", libraries: "any", question: "wiring; the room that knows all",
		may: []string{"*"}},
	{path: "integration", libraries: "any", question: "does the whole hold together?",
		may: []string{"*"}},
}

// impureImports maps what a pure room may not import to the reason. Prefixes
// end in a slash.
var impureImports = map[string]string{
	"time":         "a clock (durations travel as numbers with their unit in the name)",
	"os":           "I/O",
	"os/":          "I/O",
	"io/fs":        "I/O",
	"net":          "I/O",
	"net/":         "I/O",
	"syscall":      "I/O",
	"log":          "I/O",
	"log/":         "I/O",
	"sync":         "a lock",
	"sync/":        "atomics",
	"context":      "deadlines, which are a clock",
	"math/rand":    "global randomness",
	"math/rand/":   "global randomness",
	"crypto/rand":  "global randomness",
	"runtime":      "the scheduler",
	"runtime/":     "the scheduler",
	"unsafe":       "addresses, which differ from run to run",
	"testing":      "the test runner outside of a test",
	"expvar":       "global state",
	"plugin":       "I/O",
	"database/sql": "I/O",
	"hash/maphash": "a seed drawn at start",
}
