// Package httpapi is the plain HTTP API: the broker for who has no library, from
// curl, a shell script or a page of the broker's own.
//
//	POST /v1/topics/orders/messages      a raw body, or lines of JSON
//	        │ read, check                                     answer, or
//	        ▼                                                 problem+json
//	strandmq.v1.PublishRequest ──► the method that serves ──► PublishResponse
//	                               Connect and gRPC, too
//
// It owns the paths under /v1, the way messages are written as JSON there, and
// the page that describes both (openapi.json). It decides nothing about messages:
// every request becomes a call of the API, in this process and without a
// connection, so it is routed, limited, counted and refused as any other call,
// on every node of a cluster.
//
// It promises that what is answered with a 2xx was done whole; that every refusal
// is a problem (RFC 9457) with a reason of docs/errors.md; and that no GET changes
// anything. It refuses parameters, fields and content types that it does not
// know, since what is passed over in silence is found out late; and content types
// that a web page could send without asking first.
package httpapi
