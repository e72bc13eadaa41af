// Package bench answers: how fast is a broker of this protocol?
//
// It publishes (Produce), reads (Consume), does both at a fixed rate (EndToEnd), and
// stores offsets beside a publisher (Tracking), through package client, so it can be pointed at any broker. Latencies go to
// histograms and are taken against the time at which a message was due, not
// when the sender got around to it, so that a stalled broker cannot hide its
// stall. Disk measures the machine's own append and fdatasync, which is what a
// durable confirm costs at least.
package bench
