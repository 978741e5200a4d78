// Package examples runs the programs in its folders against a real broker, so that
// what they show is so. It has no code of its own.
//
//	curl/tour.sh      the plain HTTP API: publish, receive, settle, read, listen
//	go/main.go        the Go client
//	node/main.mjs     gRPC with the protocol files as they are
//	python/main.py    gRPC likewise
//
// Each is one file that takes the broker's URL from STRANDMQ_SERVER, makes a topic,
// and ends with "done". The tests download nothing: what is not installed here is
// skipped, with what to install.
package examples
