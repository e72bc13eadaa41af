package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
)

// Exit codes, a contract with scripts (README, "Exit codes").
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitNotAllowed  = 5
	exitUnreachable = 6
	exitUnsafe      = 7
	exitDegraded    = 8
)

// A problem is an error as a person should meet it: what happened, why it
// matters or came about, and what to try. Its code is the process's exit code.
type problem struct {
	code int
	what string
	why  string
	try  []string
	err  error // the cause, for errors.Is
	said bool  // it was told already: only the code is left
}

func (p *problem) Error() string { return p.what }
func (p *problem) Unwrap() error { return p.err }

func (p *problem) because(why string) *problem      { p.why = why; return p }
func (p *problem) suggest(lines ...string) *problem { p.try = append(p.try, lines...); return p }

func fail(code int, format string, args ...any) *problem {
	err := fmt.Errorf(format, args...)
	return &problem{code: code, what: err.Error(), err: errors.Unwrap(err)}
}

func usage(format string, args ...any) *problem { return fail(exitUsage, format, args...) }

// explain turns any error into a problem.
func explain(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var network *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network):
		return fail(exitUnreachable, "%w", err)
	case errors.Is(err, os.ErrNotExist):
		return fail(exitNotFound, "%w", err)
	case errors.Is(err, os.ErrPermission):
		return fail(exitNotAllowed, "%w", err)
	}
	return fail(exitFailed, "%w", err)
}

// report prints err in the house's style and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	p := explain(err)
	if p.said {
		return p.code
	}
	fmt.Fprintf(w, "error: %s\n", indent(p.what, "       "))
	if p.why != "" {
		fmt.Fprintf(w, "  why:   %s\n", indent(p.why, "         "))
	}
	for i, line := range p.try {
		label := "  try:   "
		if i > 0 {
			label = "         "
		}
		fmt.Fprintf(w, "%s%s\n", label, line)
	}
	return p.code
}

// indent puts margin before every line but the first.
func indent(text, margin string) string { return strings.ReplaceAll(text, "\n", "\n"+margin) }
