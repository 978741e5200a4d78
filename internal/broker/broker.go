package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
	"github.com/strandmq/strandmq/router"
)

// Broker is one running node.
type Broker struct {
	cfg       Config
	log       *slog.Logger
	startedAt time.Time

	// What the node is put together from, in the order of starting. Set by
	// Start before started is true and not changed afterwards; nothing but the
	// probes and the metrics of the process looks at them earlier.
	metrics   *metrics
	store     *logstore.Store
	host      *partition.Host
	coord     *coordinator.Coordinator
	metadata  atomic.Pointer[coordinator.App] // the first one of this process
	agent     *agent                          // nil: the node is alone
	waits     atomic.Pointer[agent]           // while it waits for the other nodes to start
	cluster   coordinator.Cluster
	groups    *consumer.Shell // of this node's partitions
	parts     partitions      // all, wherever they are led
	members   members         // of groups: their sessions
	far       *dispatch       // nil: the node is alone
	publisher *router.Publisher
	naming    sync.Mutex // one telling of names at a time
	topics    topics
	sessions  *sessions
	live      *live
	waiters   *waiters
	disk      *disk
	retention *retention
	events    *happenings

	streamNumber atomic.Uint64 // of the publish stream opened last
	readTurn     atomic.Uint64 // of the partition that a Read looks into first

	flight   *flight // bytes of requests
	memory   *pool   // of streams
	listener net.Listener
	server   *http.Server
	api      http.Handler // what the server serves, without the guard
	started  atomic.Bool

	profiling sync.Mutex // held while a profile is made

	// serving ends when Close begins: what waits answers. calls ends when
	// Close stops waiting: what is left is cut.
	serving     context.Context
	stopServing context.CancelFunc
	calls       context.Context
	stopCalls   context.CancelFunc

	running sync.WaitGroup // the goroutines of this package
	failed  chan error     // the first failure; buffered
	fault   atomic.Pointer[error]

	closing  sync.Once
	closeErr error
}

// crowded tells of connections that are closed as they come, since who opened
// them hears nothing. A flood of them is one line a minute.
func (b *Broker) crowded() func(netip.Addr) {
	var last time.Time // Accept is called by one goroutine
	return func(from netip.Addr) {
		b.metrics.crowded.WithLabelValues().Inc()
		if now := time.Now(); last.IsZero() || now.Sub(last) >= time.Minute {
			last = now
			b.log.Warn("a connection was closed as it came: its address has as many open as one may have; the metric connections_refused_total counts them",
				"from", from, "limit", b.cfg.ConnectionsPerAddress)
		}
	}
}

// Start opens the data folder, brings every partition up, finishes what a stop
// left half done, and serves. It returns when calls are answered; while it reads
// the log, /livez answers and /readyz says no. Errors are *StartError.
func Start(ctx context.Context, cfg Config) (*Broker, error) {
	if err := checkListen(cfg.withDefaults().Listen); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, &StartError{Reason: BadConfig, Text: err.Error(), Err: err}
	}
	cfg = cfg.withDefaults()
	b := &Broker{
		cfg: cfg, log: slog.New(requestLog{cfg.Logger.Handler()}), startedAt: time.Now(), metrics: newMetrics(cfg.Version),
		failed: make(chan error, 1), flight: &flight{max: cfg.RequestBytes}, memory: &pool{max: cfg.StreamMemory},
		topics: topics{of: map[*coordinator.Topic]*topic{}}, events: newHappenings(),
	}
	b.metrics.full = func(reason string) {
		b.events.ofNode(coordinator.MemoryLimit, "calls were refused as "+reason+": the memory that is for them is used up")
	}
	b.serving, b.stopServing = context.WithCancel(context.WithoutCancel(ctx))
	b.calls, b.stopCalls = context.WithCancel(context.WithoutCancel(ctx))
	// The port comes first: a second broker on the same port should say so
	// before it touches a folder.
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		b.stopServing()
		b.stopCalls()
		return nil, listenError(cfg.Listen, err)
	}
	each := limitPerAddress(l, cfg.ConnectionsPerAddress, b.crowded())
	b.listener = netutil.LimitListener(each, cfg.Connections) // what is beyond waits in the kernel
	b.server = b.newServer()
	if cfg.Peers != nil && cfg.Peers.Serve != nil {
		cfg.Peers.Serve(b.nodeHandler())
	}
	b.running.Go(func() {
		if err := b.server.Serve(b.listener); !errors.Is(err, http.ErrServerClosed) {
			b.fail(fmt.Errorf("the HTTP server stopped: %w", err))
		}
	})
	if err := b.open(ctx); err != nil {
		_ = b.Close()
		return nil, startError(err, b.cfg.storeConfig())
	}
	b.started.Store(true)
	if slices.Contains(cfg.AllowedOrigins, everyOrigin) {
		b.log.Warn("every web page that is opened in a browser on this machine may publish, read and settle messages here: --allow-origin '*' is for tries only")
	}
	b.log.Info("broker started", "url", b.URL(), "data", cfg.DataDir, "cluster", b.cluster.ID, "node", b.cfg.Node, "version", cfg.Version,
		"partitions", len(b.host.Partitions()), "took", time.Since(b.startedAt).Round(time.Millisecond))
	return b, nil
}

// open brings the node up below the API.
func (b *Broker) open(ctx context.Context) error {
	sc := b.cfg.storeConfig()
	sc.Logger = b.log
	sc.OnFault = func(f logstore.Fault) {
		if f.Stopped {
			b.fail(f.Err) // the store has logged it
			return
		}
		b.log.Error("the store reports a fault", "err", f.Err)
		if b.started.Load() && b.agent != nil {
			b.agent.nudge() // it may be a replica that is made anew
		}
	}
	if err := checkRoom(sc); err != nil {
		return err
	}
	in, err := b.openStore(sc)
	if err != nil {
		return err
	}
	b.disk = &disk{reserve: uint64(max(b.cfg.DiskReserve, 0)), room: sc.Room, folder: sc.Dir, log: b.log, events: b.events}
	b.disk.look()
	if b.cfg.Cluster != nil || in {
		if b.agent, err = b.beginAgent(ctx); err != nil {
			return err
		}
	}
	if err := b.openHost(); err != nil {
		return err
	}
	if err := b.knowsItself(); err != nil {
		return err
	}
	if err := b.openMetadata(ctx); err != nil {
		return err
	}
	b.cluster = b.coord.View().Cluster
	b.groups = consumer.NewShell(b.host, b.cluster.TokenSecret)
	b.groups.Explain, b.groups.Lost = b.standsBefore, b.lostUnread
	b.groups.Acked, b.groups.Published = b.ackedHere, b.host.PublishTimes
	b.parts, b.members, b.retention = own{b}, b.coord, newRetention(b)
	if b.far != nil {
		b.parts, b.members = b.far, &farMembers{b: b, told: map[uint64]time.Time{}}
	}
	b.publisher = router.NewPublisher(b.parts, router.Config{Seed: uint64(time.Now().UnixNano())})
	b.sessions, b.live, b.waiters = newSessions(), newLive(), newWaiters()
	known := b.coord.View()
	if b.far == nil { // among others it is for who leads the metadata log
		if err := b.reconcile(ctx); err != nil {
			return err
		}
		b.findHolders(ctx)
	}
	b.namePartitions()
	b.running.Go(func() { b.watchSessions(known) })
	b.running.Go(b.watchDisk)
	b.running.Go(b.retention.run)
	b.running.Go(b.tellEvents)
	if b.agent != nil {
		close(b.agent.ready)
		b.agent.nudge()
	}
	return ctx.Err()
}

// openHost brings the partitions up.
func (b *Broker) openHost() error {
	board := &coordinator.Board{}
	hc := b.cfg.Host
	hc.Node, hc.Store, hc.Logger = b.cfg.Node, b.store, b.log
	if b.agent != nil {
		b.agent.hook(&hc)
	}
	hc.OnStop = func(id partition.PartitionID, why string) {
		b.events.note(happening{kind: coordinator.ReplicaStopped, of: spot{id, true}, ours: true, text: why})
	}
	hc.Name = func(id partition.PartitionID) string { return b.store.NameOf(uint64(id)) }
	hc.NewApp = func(id partition.PartitionID, rows partition.Rows) (partition.App, error) {
		if id != partition.Metadata {
			app, err := consumer.NewApp(id, rows)
			if err == nil {
				app.Notice, app.Settled, app.Finished = b.noticed, b.settledHere, b.finishedHere
			}
			return app, err
		}
		app, err := coordinator.NewApp(rows, coordinator.Config{
			SessionTimeout: partition.Millis(b.cfg.SessionTimeout.Milliseconds()), Node: b.cfg.Node, Board: board, Balance: b.cfg.Balance,
			Rules: b.cfg.rules(),
		})
		if err == nil {
			// Those that a snapshot makes later show on the same board.
			b.metadata.CompareAndSwap(nil, app)
		}
		return app, err
	}
	var err error
	if b.host, err = partition.Open(hc); err != nil {
		return err
	}
	b.running.Go(func() {
		select {
		case err, ok := <-b.host.Failed():
			if ok && err != nil {
				b.fail(err)
			}
		case <-b.serving.Done():
		}
	})
	return nil
}

// openMetadata brings the metadata log up: alone, or among others.
func (b *Broker) openMetadata(ctx context.Context) error {
	if b.agent != nil {
		b.cfg.Peers = b.agent.peers()
	}
	if b.cfg.Peers != nil {
		b.far = newDispatch(b, b.cfg.Peers)
	}
	switch {
	case b.agent != nil && b.agent.identity != nil:
		// A node has a replica of the metadata log from its first start on.
		if err := b.host.Join(ctx, partition.Metadata, b.cfg.Node.Replica()); err != nil {
			return err
		}
	default:
		if err := b.host.Create(ctx, partition.Metadata); err != nil {
			return err
		}
	}
	app := b.metadata.Load()
	if app == nil {
		return errors.New("the metadata log did not come up")
	}
	b.coord = coordinator.New(b.host, app)
	switch {
	case b.agent != nil:
		return b.agent.open(ctx)
	case b.cfg.Peers != nil:
		return b.cfg.Peers.Metadata(ctx, b.host, b.coord, app)
	}
	if _, err := b.coord.Bootstrap(ctx, ""); err != nil {
		return err
	}
	_, err := b.coord.Found(ctx, coordinator.Address{Store: b.store.ID(), Boot: b.store.Boot(), Rules: b.cfg.rules()})
	return err
}

// Addr is the address and port that the broker listens on.
func (b *Broker) Addr() string { return b.listener.Addr().String() }

// URL is the base URL of the API.
func (b *Broker) URL() string { return "http://" + b.Addr() }

// Failed yields the error that stopped the node from writing, once. The broker
// still answers what it can; Close it and look at the disk.
func (b *Broker) Failed() <-chan error { return b.failed }

func (b *Broker) fail(err error) {
	if b.fault.CompareAndSwap(nil, &err) {
		var store *logstore.ErrFailed
		if !errors.As(err, &store) { // the store has logged that
			b.log.Error("the broker failed", "err", err)
		}
		b.failed <- err
	}
}

func (b *Broker) failure() error {
	if p := b.fault.Load(); p != nil {
		return *p
	}
	return nil
}

// ready refuses calls while the node starts or stops.
func (b *Broker) ready() *refusal {
	switch {
	case !b.started.Load():
		if a := b.waits.Load(); a != nil {
			return a.waitsFor(time.Now())
		}
		return &refusal{reason: "NOT_READY", text: "the broker is starting: it reads its log", retryAfter: 500 * time.Millisecond}
	case b.serving.Err() != nil:
		return b.stopping()
	}
	return nil
}

func (b *Broker) stopping() *refusal {
	return &refusal{reason: "NOT_READY", text: "the broker is stopping: try again when it is up", retryAfter: time.Second}
}

// Close stops the node: long polls answer, calls in progress finish within
// StopTime, then everything below is closed in the reverse order of starting.
// It returns when nothing runs any more. Closing twice is the same as once.
func (b *Broker) Close() error {
	b.closing.Do(func() {
		start := time.Now()
		if b.agent != nil && b.started.Load() && b.failure() == nil {
			b.tellStop()
			b.agent.handOver(context.WithoutCancel(b.serving))
		}
		b.stopServing()
		grace, cancel := context.WithTimeout(context.Background(), b.cfg.StopTime)
		if err := b.server.Shutdown(grace); err != nil {
			b.log.Warn("calls were cut", "err", err)
		}
		cancel()
		b.stopCalls()
		_ = b.server.Close()
		if b.far != nil {
			b.far.close()
		}
		b.running.Wait()
		var errs []error
		if b.agent != nil {
			errs = append(errs, b.agent.close())
		}
		if b.host != nil {
			errs = append(errs, b.host.Close())
		}
		if b.store != nil {
			errs = append(errs, b.store.Close())
		}
		if failed := b.failure(); failed != nil {
			// Whoever took the failure knows; closing says it once more.
			errs = slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, failed) || errors.As(err, new(*logstore.ErrFailed)) })
		}
		b.closeErr = errors.Join(errs...)
		switch {
		case b.closeErr != nil:
			b.log.Error("the broker stopped and not all could be closed", "took", time.Since(start).Round(time.Millisecond), "err", b.closeErr)
		case b.failure() != nil:
			b.log.Warn("broker stopped after a failure", "took", time.Since(start).Round(time.Millisecond))
		case b.started.Load():
			b.log.Info("broker stopped", "took", time.Since(start).Round(time.Millisecond))
		}
	})
	return b.closeErr
}

// logItem logs the faults of ours among the results of a batch.
func (b *Broker) logItem(ctx context.Context, err error, what string) {
	if reasonOf(err) == "INTERNAL" {
		b.log.ErrorContext(ctx, "one item of a call failed", "what", what, "err", err)
	}
}
