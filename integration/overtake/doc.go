// Package overtake answers: can tracking ever overtake user data?
//
// Its tests run one node's replicas (replication, segstore, tracking, on a disk
// in memory) by a clock of their own: 24 hours pass in about a minute. A stream
// with a small size limit is filled; then references store offsets as fast as
// the pacer lets them be heard. All messages must stay readable, tracking must
// keep to the bound of design 1, and counts and stored offsets must be exact, at
// every sample, after compaction, retention and restart.
//
// controls_test.go proves that these checks can fail: each mechanism is switched
// off in a test build, and must be missed by its own failure.
//
// Nothing here is imported by a program. Read world_test.go first.
package overtake
