package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/strandmq/strandmq/coordinator/placement"
	"github.com/strandmq/strandmq/internal/plain"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
)

// DefaultListen is where a broker listens unless told otherwise.
const DefaultListen = "127.0.0.1:7171"

// DefaultStreamMemory is what all streams together hold unless told otherwise.
const DefaultStreamMemory = 128 << 20

// DefaultMoveRate is how fast a node sends snapshots unless told otherwise: a disk of
// today keeps most of its time for publishers.
const DefaultMoveRate = 64 << 20

// Config is how one node runs. Zero values are the defaults.
type Config struct {
	// DataDir is the folder of the store. It is made if it does not exist;
	// nothing else may be in it.
	DataDir string
	// Listen is the address and port of the API. It must be loopback: neither
	// TLS nor access tokens exist yet. Port 0 takes a free one. Default
	// 127.0.0.1:7171.
	Listen string
	// AllowedHosts are further names that the Host header may have, such as
	// that of a proxy or container in front. localhost and loopback addresses
	// always may.
	AllowedHosts []string
	// AllowedOrigins are the origins, such as https://app.example.org, whose web
	// pages may publish and consume here; they may call nothing else. As long as
	// there are no access tokens, that is to read and settle every topic. "*"
	// alone is every page that is opened in a browser on this machine. Default:
	// none but the broker's own.
	AllowedOrigins []string
	// Logger takes what operators should know. Default: slog's.
	Logger *slog.Logger
	// Version is what NodeInfo and the metrics show. Default: development.
	Version string
	// Node is this node's id for all time. Default 1.
	Node partition.NodeID

	// SessionTimeout ends a member's session that made no call for so long.
	// Default 30 s; 1 s to 1 h. Shorter finds a dead member earlier, longer
	// forgives pauses.
	SessionTimeout time.Duration
	// TransferTime is how long a request's body may take to arrive, and an
	// answer to be taken. Default 30 s; 100 ms to 10 min.
	TransferTime time.Duration
	// StopTime is how long Close waits for calls in progress. Default 5 s.
	StopTime time.Duration
	// RequestBytes bounds the bytes of request bodies held at once. Default
	// 256 MiB; at least 16 MiB.
	RequestBytes int64
	// StreamBytes bounds the bytes of one publish stream that wait for the disk,
	// or for the caller to read the answers.
	// Default 8 MiB; at least 64 KiB. More keeps faster disks busy from a single
	// stream; a frame that was begun is taken in whole, so up to 8 MiB come on
	// top.
	StreamBytes int
	// StreamBatches bounds the batches of one publish stream without an answer.
	// Default 4,096; at least 1.
	StreamBatches int
	// StreamMemory bounds the bytes that all streams together hold: batches and answers
	// of publish streams, deliveries on their way. As it is used up, each stream holds
	// less, and a stream that would not get its least, 64 KiB, is refused. Default
	// 128 MiB; at least 16 MiB. The collector of the process lets garbage of about
	// the same size lie.
	StreamMemory int64
	// MoveRate bounds the bytes a second of the snapshots that this node sends to others
	// when replicas move or are made anew; at least 1 MiB. Default 64 MiB; -1 for none.
	MoveRate int64
	// Connections bounds the open connections. Default 4,096.
	Connections int
	// ConnectionsPerAddress bounds those of one remote address, of IPv6 of one
	// network of 64 bits; more are closed as they come. Loopback addresses are
	// not bounded by it, Connections alone bounds theirs. Default 256.
	ConnectionsPerAddress int

	// DiskReserve is the room that publishers may not use up: below it they are
	// refused, while consuming goes on. Default 256 MiB, or an eighth of a file
	// system below 2 GiB; -1 for none, and then a full disk stops the node. It
	// must hold what is written within a second.
	DiskReserve int64

	// MetricsPerPartition adds series of single partitions to the metrics: five for each
	// partition that the node leads, and two for each group there, of at most 10,000 such
	// labels. Default: off, since many partitions are many series.
	MetricsPerPartition bool

	// Profiles lets callers on this machine take profiles of the process at /debug/pprof/:
	// goroutine, heap, and profile, which watches the processor's time for 10 s at most.
	// Default: off, since they show the program's insides and cost some of its time.
	Profiles bool

	// RetentionEvery is how often it is looked for messages that are no longer to
	// be kept. Default 1 s; 1 ms to 1 h. A topic's limit of bytes is passed by what
	// is published meanwhile.
	RetentionEvery time.Duration

	// Existing refuses a folder that holds no node: for later starts, where an empty
	// folder is a lost disk and no fresh start.
	Existing bool
	// Cluster makes the node one of several; nil: it is alone, unless the folder is
	// that of a node of a cluster.
	Cluster *ClusterConfig
	// Balance is how eagerly replicas are placed anew.
	Balance placement.Options
	// Peers is how the node works with others where Cluster does not say it: for tests
	// and for other ways to connect nodes.
	Peers *Peers

	// Store and Host set what the store and the host of the partitions may use.
	// The broker fills in folders, identities and what connects them.
	Store logstore.Config
	Host  partition.Config
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Version == "" {
		c.Version = "development"
	}
	if c.Node == 0 {
		c.Node = 1
	}
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.SessionTimeout, 30*time.Second)
	set(&c.TransferTime, 30*time.Second)
	set(&c.StopTime, 5*time.Second)
	set(&c.RetentionEvery, retentionEvery)
	if c.RequestBytes == 0 {
		c.RequestBytes = defaultRequestBytes
	}
	if c.StreamMemory == 0 {
		c.StreamMemory = DefaultStreamMemory
	}
	if c.MoveRate == 0 {
		c.MoveRate = DefaultMoveRate
	}
	if c.StreamBytes == 0 {
		c.StreamBytes = 8 << 20
	}
	if c.StreamBatches == 0 {
		c.StreamBatches = 4096
	}
	if c.DiskReserve == 0 {
		c.DiskReserve = 256 << 20
		if room, err := c.storeConfig().Room(); err == nil {
			c.DiskReserve = min(c.DiskReserve, int64(room.Total/8))
		}
	}
	if c.Connections == 0 {
		c.Connections = 4096
	}
	if c.ConnectionsPerAddress == 0 {
		c.ConnectionsPerAddress = 256
	}
	return c
}

// storeConfig is the store's configuration with its folder.
func (c Config) storeConfig() logstore.Config {
	sc := c.Store
	if sc.Dir == "" {
		sc.Dir = c.DataDir
	}
	return sc
}

// Validate lists every fault at once. A listen address off loopback is one.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	bad(c.DataDir == "" && c.Store.FS == nil, "data folder: none is given")
	bad(c.SessionTimeout < time.Second || c.SessionTimeout > time.Hour, "session timeout: %v is not 1s to 1h", c.SessionTimeout)
	bad(c.TransferTime < 100*time.Millisecond || c.TransferTime > 10*time.Minute, "transfer time: %v is not 100ms to 10m", c.TransferTime)
	bad(c.StopTime < 0, "stop time: %v is negative", c.StopTime)
	bad(c.RequestBytes < leastRequestBytes, "request bytes: %d is less than 16 MiB", c.RequestBytes)
	bad(c.StreamBytes < 64<<10, "stream bytes: %d is less than 64 KiB", c.StreamBytes)
	bad(c.StreamMemory < leastStreamMemory, "stream memory: %d bytes are less than 16 MiB", c.StreamMemory)
	bad(c.StreamBatches < 1, "stream batches: at least 1")
	bad(c.DiskReserve < -1, "disk reserve: %d is negative", c.DiskReserve)
	bad(c.MoveRate < 1<<20 && c.MoveRate != -1, "move rate: %d bytes a second are less than 1 MiB; -1 is no bound", c.MoveRate)
	bad(c.Connections < 1, "connections: at least 1")
	bad(c.ConnectionsPerAddress < 1, "connections per address: at least 1")
	for _, h := range c.AllowedHosts {
		name := hostName(h)
		wrong := name == "" || strings.ContainsFunc(name, func(r rune) bool {
			return r > 127 || !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_' || r == ':')
		})
		bad(wrong, "allowed host: %s is no host name such as broker.example.org", plain.Quote(h))
	}
	faults = append(faults, checkOrigins(c.AllowedOrigins)...)
	if err := checkListen(c.Listen); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// checkListen takes loopback addresses only.
func checkListen(listen string) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return &StartError{Reason: BadListen, Text: fmt.Sprintf("listen address %q is not of the form address:port, such as %s", listen, DefaultListen), Err: err}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return &StartError{Reason: BadListen, Text: fmt.Sprintf("listen address %q: %q is not a port from 0 to 65535", listen, port)}
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return &StartError{Reason: NotLoopback, Text: fmt.Sprintf("listen address %q is not loopback. This version has neither TLS nor access tokens yet, so it listens on 127.0.0.1, ::1 or localhost only: anyone who can reach another address could read and delete everything. Use %s, and reach it from elsewhere through an SSH tunnel or a proxy that authenticates", listen, DefaultListen)}
}
