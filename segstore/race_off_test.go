//go:build !race

package segstore_test

const raceFactor = 1
