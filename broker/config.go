package broker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/wire"
)

// Config holds what an operator may choose about the stream port. The zero
// value of each field means its default. The name in brackets is the field's
// name in the configuration file, and the one that errors mention.
type Config struct {
	// AdvertisedHost and AdvertisedPort [advertised.host, advertised.port] are
	// what clients are told to connect to, in Open and in Metadata alike.
	// Default: localhost and the listener's port.
	AdvertisedHost string
	AdvertisedPort int
	// AdvertisedTLSHost and AdvertisedTLSPort [advertised.tls_host,
	// advertised.tls_port] are the same for clients that came by TLS. Default:
	// AdvertisedHost and the TLS listener's port.
	AdvertisedTLSHost string
	AdvertisedTLSPort int
	// NodeName is this node's id in the catalog. ClusterName is shown to clients.
	NodeName    string
	ClusterName string
	// ReleaseVersion is Millrace's own version, shown beside the protocol's.
	ReleaseVersion string

	// FrameMax [stream.frame_max] is the largest frame accepted after Open, in
	// bytes without the four of its size. Default 1 MiB, at most 16 MiB.
	FrameMax uint32
	// InitialFrameMax [stream.initial_frame_max] is the same before Open.
	// Default 8 KiB, at most 64 KiB.
	InitialFrameMax uint32
	// Heartbeat [stream.heartbeat] is proposed in Tune, in whole seconds; the
	// client's answer decides. Default 60 s; negative proposes none.
	Heartbeat time.Duration

	// HandshakeTimeout [stream.handshake_timeout] is the time from the accepted
	// socket to a successful Open, whatever trickles in. Default 10 s.
	HandshakeTimeout time.Duration
	// TLSHandshakeTimeout [stream.tls.handshake_timeout] is the part of it that
	// TLS may take. Default 3 s.
	TLSHandshakeTimeout time.Duration
	// FailedLoginDelay [stream.failed_login_delay] is how long the answer to a
	// failed login or Open is withheld. Default 3 s.
	FailedLoginDelay time.Duration
	// CloseTimeout [stream.close_timeout] is how long a client may take to
	// answer our Close. Default 10 s.
	CloseTimeout time.Duration
	// PartialFrameTimeout [stream.partial_frame_timeout] is how long a frame
	// may take to arrive whole where no heartbeat was agreed. Default 120 s.
	PartialFrameTimeout time.Duration
	// BlockedSocketTimeout [stream.blocked_socket_timeout] is how long a client
	// may leave its socket full before it is cut. Default 60 s.
	BlockedSocketTimeout time.Duration
	// MetadataWait [stream.metadata_wait] is how long Metadata holds its answer
	// for a stream that has no leader yet. Default 2 s.
	MetadataWait time.Duration
	// RequestTimeout [stream.request_timeout] bounds what a command may wait
	// for inside the broker, such as Create. Default 8 s: clients give up after
	// 10, and would never learn why.
	RequestTimeout time.Duration
	// ConsumerUpdateTimeout [stream.consumer_update_timeout] is how long a single
	// active consumer may take to answer that it begins or has stopped, before its
	// connection is closed and another has its turn. Default 60 s.
	ConsumerUpdateTimeout time.Duration
	// GroupPatience [stream.group_patience] is after how long out of contact a
	// node's single active consumers are passed over; after half of it they get
	// nothing more. It must be the same on all nodes. Default 10 s.
	GroupPatience time.Duration

	// Connections [stream.connections] is the most for the node.
	// Default 10,000.
	Connections int
	// ConnectionsPerAddress [stream.connections_per_address] is the most for
	// one peer address other than loopback. Default 1,000.
	ConnectionsPerAddress int
	// NewConnectionsPerAddress [stream.new_connections_per_address] is the most
	// in a second for one peer address other than loopback. Default 100.
	NewConnectionsPerAddress int
	// Unopened [stream.unopened_connections] is the most that have not got
	// through Open yet; the oldest makes room. Default 256.
	Unopened int
	// UnopenedPerAddress [stream.unopened_connections_per_address] is the same
	// for one peer address other than loopback. Default 16.
	UnopenedPerAddress int
	// FailedLogins [stream.failed_logins_per_minute] is how many failures in a
	// minute an address other than loopback, or a user coming from such, may
	// have before further ones are refused unseen. A login by certificate counts
	// for the address only. Default 10.
	FailedLogins int

	// CertificateLogin [tls.login_from] says what in a client's certificate names
	// its user: common_name, distinguished_name or subject_alternative_name.
	// Default common_name.
	CertificateLogin string
	// LoopbackUsers [stream.loopback_users] may log in from loopback only.
	// Nil means guest; an empty list means that none is held to it.
	LoopbackUsers []string

	// Publishers and Subscriptions [stream.publishers_per_connection,
	// stream.subscriptions_per_connection]. Default and most 256: their ids
	// are a byte.
	Publishers    int
	Subscriptions int
	// UnconfirmedBytes [stream.unconfirmed_bytes] is how much a connection may
	// have published and not yet been told of before its socket is no longer
	// read. Default 8 MiB.
	UnconfirmedBytes int64
	// UnconfirmedBytesNode [stream.unconfirmed_bytes_node] is the same for all
	// connections together. Default 256 MiB; a quarter of the memory limit is
	// a good value.
	UnconfirmedBytesNode int64
	// AnswerBytes [stream.answer_bytes] is how much may wait to be written to a
	// connection, deliveries apart, before its socket is no longer read.
	// Default 1 MiB.
	AnswerBytes int
	// DeliverBytes [stream.deliver_bytes] is how much one round of deliveries
	// takes from the log before answers and confirms get their turn again; one
	// chunk always fits. Default 256 KiB.
	DeliverBytes int
	// Streams [stream.streams_per_node] is the most that clients may create, for
	// each node of the cluster. Default 10,000.
	Streams int
	// Credit [stream.credit] is the most chunks a subscription may be owed.
	// Default and most 65,535.
	Credit int
	// Log receives changes of life cycle, never a line a message. hclog's and
	// slog's loggers both fit. Nil: nothing is logged.
	Log Logger
}

// Logger is the part of a structured logger that the broker uses: a constant
// message and pairs of key and value.
type Logger interface {
	Debug(message string, pairs ...any)
	Info(message string, pairs ...any)
	Warn(message string, pairs ...any)
}

const (
	initialFrameMaxCeiling = 64 << 10
	idsMax                 = 256
	creditMax              = 65535
)

// Defaults is the configuration with every default filled in, for whoever shows
// them to people.
func Defaults() Config { return Config{}.withDefaults() }

// withDefaults returns the configuration with every zero field filled in.
func (config Config) withDefaults() Config {
	fill(&config.AdvertisedHost, "localhost")
	fill(&config.ClusterName, "millrace")
	fill(&config.NodeName, "millrace@localhost")
	fill(&config.ReleaseVersion, "dev")
	fill(&config.FrameMax, wire.FrameMaxDefault)
	fill(&config.InitialFrameMax, wire.FrameMaxBeforeOpen)
	fill(&config.Heartbeat, 60*time.Second)
	fill(&config.HandshakeTimeout, 10*time.Second)
	fill(&config.TLSHandshakeTimeout, 3*time.Second)
	fill(&config.CertificateLogin, byCommonName)
	fill(&config.FailedLoginDelay, 3*time.Second)
	fill(&config.CloseTimeout, 10*time.Second)
	fill(&config.PartialFrameTimeout, 120*time.Second)
	fill(&config.BlockedSocketTimeout, 60*time.Second)
	fill(&config.MetadataWait, 2*time.Second)
	fill(&config.RequestTimeout, 8*time.Second)
	fill(&config.ConsumerUpdateTimeout, 60*time.Second)
	fill(&config.GroupPatience, 10*time.Second)
	fill(&config.Connections, 10_000)
	fill(&config.ConnectionsPerAddress, 1_000)
	fill(&config.NewConnectionsPerAddress, 100)
	fill(&config.Unopened, 256)
	fill(&config.UnopenedPerAddress, 16)
	fill(&config.FailedLogins, 10)
	fill(&config.Publishers, idsMax)
	fill(&config.Subscriptions, idsMax)
	fill(&config.UnconfirmedBytes, 8<<20)
	fill(&config.UnconfirmedBytesNode, 256<<20)
	fill(&config.AnswerBytes, 1<<20)
	fill(&config.DeliverBytes, 256<<10)
	fill(&config.Streams, 10_000)
	fill(&config.Credit, creditMax)
	if config.LoopbackUsers == nil {
		config.LoopbackUsers = []string{"guest"}
	}
	if config.Log == nil {
		config.Log = silent{}
	}
	return config
}

// heartbeatSeconds is what Tune proposes.
func (config *Config) heartbeatSeconds() uint32 {
	return uint32(max(config.Heartbeat, 0) / time.Second)
}

func fill[T comparable](field *T, standard T) {
	var zero T
	if *field == zero {
		*field = standard
	}
}

// Validate returns every problem of the configuration, each with the name of
// the setting and what would be right. Zero fields are fine.
func (config Config) Validate() error {
	config = config.withDefaults()
	var problems []error
	within := func(name string, value, least, most int64) {
		if value < least || value > most {
			problems = append(problems, fmt.Errorf("%s is %d: use %d to %d", name, value, least, most))
		}
	}
	within("advertised.port", int64(config.AdvertisedPort), 0, 65535)
	within("advertised.tls_port", int64(config.AdvertisedTLSPort), 0, 65535)
	within("stream.frame_max", int64(config.FrameMax), 1024, wire.FrameMaxCeiling)
	within("stream.initial_frame_max", int64(config.InitialFrameMax), 1024, initialFrameMaxCeiling)
	within("stream.connections", int64(config.Connections), 1, 1<<20)
	within("stream.connections_per_address", int64(config.ConnectionsPerAddress), 1, 1<<20)
	within("stream.new_connections_per_address", int64(config.NewConnectionsPerAddress), 1, 1<<20)
	within("stream.unopened_connections", int64(config.Unopened), 1, 1<<20)
	within("stream.unopened_connections_per_address", int64(config.UnopenedPerAddress), 1, 1<<20)
	within("stream.failed_logins_per_minute", int64(config.FailedLogins), 1, 1<<20)
	within("stream.publishers_per_connection", int64(config.Publishers), 1, idsMax)
	within("stream.subscriptions_per_connection", int64(config.Subscriptions), 1, idsMax)
	within("stream.unconfirmed_bytes", config.UnconfirmedBytes, 64<<10, 1<<40)
	within("stream.unconfirmed_bytes_node", config.UnconfirmedBytesNode, config.UnconfirmedBytes, 1<<50)
	within("stream.answer_bytes", int64(config.AnswerBytes), 64<<10, 1<<30)
	within("stream.deliver_bytes", int64(config.DeliverBytes), 4<<10, 1<<30)
	within("stream.streams_per_node", int64(config.Streams), 1, 1<<20)
	within("stream.credit", int64(config.Credit), 1, creditMax)
	for _, limit := range []struct {
		name  string
		value time.Duration
	}{
		{"stream.handshake_timeout", config.HandshakeTimeout},
		{"stream.tls.handshake_timeout", config.TLSHandshakeTimeout},
		{"stream.failed_login_delay", config.FailedLoginDelay},
		{"stream.close_timeout", config.CloseTimeout},
		{"stream.partial_frame_timeout", config.PartialFrameTimeout},
		{"stream.blocked_socket_timeout", config.BlockedSocketTimeout},
		{"stream.metadata_wait", config.MetadataWait},
		{"stream.request_timeout", config.RequestTimeout},
		{"stream.consumer_update_timeout", config.ConsumerUpdateTimeout},
		{"stream.group_patience", config.GroupPatience},
	} {
		if limit.value < 0 {
			problems = append(problems, fmt.Errorf("%s is %s: use a positive time", limit.name, limit.value))
		}
	}
	for _, host := range []struct{ name, value string }{
		{"advertised.host", config.AdvertisedHost}, {"advertised.tls_host", config.AdvertisedTLSHost},
	} {
		if len(host.value) > 255 {
			problems = append(problems, fmt.Errorf("%s is longer than 255 bytes: use a host name or an address", host.name))
		}
	}
	if !slices.Contains(certificateLogins, config.CertificateLogin) {
		problems = append(problems, fmt.Errorf("tls.login_from is %q: use one of %s", config.CertificateLogin, strings.Join(certificateLogins, ", ")))
	}
	return errors.Join(problems...)
}

type silent struct{}

func (silent) Debug(string, ...any) {}
func (silent) Info(string, ...any)  {}
func (silent) Warn(string, ...any)  {}
