// Package house holds the rules that keep this repository the way it is meant
// to be read. It has no code that the broker runs: it is tests over the tree.
//
// It owns
//
//   - the import table: which package may import which of ours, and which
//     package alone may import Raft, Pebble and Connect;
//   - the purity of the cores: files that decide are free of disk, network,
//     clock, randomness, locks and contexts;
//   - the pages: every package explains itself, every link in the
//     documentation leads somewhere, every test that a promise names exists;
//   - the list of direct dependencies, each with its reason;
//   - the watch over goroutines: packages that start any run under the race
//     detector, and their tests look for what was left behind;
//   - the watch over decoders: each has a fuzz target with seeds;
//   - the Go on pages and in comments for users, which compiles;
//   - the tour in README.md, which is run against the real binary.
//
// It promises that each failure says what to do instead, since whoever meets
// one has usually never heard of the rule. It refuses to be clever: it parses
// source files and compares them with short tables at the top of each test.
//
//	          ┌ imports ─ table in imports_test.go
//	tree ──►  ├ pages ─── package comments, links, promises, dependencies
//	          ├ snippets ─ Go that readers copy
//	          └ tour ──── README.md's commands, run in order
//
// A rule that is wrong is changed here, in the same commit as what it would
// have refused, with a page in docs/decisions that says why.
package house
