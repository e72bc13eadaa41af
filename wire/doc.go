// Package wire answers: what do clients say?
//
// Every command of the public RabbitMQ Stream protocol, in every version and
// both directions, is a Go value here, and this package turns values into
// frames and frames into values. It is not about what a command means: states,
// permissions and answers are the broker's, and a chunk's inside is
// segstore/chunk's. The reference is
// https://github.com/rabbitmq/rabbitmq-server/blob/main/deps/rabbitmq_stream/docs/PROTOCOL.adoc.
//
// Read first: Splitter (bytes to payloads), Command with Append, FromClient and
// FromServer (payloads to values), Publish (the hot path, which copies and
// allocates nothing).
//
//	frame = size u32 | payload              size does not count itself
//	payload = key u16 | version u16 | fields  key bit 15: an answer
//
// Each command lists its fields once, in wire order, in its fields method; the
// same list encodes and decodes.
//
// # Commands
//
//	id     name                     sent by         version  file
//	01     DeclarePublisher         client          1        publisher.go
//	02     Publish                  client          1, 2     publish.go
//	03     PublishConfirm           server          1        confirm.go
//	04     PublishError             server          1        confirm.go
//	05/85  QueryPublisherSequence   client          1        publisher.go
//	06     DeletePublisher          client          1        publisher.go
//	07     Subscribe                client          1        subscription.go
//	08     Deliver                  server          1, 2     deliver.go
//	09/89  Credit                   client          1        subscription.go
//	0a     StoreOffset              client          1        tracking.go
//	0b/8b  QueryOffset              client          1        tracking.go
//	0c     Unsubscribe              client          1        subscription.go
//	0d     Create                   client          1        stream.go
//	0e     Delete                   client          1        stream.go
//	0f/8f  Metadata                 client          1        metadata.go
//	10     MetadataUpdate           server          1        metadata.go
//	11/91  PeerProperties           client          1        connection.go
//	12/92  SaslHandshake            client          1        connection.go
//	13     SaslAuthenticate         client          1        connection.go
//	14/94  Tune                     server, client  1        connection.go
//	15/95  Open                     client          1        connection.go
//	16     Close                    both            1        connection.go
//	17     Heartbeat                both            1        connection.go
//	18/98  Route                    client          1        superstream.go
//	19/99  Partitions               client          1        superstream.go
//	1a/9a  ConsumerUpdate           server          1        subscription.go
//	1b/9b  ExchangeCommandVersions  client          1        versions.go
//	1c/9c  StreamStats              client          1        stream.go
//	1d     CreateSuperStream        client          1        superstream.go
//	1e     DeleteSuperStream        client          1        superstream.go
//	1f/9f  ResolveOffsetSpec        client          1        stream.go
//
// The id is the low byte of the request's key, and after the stroke, with bit
// 15 shown as bit 7, of an answer of its own layout. The other requests have
// the plain Response (response.go) as their answer; Publish, PublishConfirm,
// PublishError, Deliver, StoreOffset, MetadataUpdate and Heartbeat have none.
//
// # Where we differ
//
// The reference broker reads arrays until the frame ends and lets lengths that
// do not add up crash the connection. Here decoding is strict, by one policy
// for all commands, and what is wrong is a *DecodeError:
//
//   - An array has exactly as many elements as its count says, and nothing may
//     stand behind the last field. Two exceptions, as in the reference: the
//     properties of Subscribe and ResolveOffsetSpec may be missing, and bytes
//     may follow a ConsumerUpdate response whose offset type has no value.
//   - String lengths are signed, as the written protocol has it: −1 is null,
//     less is an error; the reference takes lengths from 32768 on. Null is
//     accepted for a filter value, the SASL data and (the reference does not)
//     DeclarePublisher's reference; it reads as empty. Null is written for no
//     filter value only.
//   - Offset type 0 is refused in Subscribe and ResolveOffsetSpec while
//     decoding, unknown types everywhere.
//   - A Publish frame is checked as a whole before its first entry is given
//     out; a sub-batch that breaks a size rule, or (the reference lets it pass)
//     sets a reserved bit, is not a malformed frame, but ends the entries that
//     may be stored (Publish.Accepted).
//   - SaslAuthenticate's answer has no challenge, and code 10 is never sent.
//   - The limits of frames: 8 KiB before Open, at most 16 MiB after it, where
//     "no limit" was negotiated too.
//
// Empty messages and empty arrays are legal, as in the reference. Names are
// byte strings here; what a name may be is the broker's to say.
//
// # Invariants
//
//   - Decoding allocates at most twice the frame and 4 KiB: counts are held
//     against the bytes that are left before anything is allocated, and arrays
//     of strings stay in their wire form (List, Strings, Properties).
//   - Values own their memory, but for Publish and Deliver, which refer to the
//     frame.
//   - Encoding what was decoded gives the same bytes, but for the exceptions
//     above.
package wire
