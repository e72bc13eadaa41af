// Package config answers: how is this node set up, and who said so?
//
// One table (settings) names every setting once. Its key is the key in the
// TOML file; the flag and the environment variable follow from it: stream.addr
// is --stream-addr and MILLRACE_STREAM__ADDR. A flag beats the environment,
// the environment the file, the file the default. A key that no setting has
// stops the start and is named.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/tracking"
)

// Config is what a node is started with. The zero value is not useful; begin
// with Server or Dev, the two sets of defaults.
type Config struct {
	DataDir        string
	StreamAddr     string
	StreamTLSAddr  string // not served without TLSCert
	HTTPAddr       string
	HTTPTLSAddr    string // empty: not served
	ManagementAddr string // empty: not served
	// HTTPHosts are names that operators may ask the node under, besides those
	// that it goes by anyway.
	HTTPHosts      []string
	NodeAddr       string
	NodeAdvertised string // empty: NodeAddr, with the port that it got
	GossipAddr     string // empty: NodeAddr's host, and port 7946
	NodeName       string // empty: the data directory's, else the host's
	AdvertisedHost string // empty: the stream address's host, else the host's name
	AdvertisedPort int    // 0: the port that the stream listener got
	// AdvertisedTLSHost and AdvertisedTLSPort are the same for clients over TLS;
	// empty: AdvertisedHost and the port of the TLS listener.
	AdvertisedTLSHost string
	AdvertisedTLSPort int
	LogLevel          string
	// PublisherDuplicate decides between two sessions of one reference.
	PublisherDuplicate string
	// Broker are the limits and patience of the stream port.
	Broker broker.Config
	// Tracking is how stored offsets and publishers' sequences are kept.
	Tracking Tracking
	// RetentionInterval is how often streams' limits are looked at without
	// another reason.
	RetentionInterval time.Duration
	// ScrubPeriod is the time within which every byte on disk is read once.
	ScrubPeriod time.Duration
	// Disk tells how much of the disk stays free.
	Disk segstore.DiskRule
	// Join, BootstrapExpect and SecretFile are about clusters.
	Join            []string
	BootstrapExpect int
	SecretFile      string
	// NodeCert, NodeKey and NodeCA are files: what this node shows to others,
	// and the authorities that theirs come from.
	NodeCert, NodeKey, NodeCA string
	// TLSCert and TLSKey are files: what clients and operators see. TLSClientCA
	// has the authorities that clients' certificates come from, TLSVerify tells
	// whether they are asked for one.
	TLSCert, TLSKey, TLSClientCA, TLSVerify string
	// Dev lets guest/guest in on loopback and listens nowhere else.
	Dev bool
}

// Tracking holds what package tracking and the log call by the same names.
type Tracking struct {
	// IntervalMin, IntervalMax and IntervalLongest pace the writing of stored
	// offsets; ShareSpan is the time over which their share is measured.
	IntervalMin, IntervalMax, IntervalLongest, ShareSpan time.Duration
	ControlRollBytes                                     int64
	// StoredOffsets and Publishers cap each stream's state.
	StoredOffsets, Publishers int
	// Grace is how long a stored offset stays that retention has overtaken.
	Grace time.Duration
}

// Pacing is what the pacer takes, in milliseconds.
func (t Tracking) Pacing() tracking.Pacing {
	return tracking.Pacing{
		IntervalMin: t.IntervalMin.Milliseconds(), IntervalMax: t.IntervalMax.Milliseconds(),
		IntervalLongest: t.IntervalLongest.Milliseconds(), ShareSpan: t.ShareSpan.Milliseconds(),
	}
}

func (t Tracking) validate(bad func(key, format string, args ...any)) {
	for _, d := range []struct {
		key   string
		value time.Duration
	}{
		{"tracking.interval_min", t.IntervalMin}, {"tracking.interval_max", t.IntervalMax},
		{"tracking.interval_longest", t.IntervalLongest}, {"tracking.share_span", t.ShareSpan},
	} {
		if d.value < time.Millisecond {
			bad(d.key, "%s is below 1ms", d.value)
		}
	}
	if err := t.Pacing().Validate(); err != nil {
		bad("tracking.interval_*", "%v", err)
	}
	if t.ControlRollBytes < 1 {
		bad("tracking.control_roll_bytes", "%d is below 1", t.ControlRollBytes)
	}
	if t.StoredOffsets < 1 || t.Publishers < 1 {
		bad("tracking.stored_offsets, tracking.publishers", "%d and %d must be 1 at least", t.StoredOffsets, t.Publishers)
	}
	if t.Grace < 0 {
		bad("tracking.grace", "%s is below 0 (0 = stale offsets go at once)", t.Grace)
	}
}

// Server is the default of `millrace server`: clients from everywhere,
// operators from this machine alone.
func Server() Config {
	var c Config
	c.DataDir = "./millrace-data"
	c.StreamAddr = ":5552"
	c.StreamTLSAddr = ":5551"
	c.HTTPAddr = "localhost:7080"
	c.NodeAddr = "localhost:7081"
	c.LogLevel = "info"
	c.PublisherDuplicate = "takeover"
	c.RetentionInterval = 10 * time.Second
	c.ScrubPeriod = segstore.ScrubPeriodDefault
	c.Disk = segstore.DiskRule{FreeMin: 2 << 30, FreeMinPercent: 5, LowPercent: 125, FloorPercent: 25}
	c.BootstrapExpect = 1
	c.Tracking = Tracking{
		IntervalMin: 250 * time.Millisecond, IntervalMax: 5 * time.Second, IntervalLongest: time.Minute, ShareSpan: 10 * time.Minute,
		ControlRollBytes: segstore.ControlBytesDefault,
		StoredOffsets:    tracking.OffsetsMaxDefault, Publishers: tracking.PublishersMaxDefault, Grace: tracking.GraceDefault * time.Millisecond,
	}
	c.Broker = broker.Defaults()
	c.Broker.AdvertisedHost, c.Broker.AdvertisedPort = "", 0 // c's own, once the ports are known
	return c
}

// Dev is the default of `millrace dev`: one node on loopback that needs no
// file, flag or network.
func Dev() Config {
	c := Server()
	c.Dev = true
	c.StreamAddr = "localhost:5552"
	c.StreamTLSAddr = "localhost:5551"
	c.ManagementAddr = "localhost:15672"
	// A developer's full laptop should not stop the first message.
	c.Disk.FreeMin, c.Disk.FreeMinPercent = 256<<20, 0
	c.AdvertisedHost = "localhost"
	c.NodeName = "dev"
	c.LogLevel = "warn"
	return c
}

var duplicatePolicies = []string{"takeover", "refuse", "share"}

// nodesMax bounds the nodes of a cluster.
const nodesMax = 255

// mayBeEmpty are the addresses that need not be served.
var mayBeEmpty = []string{"management.addr", "gossip.addr", "stream.tls.addr", "http.tls.addr"}

var logLevels = []string{"trace", "debug", "info", "warn", "error", "off"}

// Validate returns every problem at once, each naming its key.
func (c Config) Validate() error {
	var all []error
	bad := func(key, format string, args ...any) {
		all = append(all, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if c.DataDir == "" {
		bad("data.dir", "must name a folder")
	}
	for _, l := range []struct{ key, addr string }{
		{"stream.addr", c.StreamAddr}, {"http.addr", c.HTTPAddr}, {"management.addr", c.ManagementAddr},
		{"node.addr", c.NodeAddr}, {"gossip.addr", c.GossipAddr}, {"stream.tls.addr", c.StreamTLSAddr}, {"http.tls.addr", c.HTTPTLSAddr},
	} {
		if problem := addressProblem(l.addr, slices.Contains(mayBeEmpty, l.key)); problem != "" {
			bad(l.key, "%q %s", l.addr, problem)
		}
	}
	if problem := addressProblem(c.NodeAdvertised, true); problem != "" || strings.HasSuffix(c.NodeAdvertised, ":0") {
		bad("node.advertised", "%q %s", c.NodeAdvertised, cmp.Or(problem, "has no port"))
	}
	if c.AdvertisedPort < 0 || c.AdvertisedPort > 65535 {
		bad("advertised.port", "%d is no port (0 to 65535; 0 = the port that is listened on)", c.AdvertisedPort)
	}
	if c.AdvertisedTLSPort < 0 || c.AdvertisedTLSPort > 65535 {
		bad("advertised.tls_port", "%d is no port (0 to 65535; 0 = the port that is listened on)", c.AdvertisedTLSPort)
	}
	if strings.ContainsAny(c.NodeName, "/\\\x00 ") || len(c.NodeName) > 255 {
		bad("node.name", "%q: at most 255 bytes, without blanks and slashes", c.NodeName)
	}
	if !slices.Contains(logLevels, c.LogLevel) {
		bad("log.level", "%q is none of %s", c.LogLevel, strings.Join(logLevels, ", "))
	}
	if !slices.Contains(duplicatePolicies, c.PublisherDuplicate) {
		bad("publisher.duplicate", "%q is none of %s", c.PublisherDuplicate, strings.Join(duplicatePolicies, ", "))
	}
	c.Tracking.validate(bad)
	if c.RetentionInterval <= 0 {
		bad("retention.interval", "%s must be above 0", c.RetentionInterval)
	}
	if c.ScrubPeriod < time.Second {
		bad("scrub.period", "%s must be a second or more", c.ScrubPeriod)
	}
	if c.Disk.FreeMin < 0 {
		bad("disk.free_min", "%d bytes: 0, for no limit, or more", c.Disk.FreeMin)
	}
	for _, p := range []struct {
		key           string
		percent, most int
	}{
		{"disk.free_min_percent", c.Disk.FreeMinPercent, 90}, {"disk.low_water_percent", c.Disk.LowPercent, 1000}, {"disk.floor_percent", c.Disk.FloorPercent, 100},
	} {
		if p.percent < 0 || p.percent > p.most {
			bad(p.key, "%d is not from 0 to %d", p.percent, p.most)
		}
	}
	for _, host := range c.HTTPHosts {
		if host == "" || strings.ContainsAny(host, ":/*@ ") {
			bad("http.hosts", "%q is no host's name alone, such as broker.example.com", host)
		}
	}
	for _, addr := range c.Join {
		if problem := addressProblem(addr, false); problem != "" {
			bad("join", "%q %s", addr, problem)
		}
	}
	if c.BootstrapExpect < 1 || c.BootstrapExpect > nodesMax {
		bad("bootstrap.expect", "%d is no number of nodes from 1 to %d", c.BootstrapExpect, nodesMax)
	}
	if !c.Clustered() && (len(c.Join) > 0 || c.BootstrapExpect > 1) {
		bad("cluster.secret_file", "nodes that join or start a cluster together need it, or node.tls.cert, to know each other")
	}
	if c.BootstrapExpect > 1 && len(c.Join) == 0 {
		bad("join", "%d nodes that start a cluster together find each other by it; give each the node.addr of the others", c.BootstrapExpect)
	}
	if given := c.NodeCert != ""; given != (c.NodeKey != "") || given != (c.NodeCA != "") {
		bad("node.tls.cert", "node.tls.cert, node.tls.key and node.tls.ca come together")
	}
	c.validateTLS(bad)
	return errors.Join(append(all, c.Broker.Validate())...)
}

// The values of tls.verify.
const (
	VerifyNone     = "none"
	VerifyOptional = "optional"
	VerifyRequired = "required"
)

var verifications = []string{VerifyNone, VerifyOptional, VerifyRequired}

// Verify is TLSVerify, or its default: clients may show a certificate where there
// are authorities for it.
func (c Config) Verify() string {
	switch {
	case c.TLSVerify != "":
		return c.TLSVerify
	case c.TLSClientCA != "":
		return VerifyOptional
	}
	return VerifyNone
}

func (c Config) validateTLS(bad func(key, format string, args ...any)) {
	if (c.TLSCert != "") != (c.TLSKey != "") {
		bad("tls.cert", "tls.cert and tls.key come together")
	}
	if c.TLSCert == "" && (c.TLSClientCA != "" || c.TLSVerify != "" || c.HTTPTLSAddr != "") {
		bad("tls.cert", "tls.client_ca, tls.verify and http.tls.addr need it; millrace cert server makes one")
	}
	if v := c.Verify(); !slices.Contains(verifications, v) {
		bad("tls.verify", "%q is none of %s", v, strings.Join(verifications, ", "))
	} else if (v != VerifyNone) != (c.TLSClientCA != "") {
		bad("tls.verify", "%s and tls.client_ca %q do not go together: certificates are verified by those authorities", v, c.TLSClientCA)
	}
}

// Clustered tells whether the node talks to others. Without a way to prove who
// they are it stays alone.
func (c Config) Clustered() bool { return c.NodeCert != "" || c.SecretFile != "" }

func addressProblem(addr string, emptyOff bool) string {
	if addr == "" {
		if emptyOff {
			return ""
		}
		return "is no host:port"
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "is no host:port, such as localhost:5552 or :5552"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "has no port from 0 to 65535 (0 = any free one)"
	}
	return ""
}
