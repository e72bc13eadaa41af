package protocol

import (
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
)

// Commitment decides what is committed (B4): the highest LSN that a majority
// of the voters holds durably, if its chunk is of the leader's epoch.
type Commitment struct {
	// First is the epoch's first LSN, the barrier's; 0 before it is written.
	First chunk.LSN
	// Quorum is a majority of all voters, those set aside included.
	Quorum int

	acks []chunk.LSN // of the voters that count, in no order
}

// Begin starts a new count.
func (c *Commitment) Begin() { c.acks = c.acks[:0] }

// Count enters what one counting voter holds durably.
func (c *Commitment) Count(n chunk.LSN) { c.acks = append(c.acks, n) }

// Held is the highest LSN that a majority holds, of whatever epoch.
func (c *Commitment) Held() chunk.LSN {
	if c.Quorum == 0 || len(c.acks) < c.Quorum {
		return 0
	}
	slices.Sort(c.acks)
	return c.acks[len(c.acks)-c.Quorum]
}

// Committed is the highest LSN that is committed by this epoch, 0 if none is.
func (c *Commitment) Committed() chunk.LSN {
	if n := c.Held(); c.First > 0 && n >= c.First {
		return n
	}
	return 0
}
