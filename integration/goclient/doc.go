// Package goclient holds Millrace against the official Go client, in the
// newest release and unmodified. It is a module of its own, so that the
// client's dependencies never reach Millrace's.
package goclient
