package catalog

// gossipKeyBytes is AES-256's.
const gossipKeyBytes = 32

// SetGossipKey gives the cluster the key that its gossip is encrypted with, where
// nodes share no other secret. The first one stays: whoever proposes another one
// takes that which is there.
type SetGossipKey struct {
	Key []byte `json:"key"`
}

func (*SetGossipKey) kind() string { return "gossip.key" }

func (c *SetGossipKey) apply(e *edit) []Outcome {
	if len(c.Key) != gossipKeyBytes {
		return one(refuse(ErrBadArgument, "a gossip key of %d bytes, not %d", len(c.Key), gossipKeyBytes))
	}
	if len(e.gossipKey) == 0 {
		e.gossipKey = c.Key
	}
	return one(nil)
}

// GossipKey returns the key that gossip is encrypted with, nil if there is none.
// It must not be written to, nor shown to anybody but members.
func (s *State) GossipKey() []byte { return s.gossipKey }
