// Package client answers: how do our own tools talk to any broker of this
// protocol?
//
// It is the thin client of the command line, the benchmark and the tests: one
// connection, its publishers and its consumers, as few copies and locks as the
// protocol allows, and no recovery. Where a connection breaks, everything on it
// ends with the reason, and its owner dials again. Applications use one of the
// public clients.
//
// Read first: Dial and Config, then Publisher and Consumer. Raw is the layer
// below, for tests: it sends any bytes, right or wrong, and reads frames.
//
// Each Conn has two goroutines. One reads, and calls the callbacks: they must
// return soon, and must not wait for an answer on the same connection (nothing
// would read it). One sends heartbeats, credits and the answers to the broker's
// requests, so that reading never waits for writing; else a broker that stops
// reading until it is read from would stop us for good.
package client
