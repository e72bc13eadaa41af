// Package admin answers: what do operators see and do?
//
// It serves two ports. The main one has /healthz and /readyz for whoever
// starts and watches the node, /metrics, the HTTP API under /api/v1 that the
// command line and the embedded page use, and profiles. The other has the
// small part of the ancestor's management API that clients of the stream
// protocol and their tools read (management.go).
//
// It is not about clients' messages, and it knows no replica, raft or socket:
// what it shows comes through the interfaces of server.go, joined in
// cmd/millrace. Figures are read when asked for, so they are exact at once.
//
// Read first: Server and its interfaces (server.go), the types of the answers
// (views.go), the routes (api.go), the table of errors (errors.go).
package admin
