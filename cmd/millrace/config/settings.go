package config

import (
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// A setting is one key of the configuration.
type setting struct {
	key   string
	usage string
	// server: the setting makes sense for `server` alone, not for `dev`.
	server bool
	value  func(*Config) any // a pointer to its field
}

// settings is the one place where a key is declared, in the order of the help
// texts and of the reference.
var settings = []setting{
	{"data.dir", "folder that holds everything this node keeps", false, func(c *Config) any { return &c.DataDir }},
	{"stream.addr", "where clients of the stream protocol connect", false, func(c *Config) any { return &c.StreamAddr }},
	{"stream.tls.addr", "where they connect over TLS, if there is a tls.cert; empty = nowhere", false, func(c *Config) any { return &c.StreamTLSAddr }},
	{"tls.cert", "file with the certificate that clients and operators see (millrace cert server); taken anew when it changes", false, func(c *Config) any { return &c.TLSCert }},
	{"tls.key", "file with its key", false, func(c *Config) any { return &c.TLSKey }},
	{"tls.client_ca", "file with the authorities that stream clients' certificates come from", false, func(c *Config) any { return &c.TLSClientCA }},
	{"tls.verify", "stream clients' certificates are wanted: none, optional or required (default: optional with tls.client_ca)", false, func(c *Config) any { return &c.TLSVerify }},
	{"tls.login_from", "what in its certificate names a client that logs in by it (EXTERNAL): common_name, distinguished_name or subject_alternative_name", false, func(c *Config) any { return &c.Broker.CertificateLogin }},
	{"http.addr", "where the page, the HTTP API and the metrics are", false, func(c *Config) any { return &c.HTTPAddr }},
	{"http.tls.addr", "where the same is over TLS; empty = not served", false, func(c *Config) any { return &c.HTTPTLSAddr }},
	{"http.hosts", "names, besides this node's own, that the page and both HTTP APIs may be asked under; IP addresses and localhost always may", false, func(c *Config) any { return &c.HTTPHosts }},
	{"management.addr", "where the subset of the management API is; empty = not served", false, func(c *Config) any { return &c.ManagementAddr }},
	{"node.addr", "where other nodes connect", false, func(c *Config) any { return &c.NodeAddr }},
	{"node.advertised", "host:port that other nodes are told to connect to, where they reach node.addr by another way", true, func(c *Config) any { return &c.NodeAdvertised }},
	{"gossip.addr", "where nodes tell each other who is there", false, func(c *Config) any { return &c.GossipAddr }},
	{"node.name", "this node's name; kept for the data directory's life", false, func(c *Config) any { return &c.NodeName }},
	{"advertised.host", "host that clients are told to connect to", false, func(c *Config) any { return &c.AdvertisedHost }},
	{"advertised.port", "port that clients are told to connect to; 0 = the one listened on", false, func(c *Config) any { return &c.AdvertisedPort }},
	{"advertised.tls_host", "the same for clients over TLS (default: advertised.host)", false, func(c *Config) any { return &c.AdvertisedTLSHost }},
	{"advertised.tls_port", "the same for clients over TLS; 0 = the one listened on", false, func(c *Config) any { return &c.AdvertisedTLSPort }},
	{"log.level", "trace, debug, info, warn, error or off", false, func(c *Config) any { return &c.LogLevel }},
	{"stream.frame_max", "largest frame accepted after Open, in bytes", true, func(c *Config) any { return &c.Broker.FrameMax }},
	{"stream.initial_frame_max", "largest frame accepted before Open, in bytes", true, func(c *Config) any { return &c.Broker.InitialFrameMax }},
	{"stream.heartbeat", "heartbeat that is proposed to clients; negative = none", true, func(c *Config) any { return &c.Broker.Heartbeat }},
	{"stream.handshake_timeout", "from the accepted socket to Open", true, func(c *Config) any { return &c.Broker.HandshakeTimeout }},
	{"stream.tls.handshake_timeout", "the part of it that TLS may take", true, func(c *Config) any { return &c.Broker.TLSHandshakeTimeout }},
	{"stream.failed_login_delay", "how long the answer to a failed login is withheld", true, func(c *Config) any { return &c.Broker.FailedLoginDelay }},
	{"stream.close_timeout", "how long a client may take to answer our Close", true, func(c *Config) any { return &c.Broker.CloseTimeout }},
	{"stream.partial_frame_timeout", "how long a frame may take to arrive whole, where no heartbeat was agreed", true, func(c *Config) any { return &c.Broker.PartialFrameTimeout }},
	{"stream.blocked_socket_timeout", "how long a client may leave its socket full before it is cut", true, func(c *Config) any { return &c.Broker.BlockedSocketTimeout }},
	{"stream.metadata_wait", "how long Metadata waits for a stream's leader", true, func(c *Config) any { return &c.Broker.MetadataWait }},
	{"stream.request_timeout", "how long a command may wait inside the node", true, func(c *Config) any { return &c.Broker.RequestTimeout }},
	{"stream.consumer_update_timeout", "how long a single active consumer may take to answer before it loses its turn", true, func(c *Config) any { return &c.Broker.ConsumerUpdateTimeout }},
	{"stream.group_patience", "how long a node may be out of contact before its single active consumers are passed over; the same on all nodes", true, func(c *Config) any { return &c.Broker.GroupPatience }},
	{"stream.connections", "connections of the node", true, func(c *Config) any { return &c.Broker.Connections }},
	{"stream.connections_per_address", "connections of one address other than loopback", true, func(c *Config) any { return &c.Broker.ConnectionsPerAddress }},
	{"stream.new_connections_per_address", "new connections a second of one address other than loopback", true, func(c *Config) any { return &c.Broker.NewConnectionsPerAddress }},
	{"stream.unopened_connections", "connections that have not got through Open yet", true, func(c *Config) any { return &c.Broker.Unopened }},
	{"stream.unopened_connections_per_address", "the same of one address other than loopback", true, func(c *Config) any { return &c.Broker.UnopenedPerAddress }},
	{"stream.failed_logins_per_minute", "failed logins a minute of an address or user", true, func(c *Config) any { return &c.Broker.FailedLogins }},
	{"stream.loopback_users", "users that may log in from loopback alone", true, func(c *Config) any { return &c.Broker.LoopbackUsers }},
	{"stream.publishers_per_connection", "publishers of a connection", true, func(c *Config) any { return &c.Broker.Publishers }},
	{"stream.subscriptions_per_connection", "subscriptions of a connection", true, func(c *Config) any { return &c.Broker.Subscriptions }},
	{"stream.unconfirmed_bytes", "published bytes of a connection that may be unconfirmed", true, func(c *Config) any { return &c.Broker.UnconfirmedBytes }},
	{"stream.unconfirmed_bytes_node", "the same of all connections together", true, func(c *Config) any { return &c.Broker.UnconfirmedBytesNode }},
	{"stream.answer_bytes", "bytes that may wait to be written to a connection, deliveries apart", true, func(c *Config) any { return &c.Broker.AnswerBytes }},
	{"stream.deliver_bytes", "bytes of one round of deliveries", true, func(c *Config) any { return &c.Broker.DeliverBytes }},
	{"stream.streams_per_node", "streams that clients may create, for each node of the cluster", true, func(c *Config) any { return &c.Broker.Streams }},
	{"stream.credit", "chunks that a subscription may be owed", true, func(c *Config) any { return &c.Broker.Credit }},
	{"publisher.duplicate", "a reference is declared again: takeover, refuse or share", true, func(c *Config) any { return &c.PublisherDuplicate }},
	{"tracking.interval_min", "least time between two writes of stored offsets", true, func(c *Config) any { return &c.Tracking.IntervalMin }},
	{"tracking.interval_max", "longest that a stored offset waits to be written while all of them keep to 2 % of user bytes", true, func(c *Config) any { return &c.Tracking.IntervalMax }},
	{"tracking.interval_longest", "the same however large their share grows", true, func(c *Config) any { return &c.Tracking.IntervalLongest }},
	{"tracking.share_span", "time over which that share is measured", true, func(c *Config) any { return &c.Tracking.ShareSpan }},
	{"tracking.control_roll_bytes", "bytes of stored offsets in a segment from which on it may be ended for them", true, func(c *Config) any { return &c.Tracking.ControlRollBytes }},
	{"tracking.stored_offsets", "stored offsets of a stream; beyond, the least recently stored go", true, func(c *Config) any { return &c.Tracking.StoredOffsets }},
	{"tracking.publishers", "publishers of a stream that are remembered; beyond, the least recently writing go", true, func(c *Config) any { return &c.Tracking.Publishers }},
	{"tracking.grace", "how long a stored offset stays that lies before the first message; 0 = not at all", true, func(c *Config) any { return &c.Tracking.Grace }},
	{"retention.interval", "how often streams' limits are looked at without another reason", false, func(c *Config) any { return &c.RetentionInterval }},
	{"scrub.period", "time within which every byte on disk is read once and held against its checksum", false, func(c *Config) any { return &c.ScrubPeriod }},
	{"disk.free_min", "free bytes of the disk below which publishers are stopped; 0 = no limit", false, func(c *Config) any { return &c.Disk.FreeMin }},
	{"disk.free_min_percent", "the same as a percentage of the disk; the higher of the two counts", false, func(c *Config) any { return &c.Disk.FreeMinPercent }},
	{"disk.low_water_percent", "retention runs, and stopped publishers go on, at so many percent of that limit; under 100 is 100", false, func(c *Config) any { return &c.Disk.LowPercent }},
	{"disk.floor_percent", "no message is written below so many percent of that limit: room for metadata and deletions", false, func(c *Config) any { return &c.Disk.FloorPercent }},
	{"join", "addresses of nodes to join", true, func(c *Config) any { return &c.Join }},
	{"bootstrap.expect", "how many nodes start a new cluster together", true, func(c *Config) any { return &c.BootstrapExpect }},
	{"node.tls.cert", "file with the certificate that this node shows to others (millrace cert issue)", true, func(c *Config) any { return &c.NodeCert }},
	{"node.tls.key", "file with its key", true, func(c *Config) any { return &c.NodeKey }},
	{"node.tls.ca", "file with the authorities that the others' certificates come from", true, func(c *Config) any { return &c.NodeCA }},
	{"cluster.secret_file", "file with the secret that the nodes of a cluster share (openssl rand -hex 32); in place of certificates, or beside them", true, func(c *Config) any { return &c.SecretFile }},
}

// stands says what stands in for a setting that is empty.
var stands = map[string]string{
	"node.advertised": "node.addr",
	"gossip.addr":     "the host of node.addr, port 7946",
	"node.name":       "the data directory's, else the host's name",
	"advertised.host": "the stream address's host, else the host's name",
}

// help is the setting's usage, with what stands in for an empty default.
func (s setting) help(defaults *Config) string {
	if text, ok := stands[s.key]; ok && s.shown(defaults) == "" {
		return s.usage + " (default: " + text + ")"
	}
	return s.usage
}

// flag is the name of the key's flag: stream.frame_max is --stream-frame-max.
func (s setting) flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(s.key) }

// env is the name of the key's variable: stream.frame_max is
// MILLRACE_STREAM__FRAME_MAX.
func (s setting) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.key, ".", "__"))
}

const envPrefix = "MILLRACE_"

// AddFlags declares a flag for every setting that defaults apply to.
func AddFlags(flags *pflag.FlagSet, defaults Config) {
	for _, s := range settings {
		if s.server && defaults.Dev {
			continue
		}
		switch v := s.value(&defaults).(type) {
		case *string:
			flags.String(s.flag(), *v, s.help(&defaults))
		case *int:
			flags.Int(s.flag(), *v, s.help(&defaults))
		case *uint32:
			flags.Uint32(s.flag(), *v, s.help(&defaults))
		case *int64:
			flags.Int64(s.flag(), *v, s.help(&defaults))
		case *time.Duration:
			flags.Duration(s.flag(), *v, s.help(&defaults))
		case *[]string:
			flags.StringSlice(s.flag(), *v, s.help(&defaults))
		}
	}
}

func settingByFlag(name string) (setting, bool) {
	for _, s := range settings {
		if s.flag() == name {
			return s, true
		}
	}
	return setting{}, false
}

func settingByEnv(name string) (setting, bool) {
	for _, s := range settings {
		if s.env() == name {
			return s, true
		}
	}
	return setting{}, false
}

func known(key string) bool {
	for _, s := range settings {
		if s.key == key {
			return true
		}
	}
	return false
}
