package client

import (
	"context"

	"github.com/millrace/millrace/wire"
)

// request sends a request, made for a correlation id, and checks the type of
// its answer.
func request[A wire.Command](ctx context.Context, c *Conn, make func(id uint32) wire.Command) (A, error) {
	id := c.nextID()
	q := make(id)
	answer, err := c.call(ctx, id, q)
	if err != nil {
		var none A
		return none, err
	}
	a, ok := answer.(A)
	if !ok || a.Key() != q.Key().Answer() {
		return a, &wire.DecodeError{Key: answer.Key(), Field: "correlation id", Index: -1, Err: wire.ErrUnknownKey}
	}
	return a, nil
}

// plain sends a request that a Response answers.
func (c *Conn) plain(ctx context.Context, make func(id uint32) wire.Command) error {
	a, err := request[*wire.Response](ctx, c, make)
	if err != nil {
		return err
	}
	return check(a.To, a.Code)
}

// Create makes a stream.
func (c *Conn) Create(ctx context.Context, stream string, arguments map[string]string) error {
	if err := checkNames(stream); err != nil {
		return err
	}
	return c.plain(ctx, func(id uint32) wire.Command {
		return &wire.Create{Correlation: id, Stream: stream, Arguments: wire.PropertiesFrom(arguments)}
	})
}

// Delete removes a stream.
func (c *Conn) Delete(ctx context.Context, stream string) error {
	if err := checkNames(stream); err != nil {
		return err
	}
	return c.plain(ctx, func(id uint32) wire.Command { return &wire.Delete{Correlation: id, Stream: stream} })
}

// Metadata asks where streams are; each has a code of its own in the answer.
func (c *Conn) Metadata(ctx context.Context, streams ...string) (*wire.MetadataResponse, error) {
	if err := checkNames(streams...); err != nil {
		return nil, err
	}
	return request[*wire.MetadataResponse](ctx, c, func(id uint32) wire.Command {
		return &wire.Metadata{Correlation: id, Streams: wire.StringsOf(streams...)}
	})
}

// Stats returns a stream's numbers by name, −1 where it is empty.
func (c *Conn) Stats(ctx context.Context, stream string) (map[string]int64, error) {
	if err := checkNames(stream); err != nil {
		return nil, err
	}
	a, err := request[*wire.StreamStatsResponse](ctx, c, func(id uint32) wire.Command {
		return &wire.StreamStats{Correlation: id, Stream: stream}
	})
	if err != nil {
		return nil, err
	}
	stats := map[string]int64{}
	for s := range a.Stats.All() {
		stats[s.Name] = s.Value
	}
	return stats, check(wire.KeyStreamStats, a.Code)
}

// StoreOffset remembers how far the reference has read. The broker does not
// answer, so no error is no proof.
func (c *Conn) StoreOffset(reference, stream string, offset uint64) error {
	if err := checkNames(reference, stream); err != nil {
		return err
	}
	return c.SendCommand(&wire.StoreOffset{Reference: reference, Stream: stream, Offset: offset})
}

// QueryOffset returns what StoreOffset remembered; without that, Code of the
// error is CodeNoOffset.
func (c *Conn) QueryOffset(ctx context.Context, reference, stream string) (uint64, error) {
	if err := checkNames(reference, stream); err != nil {
		return 0, err
	}
	a, err := request[*wire.QueryOffsetResponse](ctx, c, func(id uint32) wire.Command {
		return &wire.QueryOffset{Correlation: id, Reference: reference, Stream: stream}
	})
	if err != nil {
		return 0, err
	}
	return a.Offset, check(wire.KeyQueryOffset, a.Code)
}

// QuerySequence returns the last publishing id of a publisher's reference, 0 if
// it has none.
func (c *Conn) QuerySequence(ctx context.Context, reference, stream string) (uint64, error) {
	if err := checkNames(reference, stream); err != nil {
		return 0, err
	}
	a, err := request[*wire.QueryPublisherSequenceResponse](ctx, c, func(id uint32) wire.Command {
		return &wire.QueryPublisherSequence{Correlation: id, Reference: reference, Stream: stream}
	})
	if err != nil {
		return 0, err
	}
	return a.Sequence, check(wire.KeyQueryPublisherSequence, a.Code)
}

// ResolveOffset returns the base offset of the chunk that a subscription with
// the place would begin with.
func (c *Conn) ResolveOffset(ctx context.Context, stream string, spec wire.OffsetSpec) (uint64, error) {
	if err := checkNames(stream); err != nil {
		return 0, err
	}
	a, err := request[*wire.ResolveOffsetSpecResponse](ctx, c, func(id uint32) wire.Command {
		return &wire.ResolveOffsetSpec{Correlation: id, Stream: stream, Offset: spec}
	})
	if err != nil {
		return 0, err
	}
	return a.Offset, check(wire.KeyResolveOffsetSpec, a.Code)
}

// CreateSuperStream makes a super stream of partitions, bound by keys.
func (c *Conn) CreateSuperStream(ctx context.Context, name string, partitions, keys []string, arguments map[string]string) error {
	if err := checkNames(append(append([]string{name}, partitions...), keys...)...); err != nil {
		return err
	}
	return c.plain(ctx, func(id uint32) wire.Command {
		return &wire.CreateSuperStream{Correlation: id, Name: name, Partitions: wire.StringsOf(partitions...),
			BindingKeys: wire.StringsOf(keys...), Arguments: wire.PropertiesFrom(arguments)}
	})
}

// DeleteSuperStream removes a super stream and its partitions.
func (c *Conn) DeleteSuperStream(ctx context.Context, name string) error {
	if err := checkNames(name); err != nil {
		return err
	}
	return c.plain(ctx, func(id uint32) wire.Command { return &wire.DeleteSuperStream{Correlation: id, Name: name} })
}

// Partitions returns the partitions of a super stream, in their order.
func (c *Conn) Partitions(ctx context.Context, superStream string) ([]string, error) {
	if err := checkNames(superStream); err != nil {
		return nil, err
	}
	a, err := request[*wire.PartitionsResponse](ctx, c, func(id uint32) wire.Command {
		return &wire.Partitions{Correlation: id, SuperStream: superStream}
	})
	if err != nil {
		return nil, err
	}
	return a.Streams.Slice(), check(wire.KeyPartitions, a.Code)
}

// Route returns the partitions that a routing key is bound to.
func (c *Conn) Route(ctx context.Context, superStream, routingKey string) ([]string, error) {
	if err := checkNames(superStream, routingKey); err != nil {
		return nil, err
	}
	a, err := request[*wire.RouteResponse](ctx, c, func(id uint32) wire.Command {
		return &wire.Route{Correlation: id, RoutingKey: routingKey, SuperStream: superStream}
	})
	if err != nil {
		return nil, err
	}
	return a.Streams.Slice(), check(wire.KeyRoute, a.Code)
}
