package broker

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/strandmq/strandmq/internal/httpapi"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// services are the names that health and reflection speak of.
func services() []string {
	return []string{
		strandmqv1connect.PublishServiceName, strandmqv1connect.ConsumeServiceName, strandmqv1connect.TopicServiceName,
		strandmqv1connect.ReadServiceName,
		strandmqv1connect.GroupServiceName, strandmqv1connect.DeadLetterServiceName, strandmqv1connect.TraceServiceName,
		strandmqv1connect.NodeServiceName, strandmqv1connect.ClusterServiceName,
	}
}

// routes puts everything that the port serves on one mux.
func (b *Broker) routes() http.Handler {
	mux := http.NewServeMux()
	e := &edge{log: b.log, metrics: b.metrics, ready: b.ready, explain: b.explain, flight: b.flight, memory: b.memory}
	if b.cfg.Peers != nil {
		e.revision, e.newer = b.revision, b.caughtUp
	}
	admin := handlerOptions(e, compressLarge)
	serve := func(prefix string, h http.Handler) {
		// Method by method, so that other answers for one that does not exist.
		for m := range methodsOf(strings.Trim(prefix, "/")) {
			mux.Handle(prefix+string(m.Name()), b.protocol(b.control(h)))
		}
	}
	// Answers of the data plane are not compressed on the way, unless the caller
	// does so itself: see handlerOptions.
	data := func(service func(...connect.HandlerOption) (string, http.Handler)) (string, http.Handler) {
		prefix, plain := service(handlerOptions(e, compressNever)...)
		_, small := service(handlerOptions(e, compressSmall)...)
		return prefix, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if zips(r.Header) {
				small.ServeHTTP(w, r)
				return
			}
			plain.ServeHTTP(w, r)
		})
	}
	serve(data(func(opts ...connect.HandlerOption) (string, http.Handler) {
		return strandmqv1connect.NewPublishServiceHandler(publishAPI{b}, opts...)
	}))
	serve(data(func(opts ...connect.HandlerOption) (string, http.Handler) {
		return strandmqv1connect.NewConsumeServiceHandler(consumeAPI{b}, opts...)
	}))
	serve(data(func(opts ...connect.HandlerOption) (string, http.Handler) {
		return strandmqv1connect.NewReadServiceHandler(readAPI{b}, opts...)
	}))
	serve(strandmqv1connect.NewTopicServiceHandler(topicAPI{b}, admin...))
	serve(strandmqv1connect.NewGroupServiceHandler(groupAPI{b}, admin...))
	serve(strandmqv1connect.NewDeadLetterServiceHandler(deadAPI{b}, admin...))
	serve(strandmqv1connect.NewTraceServiceHandler(traceAPI{b}, admin...))
	serve(strandmqv1connect.NewNodeServiceHandler(nodeAPI{b}, admin...))
	serve(strandmqv1connect.NewClusterServiceHandler(clusterAPI{b}, admin...))

	other := []connect.HandlerOption{connect.WithInterceptors(e), connect.WithReadMaxBytes(1 << 20), connect.WithCompressMinBytes(32 << 10)}
	mux.Handle(grpchealth.NewHandler(healthCheck{b}, other...))
	reflector := grpcreflect.NewStaticReflector(append(services(), grpchealth.HealthV1ServiceName)...)
	mux.Handle(grpcreflect.NewHandlerV1(reflector, other...))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, other...))

	mux.Handle(httpapi.Prefix, httpapi.New(httpapi.Config{Calls: mux, Row: rowFor, Rejected: b.refused, Panicked: b.panicked, WriteTime: b.cfg.TransferTime, Topic: b.plainTopic, Stream: b.plainStream}))

	mux.Handle("GET /metrics", b.metrics.handler(b.collect))
	mux.HandleFunc("GET "+profilePath+"{what}", b.profile)
	b.probes(mux)
	mux.HandleFunc("/", b.other)
	return mux
}

// methodsOf lists the methods of a service of the protocol.
func methodsOf(service string) iter.Seq[protoreflect.MethodDescriptor] {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	sd, ok := d.(protoreflect.ServiceDescriptor)
	if err != nil || !ok {
		panic("broker: no service " + service) // a slip in routes, which every test meets
	}
	return func(yield func(protoreflect.MethodDescriptor) bool) {
		for i := range sd.Methods().Len() {
			if !yield(sd.Methods().Get(i)) {
				return
			}
		}
	}
}

// other answers for every path that is not served.
func (b *Broker) other(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/" && r.Method != http.MethodPost {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "StrandMQ %s\n\nAPI:     POST /strandmq.v1.<Service>/<Method>, content-type: application/json\nPlain:   /v1/openapi.json\nList:    gRPC reflection\nProbes:  /livez /startupz /readyz (?verbose)\nMetrics: /metrics\n", b.cfg.Version)
		return
	}
	b.refused(r.Context(), r.URL.Path, "UNKNOWN_METHOD")
	writeRefusal(w, http.StatusNotFound, refuse("UNKNOWN_METHOD", "", "there is nothing at %s: API calls are POST /strandmq.v1.<Service>/<Method>", plain.Quote(r.URL.Path)), requestOf(r.Context()))
}

// newServer makes the server. It answers HTTP/1.1 and HTTP/2 without TLS on one
// port. There is no write timeout for all calls, which would cut long polls;
// each answer gets its own once it begins (see guard).
func (b *Broker) newServer() *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	hosts := map[string]bool{"localhost": true}
	for _, h := range b.cfg.AllowedHosts {
		hosts[hostName(h)] = true
	}
	if name := hostName(b.cfg.Listen); name != "" {
		hosts[name] = true
	}
	b.api = b.routes()
	g := &guard{
		log: b.log, next: b.api, hosts: hosts, origins: http.NewCrossOriginProtection(), guests: newGuests(b.cfg.AllowedOrigins),
		bodyTime: b.cfg.TransferTime, flight: b.flight, rejected: b.metrics.rejected,
	}
	return &http.Server{
		Handler:           g,
		Protocols:         &protocols,
		ReadHeaderTimeout: min(5*time.Second, b.cfg.TransferTime),
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		// Most of what net/http has to say is what strangers do wrong.
		ErrorLog: slog.NewLogLogger(b.log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 128,
			SendPingTimeout:      30 * time.Second,
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     max(30*time.Second, b.cfg.SessionTimeout),
		},
		// A call's context ends when Close stops waiting for it.
		BaseContext: func(net.Listener) context.Context { return b.calls },
	}
}

// healthCheck answers gRPC health checks: the node's state for the empty name,
// which every service shares.
type healthCheck struct{ b *Broker }

// Check implements grpchealth.Checker.
func (h healthCheck) Check(_ context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if req.Service != "" {
		known := false
		for _, s := range services() {
			known = known || s == req.Service
		}
		if !known {
			return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no service %s", plain.Quote(req.Service)))
		}
	}
	// As for /readyz, a damaged partition does not take the others with it.
	if !h.b.takesCalls() {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}
