//go:build race

package segstore_test

// raceFactor thins out walks of one goroutine, which the race detector slows
// down tenfold and has nothing to say about.
const raceFactor = 13
