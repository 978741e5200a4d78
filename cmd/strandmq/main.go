// Command strandmq runs a StrandMQ broker and talks to one.
//
//	serve, demo ─start──► internal/broker
//	all others ──Connect──► a broker at --server
//
// The commands know a broker only by its API; what they print for programs
// (--output json) is the API's own JSON. Data goes to standard output, talk to
// standard error. Exit codes: 0 done, 1 failed, 2 wrong usage. Text that came
// from messages is made safe before a terminal sees it.
//
// Files: root.go has the tree and what all commands share, api_client.go the
// only calls into Connect's errors, one file per command or noun; demo_*.go is
// the demonstration.
package main

import (
	"os"
)

func main() {
	os.Exit(run(&app{in: os.Stdin, out: os.Stdout, err: os.Stderr}, os.Args[1:]))
}
