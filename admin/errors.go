package admin

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"

	"github.com/millrace/millrace/cluster/catalog"
)

var (
	// ErrNoReplica: the node has no copy of the stream, or not any more.
	ErrNoReplica = errors.New("no replica of the stream on this node")
	// ErrElsewhere: only the stream's leader can do it, and that is another node.
	ErrElsewhere = errors.New("another node leads the stream")
	// ErrNoSegment: the log has no file of that name.
	ErrNoSegment = errors.New("no such segment")
	// ErrUnavailable: no majority of the nodes answered in time.
	ErrUnavailable = errors.New("the cluster's metadata can't be changed now")
	// ErrOtherCluster: the node asked about is one of another cluster.
	ErrOtherCluster = errors.New("the node belongs to another cluster")
	// ErrNotLed: the stream has no leader now, or lost it on the way.
	ErrNotLed = errors.New("the stream has no leader at present")
	// ErrReferenceInUse: a publisher is connected under the reference.
	ErrReferenceInUse = errors.New("the reference is in use")
	// ErrNoPeer: no other replica of the stream has what is damaged here.
	ErrNoPeer = errors.New("there is no other replica to fetch from")
	// ErrSilent: another node that the request is for did not answer.
	ErrSilent = errors.New("the node does not answer")

	errNoCredentials   = errors.New("credentials are needed")
	errBadCredentials  = errors.New("user or password is wrong")
	errOtherHost       = errors.New("this node does not go by the name that it was asked under")
	errNotAllowed      = errors.New("the user's tags do not allow this")
	errBadBody         = errors.New("the body is not the JSON that this call takes")
	errNoConnection    = errors.New("no such connection")
	errManyConnections = errors.New("more than one connection has that name")
	errNoReference     = errors.New("nothing is stored under the reference")
	errReferenceTaken  = errors.New("something is stored under the reference already")
	errBadQuery        = errors.New("a parameter makes no sense")
	errNothingRead     = errors.New("the stream is empty: no stored offset says that nothing was read")
)

// statuses maps errors to answers; the first row that matches counts.
var statuses = []struct {
	err    error
	status int
	code   string
	try    string
}{
	{errNoCredentials, http.StatusUnauthorized, "no_credentials", "send a user and password (basic authentication)"},
	{errBadCredentials, http.StatusUnauthorized, "bad_credentials", "check user and password; guest is let in from loopback alone"},
	{errOtherHost, http.StatusMisdirectedRequest, "other_host", "ask it by its IP address, localhost or its node name, or name the host in its setting http.hosts"},
	{errNotAllowed, http.StatusForbidden, "not_allowed", "use a user tagged administrator (monitoring is enough to look)"},
	{errBadBody, http.StatusBadRequest, "bad_body", "see /api/v1/openapi.yaml"},
	{catalog.ErrBadArgument, http.StatusBadRequest, "bad_argument", ""},
	{catalog.ErrStreamExists, http.StatusConflict, "stream_exists", "the stream is there with the same arguments: nothing is left to do"},
	{catalog.ErrStreamDiffers, http.StatusConflict, "stream_differs", "delete the stream first, or take another name"},
	{catalog.ErrStreamMissing, http.StatusNotFound, "stream_missing", "see millrace stream list"},
	{catalog.ErrReplicaMissing, http.StatusConflict, "replica_missing", "millrace stream describe names the nodes that have one"},
	{catalog.ErrReplicaExists, http.StatusConflict, "replica_exists", "it is there: nothing is left to do; millrace replica list STREAM shows all"},
	{catalog.ErrVHostExists, http.StatusConflict, "vhost_exists", ""},
	{catalog.ErrVHostMissing, http.StatusNotFound, "vhost_missing", "see millrace vhost list"},
	{catalog.ErrUserExists, http.StatusConflict, "user_exists", "millrace user passwd, tags or delete"},
	{catalog.ErrUserMissing, http.StatusNotFound, "user_missing", "see millrace user list"},
	{ErrNoReplica, http.StatusNotFound, "no_replica", ""},
	{ErrElsewhere, http.StatusConflict, "elsewhere", "ask again; the stream's leader has just changed"},
	{ErrNoSegment, http.StatusNotFound, "no_segment", "see millrace segment list STREAM"},
	{errNoReference, http.StatusNotFound, "reference_missing", "see millrace tracking list STREAM"},
	{errReferenceTaken, http.StatusConflict, "reference_exists", "ask for it to be overwritten"},
	{ErrReferenceInUse, http.StatusConflict, "reference_in_use", "close the publisher first"},
	{errNothingRead, http.StatusConflict, "stream_empty", "delete the reference: its reader then starts where it likes to"},
	{catalog.ErrGroupMissing, http.StatusNotFound, "group_missing", "see millrace consumer groups"},
	{errBadQuery, http.StatusBadRequest, "bad_argument", "see /api/v1/openapi.yaml"},
	{ErrNotLed, http.StatusServiceUnavailable, "not_led", "ask again in a moment; a leader is being elected"},
	{ErrSilent, http.StatusGatewayTimeout, "node_silent", "see millrace cluster members; another replica of the stream answers with --node"},
	{ErrNoPeer, http.StatusPreconditionFailed, "no_peer", "millrace segment verify STREAM names what is lost; the rest can be read, and deleting the stream gives all of it up"},
	{errNoConnection, http.StatusNotFound, "no_connection", "see millrace connection list"},
	{errManyConnections, http.StatusConflict, "many_connections", "say which node's (--node, ?node=)"},
	{catalog.ErrUnsafe, http.StatusPreconditionFailed, "unsafe", ""},
	{catalog.ErrNodeMissing, http.StatusNotFound, "node_missing", "see millrace cluster members"},
	{catalog.ErrNodeInUse, http.StatusConflict, "node_in_use", "see millrace cluster members"},
	{ErrOtherCluster, http.StatusConflict, "other_cluster", "a node changes its cluster only with an empty data directory: stop it, move that away, start it with --join"},
	{ErrUnavailable, http.StatusServiceUnavailable, "unavailable", "see millrace cluster members; a majority of the metadata's voters must answer"},
	{catalog.ErrLimit, http.StatusTooManyRequests, "limit", ""},
	{os.ErrDeadlineExceeded, http.StatusGatewayTimeout, "timeout", "ask again; the node may be electing or its disk slow"},
}

// failure is the answer that err gets.
func failure(err error) (int, Failure) {
	if no, ok := errors.AsType[*failedThere](err); ok {
		return no.status, no.failure
	}
	for _, row := range statuses {
		if errors.Is(err, row.err) {
			return row.status, Failure{Code: row.code, Message: err.Error(), Try: row.try}
		}
	}
	return http.StatusInternalServerError, Failure{Code: "internal", Message: err.Error(), Try: "see the node's log"}
}

func writeFailure(w http.ResponseWriter, err error) {
	status, body := failure(err)
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="Millrace", charset="UTF-8"`)
	}
	writeJSON(w, status, body)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body) // the caller hung up: nobody is left to tell
}
