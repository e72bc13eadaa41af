package sim

import (
	"fmt"
	"strings"
)

// mark is a state in which an invariant or a rule could be broken. A run counts
// how often it was in each; where no seed of many ever was, nothing has been
// shown.
type mark uint8

const (
	markTwoLeaders mark = iota
	markBelowPromise
	markSameChunk
	markOtherChunk
	markOlderEpochs
	markBarrier
	markCutTail
	markKnownCommit
	markFollowerRead
	markDuplicate
	markSubBatch
	markSentAgain
	markStoredAgain
	markLaterLeader
	markSequenceLater
	markWindow
	markOffsetLater
	markFold
	markFoldAfterCut
	markCompactedRead
	markTornSwap
	markRetired
	markStartMoved
	markInspected
	markTornRun
	markRot
	markRotEnd
	markRotRepaired
	markAsideCommit
	markJournalLost
	markOlderConfig
	markVoterChange
	markOldIncarnation
	markQuarantine
	markBacklog
	markOldSession
	markLogReset
	markGap
	markGapLeads
	markRegistered
	markHandover
	markFenced
	markInherited
	markClockBack
	markCalmElection
	markMetaMidway
	markMetaUnheard
	markMetaLost
	markMetaRepeated
	markMetaLag
	markMetaRestored
	markMetaSnapshot
	markMetaBatch
	markMetaStale
	markTwoCoordinators
	markSeenWrongly
	markFenceLost
	markFenceAhead
	markHeardAlone
	markDiskReplaced
	markRecreated
	markTransfer
	markDrained
	markUndrained
	markAdded
	markMoved
	markRetire
	markNodeLeaves
	markNodeRemoved
	markNodeJoined
	markBalanced
	marks
)

// markNames are the invariant or rule that a mark is about, and the state.
var markNames = [marks][2]string{
	markTwoLeaders:     {"I1", "a leader begins while one of an older epoch believes to lead"},
	markBelowPromise:   {"I2", "a frame of an epoch below the promise arrives"},
	markSameChunk:      {"I3", "a replica takes a chunk that another one has"},
	markOtherChunk:     {"I4", "a second chunk is written at one LSN"},
	markOlderEpochs:    {"I5", "a commit takes chunks of older epochs along"},
	markBarrier:        {"I6", "a barrier is committed after a change of leader"},
	markCutTail:        {"I7", "a replica's tail is cut"},
	markKnownCommit:    {"I8", "a run begins with a commit that it knows"},
	markFollowerRead:   {"I9", "a consumer reads at a follower"},
	markDuplicate:      {"I10", "a message is confirmed that was committed before it was sent"},
	markSubBatch:       {"I11", "a sub-batch is committed"},
	markSentAgain:      {"I12", "messages are sent again over a new connection"},
	markStoredAgain:    {"I13", "a message is committed that was sent more than once"},
	markLaterLeader:    {"I14", "a reference's id is stored by a later leader than its last"},
	markWindow:         {"I15", "more references have published than are kept"},
	markSequenceLater:  {"I15", "a sequence is asked of a later leader than stored it"},
	markOffsetLater:    {"I16", "an offset is asked of a later leader than took it"},
	markFold:           {"I17", "known tracking is held against the fold"},
	markFoldAfterCut:   {"I18", "known tracking is held against the fold right after a cut"},
	markCompactedRead:  {"I19", "a compacted segment is read through"},
	markTornSwap:       {"I20", "the power fails while MANIFEST is written"},
	markRetired:        {"I21", "a log is read through whose beginning retention has taken"},
	markStartMoved:     {"I23", "a log start moves"},
	markInspected:      {"I24", "files of several segments are held against MANIFEST"},
	markTornRun:        {"I25", "a run begins after the power failed inside of a step"},
	markRot:            {"I26", "a bit rots"},
	markRotEnd:         {"I26", "rot at the end of a log sets a replica aside"},
	markRotRepaired:    {"I26", "a rotten segment is repaired from another replica"},
	markAsideCommit:    {"I27", "something is committed while a voter is set aside"},
	markJournalLost:    {"I27", "a node loses its journal"},
	markOlderConfig:    {"I28", "a leader commits with an older configuration than the metadata's"},
	markVoterChange:    {"I28", "voters change"},
	markOldIncarnation: {"I29", "a frame of a deleted stream arrives after its successor was made"},
	markQuarantine:     {"I29", "a deleted stream is found at a node's start"},
	markBacklog:        {"I30", "a leader refuses for want of room"},
	markOldSession:     {"B3", "an ack of an old session arrives"},
	markLogReset:       {"C4", "a log is reset"},
	markGap:            {"C5", "a gap is taken"},
	markGapLeads:       {"C5", "a replica with a gap in its log leads"},
	markRegistered:     {"D1", "a replica is entered anew"},
	markHandover:       {"D4", "a leader hands over"},
	markFenced:         {"F4", "a fenced session publishes"},
	markInherited:      {"F5", "a leader inherits stored offsets that no chunk holds"},
	markClockBack:      {"chunk times", "a clock is set back"},
	markCalmElection:   {"L1", "a leader is elected in the calm phase"},

	markMetaMidway:      {"raft", "a leader of the metadata ends with commands under way"},
	markMetaUnheard:     {"raft", "a command is committed by the next leader, and nobody is told"},
	markMetaLost:        {"raft", "a command or its answer gets lost"},
	markMetaRepeated:    {"requests", "a command comes again that was carried out"},
	markMetaLag:         {"raft", "a node does not hear of a commit in time"},
	markMetaRestored:    {"snapshots", "a node begins with its snapshot and the entries behind it"},
	markMetaSnapshot:    {"snapshots", "a node gets a snapshot in place of entries"},
	markMetaBatch:       {"steps", "one command carries several streams"},
	markMetaStale:       {"steps", "a coordinator's step is refused: things stand elsewhere"},
	markTwoCoordinators: {"steps", "a coordinator begins while the last one is at work"},
	markSeenWrongly:     {"presence", "the coordinator takes a node for gone that is there"},
	markFenceLost:       {"A3", "a fence, or what is answered to the coordinator, gets lost"},
	markFenceAhead:      {"A3", "a fence comes before the catalog that it is of"},
	markHeardAlone:      {"I29", "a node has heard of a stream by a fence alone"},
	markDiskReplaced:    {"D1", "a node comes back with an empty disk"},
	markRecreated:       {"I29", "a stream is made whose name was another's"},
	markTransfer:        {"D4", "an operator wants a leader elsewhere"},
	markDrained:         {"drain", "a node drains"},
	markUndrained:       {"drain", "a node works again"},
	markAdded:           {"D3", "a replica is added"},
	markMoved:           {"D3", "a replica is to take another's place"},
	markRetire:          {"D3", "a replica is to go"},
	markNodeLeaves:      {"members", "a node is to leave"},
	markNodeRemoved:     {"members", "a node is removed"},
	markNodeJoined:      {"members", "a node joins"},
	markBalanced:        {"balance", "leaders or replicas are evened out"},
}

// Coverage counts how often a run was in each of these states.
type Coverage [marks]int

func (w *World) reach(m mark) { w.coverage[m]++ }

// Add adds another run's counts.
func (c *Coverage) Add(d *Coverage) {
	for m := range c {
		c[m] += d[m]
	}
}

// Missing names the states that were never reached.
func (c *Coverage) Missing() (names []string) {
	for m, n := range c {
		if n == 0 {
			names = append(names, strings.Join(markNames[m][:], " "))
		}
	}
	return names
}

func (c *Coverage) String() string {
	var b strings.Builder
	for m, n := range c {
		fmt.Fprintf(&b, "  %-11s %9d  %s\n", markNames[m][0], n, markNames[m][1])
	}
	return b.String()
}
