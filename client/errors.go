package client

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/wire"
)

var (
	// ErrClosed: the connection, publisher or consumer was closed by its owner.
	ErrClosed = errors.New("client closed")
	// ErrSilent: nothing came from the broker for two heartbeat intervals.
	ErrSilent = errors.New("broker silent")
	// ErrStreamUnavailable: the broker gave up a publisher or consumer, because
	// the stream was deleted or its leader changed.
	ErrStreamUnavailable = errors.New("stream became unavailable")
	// ErrTooLarge: a message does not fit into a frame.
	ErrTooLarge = errors.New("message too large")
	// ErrName: a name, reference or filter value that the protocol cannot carry.
	ErrName = errors.New("string too long for the protocol")
	// ErrNoLeader: the stream has no leader.
	ErrNoLeader = errors.New("stream has no leader")
	// ErrIDs: all 256 publishers or subscriptions of the connection are in use.
	ErrIDs = errors.New("no id left on the connection")
)

// CodeError is a request that the broker refused.
type CodeError struct {
	Command wire.Key
	Code    wire.ResponseCode
}

func (e *CodeError) Error() string {
	return fmt.Sprintf("%s: %s (code %d)", e.Command, e.Code, uint16(e.Code))
}

// Code returns the response code in err: CodeOK for nil, 0 if there is none.
func Code(err error) wire.ResponseCode {
	if err == nil {
		return wire.CodeOK
	}
	var refused *CodeError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return 0
}

// ClosedError is the broker's own end of a connection.
type ClosedError struct {
	Code   wire.ResponseCode
	Reason string
}

func (e *ClosedError) Error() string {
	return fmt.Sprintf("broker closed the connection: %s (code %d)", e.Reason, uint16(e.Code))
}

// check turns a response code into an error.
func check(command wire.Key, code wire.ResponseCode) error {
	if code == wire.CodeOK {
		return nil
	}
	return &CodeError{Command: command, Code: code}
}

// checkNames holds names against what a string of the protocol can be.
func checkNames(names ...string) error {
	for _, name := range names {
		if len(name) > wire.StringMax {
			return fmt.Errorf("%w: %d bytes, at most %d", ErrName, len(name), wire.StringMax)
		}
	}
	return nil
}
