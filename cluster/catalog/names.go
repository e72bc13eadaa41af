package catalog

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxNameBytes bounds every name: of streams, super streams, virtual hosts,
// users, nodes.
const maxNameBytes = 255

// StreamName returns the name under which a create stores a stream: carriage
// returns and line feeds are dropped, then it must be 1 to 255 bytes of UTF-8
// without control characters and not begin with "amq.". Else it is an
// ErrBadArgument. Only creates rewrite names; look-ups take them as they are.
func StreamName(name string) (string, error) {
	clean := strings.NewReplacer("\r", "", "\n", "").Replace(name)
	if r := checkName("stream name", clean); r != nil {
		return "", r
	}
	if strings.HasPrefix(clean, "amq.") {
		return "", refuse(ErrBadArgument, "stream name %q begins with %q, which is reserved", clean, "amq.")
	}
	return clean, nil
}

// checkName refuses what no name may be. The sort of name is for the text.
func checkName(sort, name string) *Refusal {
	switch {
	case name == "":
		return refuse(ErrBadArgument, "%s is empty, but must have 1 to %d bytes", sort, maxNameBytes)
	case len(name) > maxNameBytes:
		return refuse(ErrBadArgument, "%s has %d bytes, but at most %d are allowed", sort, len(name), maxNameBytes)
	case !utf8.ValidString(name):
		return refuse(ErrBadArgument, "%s %q is not UTF-8", sort, name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return refuse(ErrBadArgument, "%s %q has a control character", sort, name)
	}
	return nil
}

// key joins the parts of a name that is unique within something. No name holds
// a control character, so the separator keeps keys apart and sorts them by
// their first part.
func key(parts ...string) string { return strings.Join(parts, "\x00") }
