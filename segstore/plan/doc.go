// Package plan answers: what may be deleted, compacted, merged?
//
// It decides from summaries alone and changes nothing: Roll says when a log
// should begin a new segment, Retain where it should start, Compact which of its
// segments should lose their tracking or become one. segstore carries the
// answers out. Both are pure, so that the same input gives the same decision on
// every replica and in every replay.
package plan
