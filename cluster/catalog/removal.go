package catalog

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/replication/protocol"
)

// MajorityWithout says what is wrong with taking a node out of the voters on
// metadata: those that are left must be able to go on.
func MajorityWithout(voters []protocol.NodeID, node protocol.NodeID, up func(protocol.NodeID) bool) error {
	left, there := 0, 0
	var missing []protocol.NodeID
	for _, id := range voters {
		if id == node {
			continue
		}
		left++
		if up(id) {
			there++
		} else {
			missing = append(missing, id)
		}
	}
	switch {
	case left == 0:
		return errors.New("it is the only voter on metadata")
	case 2*there <= left:
		slices.Sort(missing)
		return fmt.Errorf("of the %d voters on metadata that are left, %d are here; %v are missing", left, there, missing)
	}
	return nil
}

// LostWithout returns the names of the streams that would be left without a
// majority if a node went, or without any replica that can move.
func (s *State) LostWithout(node protocol.NodeID, up func(protocol.NodeID) bool) []string {
	var names []string
	for stream := range s.Streams() {
		if stream.replica(node) < 0 {
			continue
		}
		voters, clean, spare := 0, 0, 0
		for _, r := range stream.Replicas {
			if r.Voter {
				voters++
				if !r.Aside && up(r.Node) {
					clean++
					if r.Node != node {
						spare++
					}
				}
			}
		}
		// A node that is there can hand over by itself; one that is not must
		// leave a majority behind.
		if up(node) && 2*clean > voters || !up(node) && 2*spare > voters {
			continue
		}
		names = append(names, stream.Name)
	}
	return names
}
