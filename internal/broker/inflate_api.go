package broker

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/plain"
)

// A compressed message may be as large, inflated, as one that was sent as it
// is, and at most maxInflation times as large as it came. Repeated text shrinks
// a lot, so the factor only counts beyond freeInflation.
const (
	maxInflation  = 100
	freeInflation = 256 << 10
)

// inflater is the gzip reader of one kind of call, in all protocols. The RPC
// library would stop storing at its limit and inflate the rest to tell how large
// it is; this stops at once, with a Problem, and counts what it makes among the
// bytes that all requests hold.
type inflater struct {
	flight   *flight
	limit    int64
	rejected func(reason string)

	zip   gzip.Reader
	most  int64 // of this message
	ratio bool  // most is what the factor allows, not the limit
	made  int64
	bad   error // what Reset found; told by Read, whose errors keep their detail
}

var _ connect.Decompressor = (*inflater)(nil)

// Reset implements connect.Decompressor.
func (z *inflater) Reset(r io.Reader) error {
	z.release()
	z.most, z.ratio, z.bad = z.limit, false, nil
	if r == http.NoBody {
		z.bad = io.EOF // it goes back to the pool
		return nil
	}
	if sized, ok := r.(interface{ Len() int }); ok {
		if most := max(freeInflation, maxInflation*int64(sized.Len())); most < z.limit {
			z.most, z.ratio = most, true
		}
	}
	if err := z.zip.Reset(r); err != nil {
		z.refuse(notGzip(err))
	}
	return nil
}

func (z *inflater) refuse(r *refusal) {
	z.rejected(r.reason)
	z.bad = wireError(r, nil) // the library has its readers for all calls
}

// Read implements connect.Decompressor.
func (z *inflater) Read(p []byte) (int, error) {
	if z.bad != nil {
		return 0, z.bad
	}
	n, err := z.zip.Read(p)
	z.made += int64(n)
	switch {
	case !z.flight.take(int64(n)):
		z.refuse(busyReading())
	case z.made > z.most && z.ratio:
		z.refuse(refuse("BAD_COMPRESSION", "", "the request inflates to more than %d times its size: send it less compressed, or as it is", maxInflation))
	case z.made > z.most:
		z.refuse(tooLarge(z.limit))
	case err != nil && !errors.Is(err, io.EOF):
		z.refuse(notGzip(err))
	default:
		return n, err
	}
	return 0, z.bad
}

// Close implements connect.Decompressor.
func (z *inflater) Close() error {
	z.release()
	return nil // the gzip reader holds nothing, and may never have begun
}

func (z *inflater) release() {
	z.flight.give(z.made)
	z.made = 0
}

func notGzip(err error) *refusal {
	return refuse("BAD_REQUEST", "", "the request says that it is compressed, and does not read as gzip: %s", plain.Quote(err.Error()))
}

// inflating makes gzip of one kind of call the broker's own. The answers are
// compressed as the RPC library would.
func inflating(e *edge, limit int64) connect.HandlerOption {
	return connect.WithCompression("gzip",
		func() connect.Decompressor {
			return &inflater{flight: e.flight, limit: limit, rejected: e.metrics.rejected}
		},
		func() connect.Compressor { return gzip.NewWriter(io.Discard) },
	)
}

// holdInflated counts an inflated request among the bytes that all requests
// hold until its call is over; false when there is no room. What came as it is
// was counted when it was read.
func (e *edge) holdInflated(req connect.AnyRequest) (release func(), ok bool) {
	if req.Header().Get("Content-Encoding") != "gzip" && req.Header().Get("Grpc-Encoding") != "gzip" {
		return func() {}, true
	}
	m, is := req.Any().(proto.Message)
	if !is {
		return func() {}, true
	}
	n := int64(proto.Size(m))
	if !e.flight.take(n) {
		e.flight.give(n)
		return nil, false
	}
	return func() { e.flight.give(n) }, true
}
