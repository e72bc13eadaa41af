// Package cli answers: what can be typed?
//
// Each command is a file named after its noun. A command parses its flags,
// asks the node (its HTTP API, or the stream protocol through package client)
// and prints a listing; results go to standard output, all else to standard
// error. Errors are problems: what, why, what to try, and an exit code that
// scripts can rely on.
//
// Read first: Main (root.go), problem (problem.go), listing (output.go).
package cli
