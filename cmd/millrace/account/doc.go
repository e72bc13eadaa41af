// Package account answers: what do a stream's files consist of, kind by kind?
//
// Of tells it for the two formats that matter here, and knows them by the files
// themselves: ours (segstore/FORMAT.md), and osiris', which RabbitMQ streams are
// kept in. So one benchmark can show what stored offsets take on the disk of
// either broker. It reads heads only, changes nothing, and may look at the files
// of a running broker: what is half written at the end counts as other bytes.
package account
