package broker

import (
	"context"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// streamAPI is the API over HTTP/2, which streams need.
func streamAPI(t testing.TB, b *Broker) api { return apiOver(httpClient(t, true), b.URL()) }

// streamsOver opens a stream of a method with each client library and protocol:
// open does it with Connect's, and dressed is a client's end of what Google's
// own client opened.
func streamsOver[S any](t *testing.T, b *Broker, method string, open func(api, context.Context) S, dressed func(grpc.ClientStream) S) map[string]func(context.Context) S {
	t.Helper()
	conn, err := grpc.NewClient(b.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	over := func(opts ...connect.ClientOption) func(context.Context) S {
		a := apiOver(httpClient(t, true), b.URL(), opts...)
		return func(c context.Context) S { return open(a, c) }
	}
	return map[string]func(context.Context) S{
		"connect":      over(),
		"connect-json": over(connect.WithProtoJSON()),
		"connect-gzip": over(connect.WithSendGzip()),
		"grpc":         over(connect.WithGRPC()),
		"grpc-go": func(c context.Context) S {
			s, err := conn.NewStream(c, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/strandmq.v1."+method)
			if err != nil {
				t.Fatal(err)
			}
			return dressed(s)
		},
	}
}
