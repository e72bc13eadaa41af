package broker

import (
	"errors"
	"time"

	"github.com/millrace/millrace/wire"
)

// state is how far a connection has come.
//
//	connected ─PeerProperties→ identified ─SaslHandshake→ authenticating
//	  ─SaslAuthenticate→ tuning ─Tune→ tuned ─Open→ open ─→ ended
type state uint8

const (
	connected state = iota
	identified
	authenticating
	tuning
	tuned
	open
)

var stateNames = [...]string{"connected", "identified", "authenticating", "tuning", "tuned", "open"}

func (s state) String() string { return stateNames[s] }

// states is a set of them.
type states uint8

func in(all ...state) (set states) {
	for _, s := range all {
		set |= 1 << s
	}
	return set
}

func (set states) has(s state) bool { return set&(1<<s) != 0 }

var anyState = in(connected, identified, authenticating, tuning, tuned, open)

// handler carries out one command. It answers by itself; an error ends the
// connection, see ending.
type handler func(*session, []byte) error

// command says in which states a command may come and who carries it out.
type command struct {
	legal states
	run   handler
}

// dispatch is every command that a client may send. What is not in it, or comes
// in another state, is an unknown frame.
var dispatch map[wire.Key]command

// The table is filled by init because handlers lead back to it.
func init() {
	dispatch = map[wire.Key]command{
		wire.KeyPeerProperties:   {in(connected, identified), with((*session).peerProperties)},
		wire.KeySaslHandshake:    {in(identified, authenticating), with((*session).saslHandshake)},
		wire.KeySaslAuthenticate: {in(authenticating, open), with((*session).saslAuthenticate)},
		wire.KeyTune:             {in(tuning, tuned), with((*session).tune)},
		wire.KeyTune.Answer():    {in(tuning, tuned), with((*session).tune)},
		wire.KeyOpen:             {in(tuning, tuned), with((*session).open)},
		wire.KeyHeartbeat:        {anyState, with((*session).heartbeat)},
		wire.KeyClose:            {in(open), with((*session).closeByClient)},

		wire.KeyDeclarePublisher:       {in(open), with((*session).declarePublisher)},
		wire.KeyPublish:                {in(open), (*session).publish},
		wire.KeyDeletePublisher:        {in(open), with((*session).deletePublisher)},
		wire.KeyQueryPublisherSequence: {in(open), with((*session).queryPublisherSequence)},

		wire.KeySubscribe:               {in(open), with((*session).subscribe)},
		wire.KeyCredit:                  {in(open), with((*session).credit)},
		wire.KeyUnsubscribe:             {in(open), with((*session).unsubscribe)},
		wire.KeyConsumerUpdate.Answer(): {in(open), with((*session).consumerUpdated)},
		wire.KeyStoreOffset:             {in(open), (*session).storeOffset},
		wire.KeyQueryOffset:             {in(open), with((*session).queryOffset)},

		wire.KeyCreate:                  {in(open), with((*session).create)},
		wire.KeyDelete:                  {in(open), with((*session).delete)},
		wire.KeyMetadata:                {in(open), with((*session).metadata)},
		wire.KeyStreamStats:             {in(open), with((*session).streamStats)},
		wire.KeyResolveOffsetSpec:       {in(open), with((*session).resolveOffsetSpec)},
		wire.KeyExchangeCommandVersions: {in(open), with((*session).exchangeCommandVersions)},

		wire.KeyRoute:             {in(open), with((*session).route)},
		wire.KeyPartitions:        {in(open), with((*session).partitions)},
		wire.KeyCreateSuperStream: {in(open), with((*session).createSuperStream)},
		wire.KeyDeleteSuperStream: {in(open), with((*session).deleteSuperStream)},
	}
}

// with decodes a command for the method that carries it out. Publish and
// StoreOffset have no use for it: their frames are read in place.
func with[C any, P interface {
	*C
	wire.Command
}](run func(*session, P) error) handler {
	return func(s *session, payload []byte) error {
		var c C
		if err := wire.Decode(payload, P(&c)); err != nil {
			return violation{wire.CodeUnknownFrame, err}
		}
		return run(s, &c)
	}
}

// ending is how a connection ends; serve returns one or an error of the socket.
// Whatever it is, the publishers and subscriptions are given up first.
type ending interface {
	error
	end(*session)
}

// violation ends a connection that broke the protocol. Before Open the socket
// is closed without a word; after it the client is asked to close.
type violation struct {
	code  wire.ResponseCode
	cause error
}

func (v violation) Error() string { return v.code.String() + ": " + v.cause.Error() }
func (v violation) Unwrap() error { return v.cause }

// answered ends a connection whose last answer is given: it is written, and the
// socket closed.
type answered struct{ cause error }

func (a answered) Error() string { return "answered and closed: " + a.cause.Error() }
func (a answered) Unwrap() error { return a.cause }

// withheld ends a connection by an answer that is held back for a while, so
// that guessing is slow.
type withheld struct {
	answer wire.Command
	cause  error
	until  time.Time
}

func (w withheld) Error() string { return "refused: " + w.cause.Error() }
func (w withheld) Unwrap() error { return w.cause }

var (
	errOutOfTurn    = errors.New("command out of turn")
	errUnknown      = errors.New("no such command")
	errClientClosed = errors.New("closed by the client")
)

// serve carries out frame after frame until the connection ends.
func (s *session) serve() error {
	for {
		payload, err := s.frames.next()
		switch {
		case errors.Is(err, wire.ErrFrameTooLarge):
			return violation{wire.CodeFrameTooLarge, err}
		case errors.Is(err, wire.ErrFrameTooSmall):
			return violation{wire.CodeUnknownFrame, err}
		case err != nil:
			return err
		}
		if err := s.carryOut(payload); err != nil {
			return err
		}
		if err := s.out.awaitSpace(s.limits.AnswerBytes, s.leaving, s.dying); err != nil {
			return err
		}
	}
}

// carryOut does what one frame asks for.
func (s *session) carryOut(payload []byte) error {
	key, _ := wire.Header(payload)
	to, known := dispatch[key]
	switch {
	case !known:
		return violation{wire.CodeUnknownFrame, errUnknown}
	case !to.legal.has(s.state):
		return violation{wire.CodeUnknownFrame, errOutOfTurn}
	}
	return to.run(s, payload)
}
