// Package integration answers: does the whole hold together?
//
// Its tests see Millrace from outside: the import table of the house, nodes
// started as processes and killed, the frames that real clients sent, and, in
// a module of its own, the official Go client. No program imports this
// package; harness, below it, is what other test code may use.
package integration
