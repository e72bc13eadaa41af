package wire

import "fmt"

// ResponseCode says how a request ended.
type ResponseCode uint16

// The response codes. 20 and 21 only ever answer a re-authentication: one
// public client cannot read codes above 19.
const (
	CodeOK                         ResponseCode = 1
	CodeStreamDoesNotExist         ResponseCode = 2
	CodeSubscriptionIDExists       ResponseCode = 3
	CodeSubscriptionIDDoesNotExist ResponseCode = 4
	CodeStreamAlreadyExists        ResponseCode = 5
	CodeStreamNotAvailable         ResponseCode = 6
	CodeSaslMechanismNotSupported  ResponseCode = 7
	CodeAuthenticationFailure      ResponseCode = 8
	CodeSaslError                  ResponseCode = 9
	CodeSaslChallenge              ResponseCode = 10
	CodeLoopbackOnly               ResponseCode = 11
	CodeVirtualHostAccessFailure   ResponseCode = 12
	CodeUnknownFrame               ResponseCode = 13
	CodeFrameTooLarge              ResponseCode = 14
	CodeInternalError              ResponseCode = 15
	CodeAccessRefused              ResponseCode = 16
	CodePreconditionFailed         ResponseCode = 17
	CodePublisherDoesNotExist      ResponseCode = 18
	CodeNoOffset                   ResponseCode = 19
	CodeSaslCannotChangeMechanism  ResponseCode = 20
	CodeSaslCannotChangeUsername   ResponseCode = 21
)

var codeNames = [...]string{
	CodeOK:                         "ok",
	CodeStreamDoesNotExist:         "stream does not exist",
	CodeSubscriptionIDExists:       "subscription id already exists",
	CodeSubscriptionIDDoesNotExist: "subscription id does not exist",
	CodeStreamAlreadyExists:        "stream already exists",
	CodeStreamNotAvailable:         "stream not available",
	CodeSaslMechanismNotSupported:  "sasl mechanism not supported",
	CodeAuthenticationFailure:      "authentication failure",
	CodeSaslError:                  "sasl error",
	CodeSaslChallenge:              "sasl challenge",
	CodeLoopbackOnly:               "user may only connect from loopback",
	CodeVirtualHostAccessFailure:   "virtual host access failure",
	CodeUnknownFrame:               "unknown frame",
	CodeFrameTooLarge:              "frame too large",
	CodeInternalError:              "internal error",
	CodeAccessRefused:              "access refused",
	CodePreconditionFailed:         "precondition failed",
	CodePublisherDoesNotExist:      "publisher does not exist",
	CodeNoOffset:                   "no offset",
	CodeSaslCannotChangeMechanism:  "cannot change mechanism",
	CodeSaslCannotChangeUsername:   "cannot change user name",
}

func (c ResponseCode) String() string {
	if c < CodeOK || int(c) >= len(codeNames) {
		return fmt.Sprintf("response code %d", uint16(c))
	}
	return codeNames[c]
}
