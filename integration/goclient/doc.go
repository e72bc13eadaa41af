// Package goclient holds Millrace against the official Go client, in the
// newest release and unmodified. It is a module of its own, so that the
// client's dependencies never reach Millrace's.
//
// Most tests have one node. TestReliable_kills has three, and holds the client's
// reliable producers and consumers to going on by themselves; steady_test.go is
// our own client beside them, by which they are measured.
package goclient
