package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
)

const (
	mechanismAMQPlain = "AMQPLAIN"
	mechanismExternal = "EXTERNAL" // by the client's certificate
	mechanismPlain    = "PLAIN"
)

var (
	mechanisms    = []string{mechanismAMQPlain, mechanismPlain}
	mechanismsTLS = []string{mechanismAMQPlain, mechanismExternal, mechanismPlain}
)

var (
	errMechanism = errors.New("SASL mechanism is not offered here")
	errMalformed = errors.New("SASL data is malformed")
)

// credentials are what a client says it is. The password is never logged.
type credentials struct {
	mechanism string
	user      string
	password  []byte
}

// parseCredentials reads the data of a SaslAuthenticate. It fails with
// errMechanism or errMalformed. The password is a part of data.
func parseCredentials(mechanism string, data []byte) (credentials, error) {
	var user, password []byte
	var ok bool
	switch mechanism {
	case mechanismPlain:
		user, password, ok = parsePlain(data)
	case mechanismAMQPlain:
		user, password, ok = parseAMQPlain(data)
	default:
		return credentials{}, errMechanism
	}
	if !ok {
		return credentials{}, errMalformed
	}
	return credentials{mechanism: mechanism, user: string(user), password: password}, nil
}

// parsePlain reads 00 user 00 password: no authorization id, and no zero in
// the password.
func parsePlain(data []byte) (user, password []byte, ok bool) {
	if len(data) == 0 || data[0] != 0 {
		return nil, nil, false
	}
	user, password, ok = bytes.Cut(data[1:], []byte{0})
	return user, password, ok && bytes.IndexByte(password, 0) < 0
}

// parseAMQPlain reads a field table without its length:
//
//	length u8 │ name │ 'S' │ length u32 │ value
//
// with the fields LOGIN and PASSWORD. Other fields are skipped if they are
// texts, too; anything else is malformed.
func parseAMQPlain(data []byte) (user, password []byte, ok bool) {
	var hasUser, hasPassword bool
	for len(data) > 0 {
		nameLength := int(data[0])
		if len(data) < 1+nameLength+5 || data[1+nameLength] != 'S' {
			return nil, nil, false
		}
		name, rest := data[1:1+nameLength], data[2+nameLength:]
		length := uint64(binary.BigEndian.Uint32(rest))
		if uint64(len(rest)-4) < length {
			return nil, nil, false
		}
		value := rest[4 : 4+length]
		data = rest[4+length:]
		switch string(name) {
		case "LOGIN":
			user, hasUser = value, true
		case "PASSWORD":
			password, hasPassword = value, true
		}
	}
	return user, password, hasUser && hasPassword
}
