package admin

import (
	"net/http"
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics of the node as a whole. Each has a fixed number of series; what
// grows with the streams is on /metrics/streams (metrics_streams.go).
var (
	buildInfo     = describeMetric("build_info", "Always 1; the labels tell what runs.", "version", "go_version", "node")
	ready         = describeMetric("ready", "1 if the node serves clients.")
	streams       = describeMetric("streams", "Streams in the catalog.")
	connections   = describeMetric("connections", "Clients that are connected.")
	publishers    = describeMetric("publishers", "Publishers that are declared.")
	subscriptions = describeMetric("subscriptions", "Subscriptions that are active.")
	published     = describeMetric("published_messages_total", "Messages taken from publishers, duplicates included.")
	confirmed     = describeMetric("confirmed_messages_total", "Messages confirmed to publishers.")
	refused       = describeMetric("refused_messages_total", "Messages answered with a publish error.")
	delivered     = describeMetric("delivered_messages_total", "Messages sent to consumers.")
	deliveredB    = describeMetric("delivered_bytes_total", "Bytes of chunks sent to consumers.")
	refusals      = describeMetric("protocol_errors_total", "Answers to clients by response code other than ok.", "code")
	diskFree      = describeMetric("disk_free_bytes", "Free bytes on the file system of the data directory.")
	diskTotal     = describeMetric("disk_total_bytes", "Size of that file system.")
	diskLimit     = describeMetric("disk_alarm_below_bytes", "Free bytes below which publishers are stopped; 0 = no limit.")
	diskLow       = describeMetric("disk_low", "1 while the disk is below its low-water mark.")
	diskAlarm     = describeMetric("disk_alarm", "1 while publishers are stopped because the disk is low.")
	blocked       = describeMetric("blocked_connections", "Connections that are not read from, for an alarm or too much unconfirmed.")
	unanswered    = describeMetric("unanswered_consumer_updates_total", "Connections closed because a single active consumer did not answer in time.")
	overtaken     = describeMetric("overtaken_subscriptions_total", "Times that retention took what a subscription had not read; it went on at the first message.")
	scrubbed      = describeMetric("scrubbed_bytes_total", "Bytes that the scrub has read and checked.")
	scrubRounds   = describeMetric("scrub_rounds_total", "Times that the scrub has read everything.")
	scrubProgress = describeMetric("scrub_progress_ratio", "Share of the present round that the scrub has read, 0 to 1.")
	certEnds      = describeMetric("certificate_expires_timestamp_seconds", "When a certificate that this node shows ends, to clients (and operators) or to nodes.", "for")
	certStale     = describeMetric("certificate_stale", "1 while a certificate's files have changed and can't be taken.", "for")
	damaged       = describeMetric("damaged_segments", "Segments, and ends of logs, that are known to be damaged and not repaired.")
	scrubDamaged  = describeMetric("scrub_damaged_files_total", "Segment files that the scrub has found damaged or could not open.")
	logBytes      = describeMetric("log_bytes", "Bytes of this node's logs by what they are for.", "kind")
	trackingShare = describeMetric("tracking_bound_ratio_max", "What stored offsets take of what they may, in the stream where that is most.")
	trackingWait  = describeMetric("tracking_window_seconds_max", "The longest that a stored offset may wait to be written, of all streams.")
	droppable     = describeMetric("compaction_droppable_bytes", "Bytes that compaction could gain now.")
)

func describeMetric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("millrace_"+name, help, labels, nil)
}

// newRegistry holds the node's metrics beside those of the Go runtime and the
// process. It is not the library's global one, so that two servers can live in
// one process.
func newRegistry(s *Server) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(nodeCollector{s}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func (s *Server) metrics(w http.ResponseWriter, req *http.Request) error {
	promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}).ServeHTTP(w, req)
	return nil
}

// nodeCollector reads the figures when they are asked for.
type nodeCollector struct{ s *Server }

func (c nodeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{buildInfo, ready, streams, connections, publishers, subscriptions,
		published, confirmed, refused, delivered, deliveredB, refusals,
		diskFree, diskTotal, diskLimit, diskLow, diskAlarm, blocked, unanswered, overtaken,
		scrubbed, scrubRounds, scrubProgress, scrubDamaged, certEnds, certStale, damaged, logBytes, trackingShare, trackingWait, droppable} {
		out <- d
	}
}

func (c nodeCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	status, traffic := c.s.node.Status(), c.s.sessions.Traffic()
	gauge(buildInfo, 1, status.Version, runtime.Version(), status.Node)
	flag := func(d *prometheus.Desc, on bool) {
		if on {
			gauge(d, 1)
		} else {
			gauge(d, 0)
		}
	}
	flag(ready, c.s.node.Ready() == nil)
	gauge(streams, float64(c.s.metadata.View().StreamCount()))
	list := c.s.sessions.Connections()
	gauge(connections, float64(len(list)))
	var publisherCount, subscriptionCount int
	for _, connection := range list {
		publisherCount += connection.Publishers
		subscriptionCount += connection.Subscriptions
	}
	gauge(publishers, float64(publisherCount))
	gauge(subscriptions, float64(subscriptionCount))
	count(published, traffic.Published)
	count(confirmed, traffic.Confirmed)
	count(refused, traffic.Refused)
	count(delivered, traffic.Delivered)
	count(deliveredB, traffic.DeliveredBytes)
	for code, n := range traffic.Refusals {
		count(refusals, n, strconv.Itoa(int(code)))
	}
	gauge(diskFree, float64(status.Disk.FreeBytes))
	gauge(diskTotal, float64(status.Disk.TotalBytes))
	gauge(diskLimit, float64(status.Disk.AlarmBelowBytes))
	flag(diskLow, status.Disk.Level == "low" || status.Disk.Level == "alarm")
	flag(diskAlarm, status.Disk.Level == "alarm")
	gauge(blocked, float64(traffic.Blocked))
	count(unanswered, traffic.Unanswered)
	count(overtaken, traffic.Overtaken)
	for _, cert := range status.Certificates {
		gauge(certEnds, float64(cert.Ends.Unix()), cert.For)
		stale := 0.0
		if cert.Error != "" {
			stale = 1
		}
		gauge(certStale, stale, cert.For)
	}
	gauge(damaged, float64(status.DamagedSegments))
	count(scrubbed, status.Scrub.Bytes)
	count(scrubRounds, status.Scrub.Rounds)
	gauge(scrubProgress, float64(status.Scrub.RoundDone)/max(float64(status.Scrub.RoundBytes), 1))
	count(scrubDamaged, status.Scrub.Damaged+status.Scrub.Unread)
	c.collectLogs(gauge)
}

// collectLogs sums up what the node's logs take.
func (c nodeCollector) collectLogs(gauge func(*prometheus.Desc, float64, ...string)) {
	var sum Bytes
	var sequences, droppableBytes uint64
	var window int64
	share := 0.0
	for stream := range c.s.metadata.View().Streams() {
		f, err := c.s.replicas.Figures(stream.Incarnation)
		if err != nil {
			continue // it is on other nodes
		}
		sum.User += f.Bytes.User
		sum.Trailer += f.Bytes.Trailer
		sum.Delta += f.Bytes.Delta
		sum.Snapshot += f.Bytes.Snapshot
		sum.Filter += f.Bytes.Filter
		sum.Index += f.Bytes.Index
		sequences += f.SequenceBytes
		droppableBytes += f.Compaction.Droppable
		window = max(window, f.WindowMS)
		share = max(share, float64(f.TrackingBytes)/max(float64(f.TrackingBound), 1))
	}
	gauge(logBytes, float64(sum.User), "user")
	gauge(logBytes, float64(sum.Tracking()-min(sequences, sum.Tracking())), "offset")
	gauge(logBytes, float64(sequences), "sequence")
	gauge(logBytes, float64(sum.Filter), "filter")
	gauge(logBytes, float64(sum.Index), "index")
	gauge(trackingShare, share)
	gauge(trackingWait, float64(window)/1000)
	gauge(droppable, float64(droppableBytes))
}
