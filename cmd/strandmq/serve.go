package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/broker"
	"github.com/strandmq/strandmq/internal/quantity"
)

// serveFlags are what the command line says of a broker.
type serveFlags struct {
	data, listen, level, format    string
	hosts, origins                 []string
	reserve, memory, streams, move sizeFlag
	session                        spanFlag
	detailed, tied, existing       bool
	profiles                       bool
	cluster                        clusterFlags
}

func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	f.session.d = 30 * time.Second
	f.reserve.n = 256 << 20
	f.streams.n, f.move.n = broker.DefaultStreamMemory, broker.DefaultMoveRate
	c := command(&cobra.Command{
		Use:   "serve",
		Short: "Run a broker",
		Long: `Runs a broker until it is told to stop (Ctrl-C or SIGTERM: calls in progress end
first; a second signal stops at once). All it keeps is in the data folder; what it
acknowledged is on disk. It listens for clients on loopback only.

With --peer-listen it is a node of a cluster: the first one, with what its folder
holds, or with --join and a join token one more. Nodes speak TLS to each other, with
certificates that the cluster makes. The folder remembers it: later starts need
--data alone. With --existing a folder that holds no node is refused: an empty one is
a lost disk then, or one that is not mounted, and no fresh start.

With --allow-origin the pages of another origin may publish and consume, and so read
and settle messages of every topic; they may call nothing else. An origin is scheme,
host and port as browsers send them. '*' alone is every page that is opened in a
browser on this machine.

Environment: STRANDMQ_DATA, STRANDMQ_LISTEN, STRANDMQ_JOIN_TOKEN and
STRANDMQ_ALLOW_ORIGIN (several with commas) stand in for --data, --listen,
--join-token and --allow-origin.`,
		Example: `  strandmq serve
  strandmq serve --data /var/lib/strandmq --listen 127.0.0.1:7171
  strandmq serve --listen 127.0.0.1:0 --log-format json
  strandmq serve --allow-origin https://app.example.org --allow-origin http://localhost:5173
  strandmq serve --data ./n1 --peer-listen 127.0.0.1:7271`,
		Args: exact(),
	}, func(cmd *cobra.Command, args []string) error {
		if f.session.d == 0 {
			return usagef("--session-timeout 0: a member that never times out keeps what it holds for good; use 1s to 1h")
		}
		log, err := a.logger(f.level, f.format)
		if err != nil {
			return err
		}
		reserve := int64(0) // the broker's default, which knows the disk
		if cmd.Flags().Changed("disk-reserve") {
			reserve = reserveOf(f.reserve.n)
		}
		cluster, err := f.cluster.config()
		if err != nil {
			return err
		}
		if f.existing && cluster != nil && cluster.Join != "" {
			return usagef("--existing is for later starts and --join for the first one: give one of them")
		}
		config := broker.Config{
			Cluster: cluster, Existing: f.existing,
			DataDir: f.data, Listen: f.listen, AllowedHosts: f.hosts, AllowedOrigins: f.origins, Logger: log,
			Version: versionText(), SessionTimeout: f.session.d, DiskReserve: reserve, StreamMemory: f.streams.n,
			MetricsPerPartition: f.detailed, Profiles: f.profiles,
		}
		if f.streams.n == 0 {
			return usagef("--stream-memory 0: streams hold what is on its way; use 16MiB or more")
		}
		if config.MoveRate = f.move.n; f.move.n == 0 {
			config.MoveRate = -1
		} else if f.move.n < 1<<20 {
			return usagef("--move-rate %s: use 1MiB or more, or 0 for no bound", quantity.FormatSize(f.move.n))
		}
		if cmd.Flags().Changed("memory") {
			if f.memory.n < broker.LeastMemory {
				return usagef("--memory %s: use %s or more", quantity.FormatSize(f.memory.n), quantity.FormatSize(broker.LeastMemory))
			}
			if !cmd.Flags().Changed("stream-memory") {
				config.StreamMemory = 0
			}
			var heap int64
			config, heap = config.Within(f.memory.n)
			debug.SetMemoryLimit(heap)
		}
		ctx := cmd.Context()
		if f.tied {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			go func() { // until the process ends
				_, _ = io.Copy(io.Discard, a.in)
				cancel()
			}()
		}
		b, err := broker.Start(ctx, config)
		if ctx.Err() != nil && err != nil {
			a.talk("stopped before it served")
			return nil
		}
		if err != nil {
			return startFailure(err)
		}
		a.talk("serving at %s, data in %s; Ctrl-C stops", b.URL(), f.data)
		return a.serve(ctx, b, closeTime)
	})
	fl := c.Flags()
	fl.StringVar(&f.data, "data", env("STRANDMQ_DATA", defaultData), "the data folder; made if it does not exist")
	fl.BoolVar(&f.existing, "existing", false, "the data folder must hold a node already: do not begin a new one on an empty folder")
	fl.StringVar(&f.listen, "listen", env("STRANDMQ_LISTEN", broker.DefaultListen), "address and port; port 0 takes a free one")
	f.cluster.add(fl)
	fl.StringArrayVar(&f.hosts, "allowed-host", nil, "a further name that callers may use for this broker; can be repeated")
	fl.StringArrayVar(&f.origins, "allow-origin", envList("STRANDMQ_ALLOW_ORIGIN"), "an origin, such as https://app.example.org, whose web pages may publish and consume; can be repeated (default none)")
	fl.Var(&f.session, "session-timeout", "a member that makes no call for so long loses its partitions, and with a stream its session")
	fl.Var(&f.reserve, "disk-reserve", "publishes are refused while the disk has less free (on a disk below 2 GiB an eighth of it); 0: a full disk stops the broker")
	fl.Var(&f.memory, "memory", "the size that the process is to keep to: what it keeps in memory gets shares of it, and near it garbage is collected more often")
	fl.Var(&f.streams, "stream-memory", "what all streams together may hold; as it fills, each holds less, and when it is full no more are opened")
	fl.Lookup("memory").DefValue = "none"
	fl.Var(&f.move, "move-rate", "how many bytes a second this node sends of replicas that move or are made anew on other nodes; 0: as fast as it can")
	fl.BoolVar(&f.detailed, metricsPerPartition, false, "add series of single partitions to /metrics: 5 for each that the node leads, and 2 for each group there")
	fl.BoolVar(&f.profiles, "profiles", false, "give programs on this machine profiles at /debug/pprof/ (goroutine, heap, profile): 'debug bundle' takes them. A proxy here must add Forwarded or X-Forwarded-For, or not pass that path")
	fl.BoolVar(&f.tied, untilEOF, false, "stop, too, when standard input ends: a broker that a program starts, with a pipe there, ends with it")
	fl.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	fl.StringVar(&f.format, "log-format", "auto", "text, json, or auto: text on a terminal")
	must(c.RegisterFlagCompletionFunc("log-level", words("debug", "info", "warn", "error")))
	must(c.RegisterFlagCompletionFunc("log-format", words("auto", "text", "json")))
	return c
}

// Flags of serve that dev passes on, or gives its nodes.
const (
	metricsPerPartition = "metrics-per-partition"
	untilEOF            = "until-eof"
)

// reserveOf is the broker's way to say 0: there it means the default.
func reserveOf(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}

// startFailure tells wrong flags from what the machine did not give.
func startFailure(err error) error {
	var start *broker.StartError
	if errors.As(err, &start) {
		switch start.Reason {
		case broker.BadConfig, broker.BadListen, broker.NotLoopback:
			return &usageError{text: err.Error(), err: err}
		}
	}
	return err
}

// served is a broker that runs, as far as serve has to do with it.
type served interface {
	Failed() <-chan error
	Close() error
}

// serve waits until the broker is told to stop or fails. One that failed has
// patience to close.
func (a *app) serve(ctx context.Context, b served, patience time.Duration) error {
	select {
	case <-ctx.Done():
		a.talk("stopping")
		return b.Close()
	case err := <-b.Failed():
		// The broker has stopped what it cannot trust; closing ends the rest. A
		// disk that hangs lets nobody close it.
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = b.Close()
		}()
		select {
		case <-closed:
		case <-time.After(patience):
			a.talk("the disk does not let go of the data folder; ending without it")
		}
		return fmt.Errorf("the broker stopped: %w", err)
	}
}

// closeTime is how long a broker that failed may take to close: calls in
// progress have 5 s, and the rest is quick unless the disk hangs.
const closeTime = 15 * time.Second

// logger makes the broker's log, which goes to standard error.
func (a *app) logger(level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usagef("--log-level %q: choose debug, info, warn or error", level)
	}
	// A duration as a bare number of nanoseconds tells nobody its unit.
	opts := &slog.HandlerOptions{Level: l, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Value.Kind() == slog.KindDuration {
			attr.Value = slog.StringValue(attr.Value.Duration().String())
		}
		return attr
	}}
	switch {
	case format == "json" || format == "auto" && !terminal(a.err):
		return slog.New(slog.NewJSONHandler(a.err, opts)), nil
	case format == "text" || format == "auto":
		return slog.New(slog.NewTextHandler(a.err, opts)), nil
	}
	return nil, usagef("--log-format %q: choose auto, text or json", format)
}
