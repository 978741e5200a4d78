package broker

import (
	"errors"
	"slices"
	"time"

	"github.com/strandmq/strandmq/partition"
)

// Batches of a partition that is led here go to this node's host past the lanes, and
// cost a count. Only when the host refuses one, since another node leads now, does it
// become a parcel: it goes into the lane, by its number, before everything that came
// later; and the lane is held until all that went to the host has its answer.

// ownFlight is the batches of a partition on their way to this node's host.
type ownFlight struct {
	n    int    // without an answer
	last uint64 // the number of the last one; from 1
}

// takeOff counts a batch that goes to this node's host, and numbers it, if it may: the
// partition is led here, and nothing of it is in a lane. 0: it may not.
func (d *dispatch) takeOff(id partition.PartitionID, from *source) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut || from.over() != nil || d.lanes[id] != nil || d.leader1(id) != d.b.cfg.Node {
		return 0
	}
	f := d.aloft[id]
	f.n++
	f.last++
	d.aloft[id] = f
	return f.last
}

// land counts one that has its answer, or was not taken.
func (d *dispatch) land(id partition.PartitionID) {
	d.mu.Lock()
	over := d.land1(id)
	d.mu.Unlock()
	tell(over)
}

// land1 is land with mu held. It returns the parcels that are over.
func (d *dispatch) land1(id partition.PartitionID) []*parcel {
	f := d.aloft[id]
	if f.n--; f.n > 0 {
		d.aloft[id] = f
		return nil
	}
	delete(d.aloft, id)
	if l := d.lanes[id]; l != nil {
		return l.goOn()
	}
	return nil
}

// fellBack takes a batch that the host did not store, or of which it does not know. If
// it may be stored elsewhere it goes into the lane; if not, that is its answer.
func (d *dispatch) fellBack(id partition.PartitionID, x *parcel, err error) {
	err = d.misled(id, err)
	unknown := errors.As(err, new(*partition.ErrOutcomeUnknown))
	again := notTaken(err) || unknown && harmless(x.batch)
	d.mu.Lock()
	if d.shut || !again && !unknown {
		x.from.refuse(id, err)
		d.mu.Unlock()
		x.done(nil, err)
		d.land(id)
		return
	}
	l := d.lane(id)
	if l.stops == nil || errors.Is(l.stops, errMoved) {
		l.stops = err
	}
	if again {
		// Behind those before it: the host answers in order, or nearly so.
		at := len(l.queue)
		for at > 0 && l.queue[at-1].number > x.number {
			at--
		}
		x.until, x.maybe, x.err = time.Now().Add(leaderPatience), unknown, err
		l.queue = slices.Insert(l.queue, at, x)
		l.bytes += len(x.batch.Bytes())
		d.queued += len(x.batch.Bytes())
	} else if l.unknown == 0 || x.number < l.unknown {
		l.unknown = x.number // what is behind it may not be stored before its publisher has heard
	}
	if !again {
		x.from.refuse(id, err)
		d.mu.Unlock()
		x.done(nil, err)
		d.mu.Lock()
	}
	over := d.land1(id)
	d.mu.Unlock()
	tell(over)
}
