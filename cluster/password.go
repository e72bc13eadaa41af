package cluster

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"golang.org/x/crypto/argon2"
)

// Cost of a password hash: 19 MiB, two passes, one lane.
const (
	argonMemoryKiB = 19 << 10
	argonPasses    = 2
	argonLanes     = 1
	saltBytes      = 16
	keyBytes       = 32
)

// Bounds of the cost that a stored hash may ask for; an imported one must not
// be able to stall the node.
const (
	argonMemoryKiBMax = 256 << 10
	argonPassesMax    = 16
	argonLanesMax     = 8
)

// Names of the hash forms, as they stand between the first two dollar signs.
const (
	formArgon2id = "argon2id"
	// formSHA256 and formSHA512 are the ancestor's: base64 of a salt of four
	// bytes and the hash of salt and password.
	formSHA256 = "rabbit-sha256"
	formSHA512 = "rabbit-sha512"
)

const ancestorSaltBytes = 4

// b64 is the base64 of argon2's usual text form: without padding.
var b64 = base64.RawStdEncoding

// GuestHash is the hash of the password "guest", made once: the first start of
// a node that only loopback may log in to need not spend the time. It keeps
// nothing secret.
const GuestHash = "$argon2id$v=19$m=19456,t=2,p=1$bWlsbHJhY2UuZ3Vlc3QuMQ$QNFiRqo+CqhOjNHl/atvi2k8b91/VH7bobNXqpltOxE"

// HashPassword returns the text under which a password is stored. It takes
// about 40 ms of a core.
func HashPassword(password []byte) string {
	salt := make([]byte, saltBytes)
	rand.Read(salt) // never fails
	sum := argon2.IDKey(password, salt, argonPasses, argonMemoryKiB, argonLanes, keyBytes)
	return fmt.Sprintf("$%s$v=%d$m=%d,t=%d,p=%d$%s$%s",
		formArgon2id, argon2.Version, argonMemoryKiB, argonPasses, argonLanes, b64.EncodeToString(salt), b64.EncodeToString(sum))
}

// ImportHash returns the stored form of a hash of the ancestor, as its
// definitions carry it: the algorithm's name and base64 of salt and hash.
func ImportHash(algorithm, base64Hash string) (string, error) {
	form := map[string]string{
		"rabbit_password_hashing_sha256": formSHA256,
		"rabbit_password_hashing_sha512": formSHA512,
	}[algorithm]
	if form == "" {
		return "", fmt.Errorf("%w: algorithm %q is neither SHA-256 nor SHA-512 of the ancestor", ErrBadHash, algorithm)
	}
	text := "$" + form + "$" + base64Hash
	return text, CheckHash(text)
}

// CheckHash says whether a stored hash can be read. The empty one can: it
// matches no password.
func CheckHash(text string) error {
	if text == "" {
		return nil
	}
	_, err := parseHash(text)
	return err
}

// storedHash proves passwords.
type storedHash interface {
	proves(password []byte) bool
}

// argonHash is a parsed argon2id hash.
type argonHash struct {
	memoryKiB, passes uint32
	lanes             uint8
	salt, sum         []byte
}

func (h argonHash) proves(password []byte) bool {
	sum := argon2.IDKey(password, h.salt, h.passes, h.memoryKiB, h.lanes, uint32(len(h.sum)))
	return subtle.ConstantTimeCompare(sum, h.sum) == 1
}

// saltedHash is a parsed hash of the ancestor.
type saltedHash struct {
	new       func() hash.Hash
	salt, sum []byte
}

func (h saltedHash) proves(password []byte) bool {
	d := h.new()
	d.Write(h.salt)
	d.Write(password)
	return subtle.ConstantTimeCompare(d.Sum(nil), h.sum) == 1
}

// parseHash reads a stored hash. The error never holds the hash.
func parseHash(text string) (storedHash, error) {
	parts := strings.Split(text, "$")
	if len(parts) < 2 || parts[0] != "" {
		return nil, fmt.Errorf("%w: it names no form", ErrBadHash)
	}
	switch form := parts[1]; {
	case form == formArgon2id && len(parts) == 6:
		return parseArgon(parts[2:])
	case form == formSHA256 && len(parts) == 3:
		return parseSalted(parts[2], sha256.New)
	case form == formSHA512 && len(parts) == 3:
		return parseSalted(parts[2], sha512.New)
	default:
		return nil, fmt.Errorf("%w: its form is not one of %s, %s, %s", ErrBadHash, formArgon2id, formSHA256, formSHA512)
	}
}

// parseArgon reads version, cost, salt and sum.
func parseArgon(parts []string) (storedHash, error) {
	if parts[0] != "v="+strconv.Itoa(argon2.Version) {
		return nil, fmt.Errorf("%w: argon2 version %q is not %d", ErrBadHash, parts[0], argon2.Version)
	}
	var h argonHash
	if _, err := fmt.Sscanf(parts[1], "m=%d,t=%d,p=%d", &h.memoryKiB, &h.passes, &h.lanes); err != nil {
		return nil, fmt.Errorf("%w: argon2 cost %q", ErrBadHash, parts[1])
	}
	if h.memoryKiB < 8*uint32(h.lanes) || h.memoryKiB > argonMemoryKiBMax || h.passes < 1 || h.passes > argonPassesMax ||
		h.lanes < 1 || h.lanes > argonLanesMax {
		return nil, fmt.Errorf("%w: argon2 cost %q is out of bounds", ErrBadHash, parts[1])
	}
	var errSalt, errSum error
	h.salt, errSalt = b64.DecodeString(parts[2])
	h.sum, errSum = b64.DecodeString(parts[3])
	if errSalt != nil || errSum != nil || len(h.salt) < 8 || len(h.sum) < 16 || len(h.sum) > 64 {
		return nil, fmt.Errorf("%w: argon2 salt or sum", ErrBadHash)
	}
	return h, nil
}

func parseSalted(text string, new func() hash.Hash) (storedHash, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != ancestorSaltBytes+new().Size() {
		return nil, fmt.Errorf("%w: it is not base64 of a salt of %d bytes and a sum", ErrBadHash, ancestorSaltBytes)
	}
	return saltedHash{new, bytes.Clone(b[:ancestorSaltBytes]), b[ancestorSaltBytes:]}, nil
}
