package main

import (
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/strandmq/strandmq/internal/offsets"
	"github.com/strandmq/strandmq/internal/quantity"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// defaultData is the data folder of a broker that was told of none.
const defaultData = "./strandmq-data"

// env gives what the environment says, or otherwise.
func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// envList gives what the environment lists, with commas or spaces, or otherwise.
func envList(name string, otherwise ...string) []string {
	if strings.TrimSpace(os.Getenv(name)) == "" {
		return otherwise
	}
	return strings.FieldsFunc(os.Getenv(name), func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

// spanFlag is a span of time, in the grammar of package quantity.
type spanFlag struct{ d time.Duration }

func (f *spanFlag) String() string     { return quantity.FormatSpan(f.d) }
func (f *spanFlag) Type() string       { return "span" }
func (f *spanFlag) Set(s string) error { d, err := quantity.ParseSpan(s); f.d = d; return err }

// sizeFlag is a size in bytes, in the grammar of package quantity.
type sizeFlag struct{ n int64 }

func (f *sizeFlag) String() string     { return quantity.FormatSize(f.n) }
func (f *sizeFlag) Type() string       { return "size" }
func (f *sizeFlag) Set(s string) error { n, err := quantity.ParseSize(s); f.n = n; return err }

// positionFlag is a place in a log, in the grammar of package offsets.
type positionFlag struct {
	p   offsets.Position
	set bool
}

func (f *positionFlag) String() string {
	if !f.set {
		return ""
	}
	return f.p.String()
}
func (f *positionFlag) Type() string { return "position" }
func (f *positionFlag) Set(s string) error {
	p, err := offsets.Parse(s)
	f.p, f.set = p, err == nil
	return err
}

// wire turns a position into the API's.
func (f *positionFlag) wire(now time.Time) *strandmqv1.StartPosition {
	switch p := f.p.At(now); p.Kind {
	case offsets.Latest:
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Latest{Latest: true}}
	case offsets.Offset:
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: p.N}}
	case offsets.FromEnd:
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_FromEnd{FromEnd: p.N}}
	case offsets.Time:
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Time{Time: timestamppb.New(p.Time)}}
	default:
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Earliest{Earliest: true}}
	}
}

// countFlag is a number from 0 (or least) to most (or 4 billion); negative ones
// are refused where a plain integer would wrap.
type countFlag struct {
	n           uint32
	least, most uint32
}

func (f *countFlag) String() string { return strconv.FormatUint(uint64(f.n), 10) }
func (f *countFlag) Type() string   { return "number" }
func (f *countFlag) Set(s string) error {
	most := f.most
	if most == 0 {
		most = math.MaxUint32
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n < uint64(f.least) || n > uint64(most) {
		return usagef("a whole number from %d to %d is wanted", f.least, most)
	}
	f.n = uint32(n)
	return nil
}

// countFlag64 is a number of 64 bits, such as a place in a log.
type countFlag64 struct{ n uint64 }

func (f *countFlag64) String() string { return strconv.FormatUint(f.n, 10) }
func (f *countFlag64) Type() string   { return "number" }
func (f *countFlag64) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return usagef("a whole number from 1 on is wanted")
	}
	f.n = n
	return nil
}
