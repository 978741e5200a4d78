package broker

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/quantity"
	"github.com/strandmq/strandmq/partition/logstore"
)

// disk watches the room that is left, so that a full disk stops publishers and
// not the node: a store that cannot write has to stop, and then nothing can be
// consumed or deleted either, which is what makes room.
//
//	free  ─────────────┐ reserve                    ┌── reserve and an eighth
//	                   └─ low: publishes refused ───┘   low no more
//
// Among others the node hands over what it leads while its disk is low, so publishes go
// on where there is room.
//
// The reserve is for what goes on meanwhile: hand-outs, settlements, deletions,
// and the store's own merging.
type disk struct {
	reserve uint64 // 0: nobody watches
	folder  string
	log     *slog.Logger
	events  *happenings

	mu   sync.Mutex
	room func() (logstore.Room, error) // guarded by mu
	at   logstore.Room                 // guarded by mu: when last asked; zero: not known
	low  bool                          // guarded by mu
}

// diskEvery is how often the file system is asked, and diskSoon how often when
// less than twice the reserve is left. In between, publishers can write no more
// than the disk takes in that time, which the reserve has to hold.
const (
	diskEvery = time.Second
	diskSoon  = 50 * time.Millisecond
)

// look asks the file system and notes what follows.
func (d *disk) look() {
	d.mu.Lock()
	ask := d.room
	d.mu.Unlock()
	room, err := ask() // without the lock: a sick file system may take its time
	if d.reserve == 0 || err != nil {
		// A file system that does not say is not watched. The store says when
		// it is full.
		return
	}
	d.mu.Lock()
	was := d.low
	now := room.Low(d.reserve, was)
	d.low = now
	d.at = room
	d.mu.Unlock()
	switch {
	case now && !was:
		d.log.Warn("the disk is nearly full: publishes are refused until there is room; consuming goes on",
			"folder", d.folder, "free", size(room.Free), "of", size(room.Total), "reserve", size(d.reserve))
		d.events.ofNode(coordinator.DiskLow, fmt.Sprintf("%s are free, less than the reserve of %s: publishes are refused there", size(room.Free), size(d.reserve)))
	case was && !now:
		d.log.Info("the disk has room again: publishes are taken", "folder", d.folder, "free", size(room.Free), "of", size(room.Total))
		d.events.ofNode(coordinator.DiskRoom, fmt.Sprintf("%s are free: publishes are taken again", size(room.Free)))
	}
}

// refuse refuses a publish while the disk is low.
func (d *disk) refuse() *refusal {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.low {
		return nil
	}
	return &refusal{reason: "DISK_FULL", retryAfter: 5 * time.Second, text: d.words()}
}

// warning is a line for operators, empty while there is room.
func (d *disk) warning() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.low {
		return ""
	}
	return d.words()
}

// words say what is the matter. mu is held.
func (d *disk) words() string {
	return fmt.Sprintf("the broker's disk has %s free, less than its reserve of %s, so nothing is published; receiving and settling go on: free some room, delete topics, or move the data to a larger disk",
		size(d.at.Free), size(d.reserve))
}

func (d *disk) state() (room logstore.Room, low bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at, d.low
}

// checkRoom refuses a file system that could not even hold the store's own
// files: it would be full before the first message.
func checkRoom(c logstore.Config) error {
	room, err := c.Room()
	if err != nil || room.Total >= c.RoomNeeded() {
		return nil // opening the folder says what is wrong with it, if anything is
	}
	return &StartError{Reason: DiskTooSmall, Text: fmt.Sprintf(
		"the file system of %s has %s in all, and the store's own files need %s before the first message: put the data folder on a larger one",
		c.Dir, size(room.Total), size(c.RoomNeeded()))}
}

// next is how long to wait before the next look.
func (d *disk) next() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at.Total > 0 && d.at.Free < 2*d.reserve {
		return diskSoon
	}
	return diskEvery
}

// watchDisk looks as long as the node serves.
func (b *Broker) watchDisk() {
	timer := time.NewTimer(b.disk.next())
	defer timer.Stop()
	for {
		_, low := b.disk.state()
		b.host.SetFull(low)
		select {
		case <-timer.C:
			b.disk.look()
			timer.Reset(b.disk.next())
		case <-b.serving.Done():
			return
		}
	}
}

func size(n uint64) string { return quantity.RoughSize(n) }
