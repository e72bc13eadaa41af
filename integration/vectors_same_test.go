package integration

import (
	"bytes"
	"fmt"
	"net"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// same says how two values differ, or "".
func same[T comparable](got, want T) string {
	if got == want {
		return ""
	}
	return fmt.Sprintf("%v, want %v", got, want)
}

// firstOf is the first problem that is one.
func firstOf(problems ...string) string {
	for _, p := range problems {
		if p != "" {
			return p
		}
	}
	return ""
}

func lacks(properties wire.Properties, keys ...string) string {
	for _, key := range keys {
		if _, ok := properties.Get(key); !ok {
			return "property " + key + " is missing"
		}
	}
	return ""
}

// sameChunk compares chunks but for their time and for the lengths of trailer
// and filter: ours read zero, since neither is ever sent.
func sameChunk(got, want *wire.Deliver) string {
	mine, err := chunk.DecodeClient(got.Chunk)
	if err != nil {
		return err.Error()
	}
	theirs, err := chunk.DecodeClient(want.Chunk)
	if err != nil {
		return err.Error()
	}
	problem := firstOf(same(got.Version, want.Version), same(got.SubscriptionID, want.SubscriptionID),
		same(got.CommittedChunkID, want.CommittedChunkID), same(mine.Type, theirs.Type), same(mine.Entries, theirs.Entries),
		same(mine.Records, theirs.Records), same(mine.BaseOffset, theirs.BaseOffset), same(mine.DataCRC, theirs.DataCRC),
		same(mine.DataLength, theirs.DataLength))
	if problem == "" && !bytes.Equal(got.Chunk[chunk.ClientHeaderLength:], want.Chunk[chunk.ClientHeaderLength:]) {
		return "other data"
	}
	return problem
}

// sameStats wants every figure of the reference; more are harmless.
func sameStats(got, want *wire.StreamStatsResponse) string {
	mine := map[string]int64{}
	for s := range got.Stats.All() {
		mine[s.Name] = s.Value
	}
	for s := range want.Stats.All() {
		value, ok := mine[s.Name]
		if !ok || value != s.Value {
			return fmt.Sprintf("%s is %d (there: %v), want %d", s.Name, value, ok, s.Value)
		}
	}
	return same(got.Code, want.Code)
}

// sameVersions wants every command that clients look for; the reference lists
// it in the same versions.
func sameVersions(got, want *wire.ExchangeCommandVersionsResponse) string {
	mine := map[wire.Key]wire.CommandVersion{}
	for v := range got.Versions.All() {
		mine[v.Key] = v
	}
	for v := range want.Versions.All() {
		if mine[v.Key] != v {
			return fmt.Sprintf("%s is %v, want %v", v.Key, mine[v.Key], v)
		}
	}
	return same(got.Code, want.Code)
}

// sameMetadata compares the streams' codes and that a leader is this node, as
// clients compare it with what Open advertised.
func (r *replay) sameMetadata(got, want *wire.MetadataResponse) string {
	brokers := map[uint16]string{}
	for b := range got.Brokers.All() {
		brokers[b.Reference] = net.JoinHostPort(b.Host, fmt.Sprint(b.Port))
	}
	mine, theirs := slices.Collect(got.Streams.All()), slices.Collect(want.Streams.All())
	if len(mine) != len(theirs) || got.Correlation != want.Correlation {
		return fmt.Sprintf("%d streams, want %d", len(mine), len(theirs))
	}
	for i := range theirs {
		problem := firstOf(same(mine[i].Stream, theirs[i].Stream), same(mine[i].Code, theirs[i].Code),
			same(len(mine[i].Replicas), len(theirs[i].Replicas)))
		if problem == "" && theirs[i].Code == wire.CodeOK {
			problem = same(brokers[mine[i].Leader], r.node.Stream)
		}
		if problem != "" {
			return problem
		}
	}
	return ""
}
