// Command millrace is all of Millrace in one binary: the server, the
// operator's command line, the benchmark and the inspection of files offline.
//
// The packages below it: config says how a node is set up, node wires the
// rooms of the house into a running one, cli holds the commands, bench the
// measuring ones.
package main

import (
	"os"

	"github.com/millrace/millrace/cmd/millrace/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
