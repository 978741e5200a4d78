package sim

import (
	"errors"
	"hash/crc32"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/strandmq/strandmq/partition"
)

// judge knows what was promised: what was sent and what was answered, and what
// stands in the logs. It is written from the promises; of the code that is judged it
// uses what clients see.
type judge struct {
	s       *Sim
	logs    map[partition.PartitionID]*book
	groups  []*groupBook
	untried []receipt                                                         // told, and not held against the log yet
	durable map[partition.PartitionID]map[partition.ReplicaID]partition.Index // how far logs are on disk
	stopped map[seenKey]int                                                   // the boots in which replicas have stopped
}

// book is what is known of a partition's log: what any node ever had applied.
type book struct {
	id       partition.PartitionID
	entries  map[partition.Index]stamp
	last     partition.Index // highest one that was applied anywhere
	lastTerm uint64
	messages []*stored // by offset
	ids      map[string]partition.Offset
	seqs     map[string]sequence // of producers
	start    partition.Offset
	leaders  map[uint64]partition.NodeID
	states   map[partition.Index]uint64 // hashes of the groups' rows
	votes    map[ballot]partition.ReplicaID
}

type stamp struct {
	term uint64
	sum  uint32
}

// sequence is how far a producer's sequence goes in a log, and where that stands.
type sequence struct {
	next uint64
	at   partition.Offset
}

// stored is a message as it stands in a log.
type stored struct {
	m   *message
	sum uint64
}

// seen is how far a boot of a node was looked at.
type seen struct {
	boot   int
	index  partition.Index
	end    partition.Offset
	looks  int
	voters []partition.ReplicaID
	former []partition.ReplicaID // those before the last change
}

func (s *Sim) newJudge() *judge {
	j := &judge{s: s, logs: make(map[partition.PartitionID]*book), durable: make(map[partition.PartitionID]map[partition.ReplicaID]partition.Index), stopped: make(map[seenKey]int)}
	for _, p := range s.logs() {
		j.logs[p] = &book{
			id: p, entries: make(map[partition.Index]stamp), ids: make(map[string]partition.Offset), seqs: make(map[string]sequence),
			leaders: make(map[uint64]partition.NodeID), states: make(map[partition.Index]uint64),
			votes: make(map[ballot]partition.ReplicaID),
		}
	}
	return j
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// look compares what a node applied since it was last looked at with what is known.
func (j *judge) look(n *node) {
	for _, p := range j.s.logs() {
		info, err := n.core.Info(p)
		if err != nil {
			continue
		}
		if info.Fault != "" && (n.rot[p] || n.spoiled && info.Damaged) {
			continue
		}
		if info.Fault != "" {
			j.s.fault("%v: partition %v stopped: %s", n.id, p, info.Fault)
			return
		}
		b := j.logs[p]
		k := seenKey{n.id, p}
		at := j.s.seen[k]
		if at.boot != n.boot {
			at = seen{boot: n.boot, voters: at.voters, former: at.former}
		}
		if info.Position.Index > at.index {
			if info.Position.Index > max(b.last, 1) { // the first one is where logs begin
				j.committed(n, b, at, info, info.Position.Index)
			}
			j.entries(n, b, &at, info)
			j.messages(n, b, &at, info.Position)
			if p == partition.Metadata {
				j.mapped(n)
			}
			j.voting(n, info, p)
			at.index, at.end = info.Position.Index, info.Position.End
		}
		j.receipts()
		if term, leads := n.core.Leads(p); leads {
			j.leader(n, b, term, info.Position.Index)
		}
		if at.looks++; at.looks%j.s.plan.sample == 0 {
			j.state(n, b)
		}
		if !slices.Equal(at.voters, info.Voters) {
			at.voters, at.former = info.Voters, at.voters
		}
		j.s.seen[k] = at
	}
}

// leader: one a term (I1), and it has all that was ever committed (I3).
func (j *judge) leader(n *node, b *book, term uint64, index partition.Index) {
	was, known := b.leaders[term]
	switch {
	case known && was != n.id:
		j.s.fault("I1: %v and %v both lead partition %v in term %d", was, n.id, b.id, term)
	case !known:
		b.leaders[term] = n.id
		if info, err := n.core.Info(b.id); err == nil {
			j.vote(b, info.Replica, info.Replica, term)
		}
		j.s.say("%v leads %v in term %d from entry %d on", n.id, b.id, term, index)
		if index < b.last && term > b.lastTerm {
			j.s.fault("P1: %v leads %v in term %d and has entries up to %d: %d was applied in term %d", n.id, b.id, term, index, b.last, b.lastTerm)
		}
		for _, r := range j.untried {
			if r.m.part == b.id && !n.spoiled {
				j.s.fault("P1: %q was acknowledged at %d of %v, and %v leads it and ends at %d", r.m.body, r.st.Offset, b.id, n.id, len(b.messages))
			}
		}
	}
}

// newest tells whether a node leads in the newest term in which anybody led. One of old
// shows what was, until it hears of the other.
func (j *judge) newest(n *node, p partition.PartitionID) bool {
	mine, leads := n.core.Leads(p)
	for term := range j.logs[p].leaders {
		if term > mine {
			return false
		}
	}
	return leads
}

// entries: what was applied once stands there for ever, on every node (I2, I3).
func (j *judge) entries(n *node, b *book, at *seen, info partition.Info) {
	err := n.core.EachEntry(b.id, at.index+1, func(term uint64, i partition.Index, data []byte) {
		x := stamp{term, crc32.Checksum(data, castagnoli)}
		if was, known := b.entries[i]; known && was != x {
			j.s.fault("I3: entry %d of %v is of term %d (%08x) on %v, and was of term %d (%08x)", i, b.id, x.term, x.sum, n.id, was.term, was.sum)
		}
		b.entries[i] = x
		if i > b.last {
			b.last, b.lastTerm = i, term
		}
	})
	if err != nil && !n.excuses(err) {
		j.s.fault("%v: the log of %v does not read: %v", n.id, b.id, err)
	}
	j.s.note(uint64(n.id), uint64(b.id), uint64(info.Position.Index), uint64(info.Position.End), info.Term)
}

// messages: every offset has one message for ever (P1), each was sent (I11), an id and
// a sequence stand once (P9), and a producer's follow each other (P2).
func (j *judge) messages(n *node, b *book, at *seen, pos partition.Position) {
	b.start = max(b.start, pos.Start)
	for o := max(at.end, pos.Start); o < pos.End; {
		ms, err := n.core.Read(b.id, o, 1000, 1<<20)
		if len(ms) == 0 && n.excuses(err) {
			return // others read it
		}
		if err != nil || len(ms) == 0 {
			j.s.fault("%v: message %d of %v does not read: %v (%v)", n.id, o, b.id, err, pos)
			return
		}
		for _, m := range ms {
			if m.Offset != o {
				j.s.fault("P1: %v: message %d of %v stands where %d should", n.id, m.Offset, b.id, o)
				return
			}
			j.message(n, b, m)
			o++
		}
	}
}

func sumOf(m *partition.Message) uint64 {
	h := xxhash.New()
	_, _ = h.Write(m.Record.Key)
	_, _ = h.WriteString("|" + m.Record.ID + "|")
	_, _ = h.Write(m.Record.Body)
	return h.Sum64()
}

func (j *judge) message(n *node, b *book, m partition.Message) {
	sum := sumOf(&m)
	if int(m.Offset) < len(b.messages) {
		if was := b.messages[m.Offset]; was != nil && was.sum != sum {
			j.s.fault("P1: message %d of %v is %q on %v, and was %q", m.Offset, b.id, m.Record.Body, n.id, was.m.body)
		}
		if b.messages[m.Offset] != nil {
			return
		}
	}
	for int(m.Offset) >= len(b.messages) {
		b.messages = append(b.messages, nil)
	}
	x := j.s.sent[string(m.Record.Body)]
	if x == nil || x.part != b.id || x.id != m.Record.ID || x.key != string(m.Record.Key) {
		j.s.fault("I11: message %d of %v is %q with key %q and id %q, which nobody sent", m.Offset, b.id, m.Record.Body, m.Record.Key, m.Record.ID)
		return
	}
	b.messages[m.Offset] = &stored{x, sum}
	j.s.count.stored++
	if x.id != "" {
		if was, twice := b.ids[x.key+"/"+x.id]; twice && was >= b.start {
			j.s.fault("P9: id %s with key %s stands at %d and at %d of %v", x.id, x.key, was, m.Offset, b.id)
		}
		b.ids[x.key+"/"+x.id] = m.Offset
	}
	if x.producer != "" {
		// One whose messages were all removed is not known any more, and begins anew.
		last := b.seqs[x.producer]
		if forgotten := x.seq == 0 && last.at < b.start; x.seq != last.next && !forgotten {
			j.s.fault("P2: sequence %d of %s stands in %v where %d is next", x.seq, x.producer, b.id, last.next)
		}
		b.seqs[x.producer] = sequence{x.seq + 1, m.Offset}
	}
	x.stood++
	if x.stood > 1 && x.id == "" && x.producer == "" && !x.carriedTwice {
		j.s.fault("P9: %q was sent once and stands twice in %v", x.body, b.id)
	}
}

// receipt takes note of what a publisher was told.
func (j *judge) receipt(m *message, st partition.Stored) {
	j.s.count.receipts++
	j.untried = append(j.untried, receipt{m, st})
}

type receipt struct {
	m  *message
	st partition.Stored
}

// receipts: what was acknowledged is there, at its offset (P1). What a node said just
// before its store failed is tried when somebody leads again.
func (j *judge) receipts() {
	tried := j.untried
	j.untried = nil
	for _, r := range tried {
		b := j.logs[r.m.part]
		o := r.st.Offset
		switch {
		case int(o) >= len(b.messages):
			j.untried = append(j.untried, r)
			continue
		case b.messages[o] == nil:
			if o >= b.start && j.s.spoiled() {
				j.untried = append(j.untried, r) // who led could not read it any more; others do
				continue
			}
			if o >= b.start {
				j.s.fault("P1: %q was acknowledged at %d of %v, where nothing was read", r.m.body, o, b.id)
			}
		case b.messages[o].m != r.m:
			j.s.fault("P1: %q was acknowledged at %d of %v, where %q stands", r.m.body, o, b.id, b.messages[o].m.body)
		}
		if r.m.acked && r.m.offset != o && (r.m.id != "" || r.m.producer != "") && r.m.offset >= b.start {
			j.s.fault("P9: %q was acknowledged at %d of %v, and the first time at %d", r.m.body, o, b.id, r.m.offset)
		}
		if r.st.Duplicate && r.m.attempts < 2 && !r.m.carriedTwice {
			j.s.fault("P9: %q was sent once and is called a duplicate", r.m.body)
		}
		r.m.acked, r.m.offset = true, o
	}
}

// state: the groups' rows depend on the log alone, not on who led, who restarted, or
// when checkpoints were made (I6).
func (j *judge) state(n *node, b *book) {
	at, err := n.core.Position(b.id)
	if err != nil {
		return
	}
	h := xxhash.New()
	var bad error
	err = n.core.Look(b.id, func(x partition.App, _ partition.Position) { bad = x.Checkpoint() })
	if err = errors.Join(err, bad); n.excuses(err) {
		return
	}
	if err != nil {
		j.s.fault("%v: checkpoint of %v: %v", n.id, b.id, err)
		return
	}
	rows := 0
	err = n.core.EachRow(b.id, func(k, v []byte) {
		rows++
		_, _ = h.Write(k)
		_, _ = h.WriteString("=")
		_, _ = h.Write(v)
		_, _ = h.WriteString(";")
	})
	if err == nil {
		err = n.core.EachOwnRow(b.id, func(k, v []byte) {
			_, _ = h.Write(k)
			_, _ = h.WriteString("=")
			_, _ = h.Write(v)
		})
	}
	if n.excuses(err) {
		return
	}
	if err != nil {
		j.s.fault("%v: rows of %v: %v", n.id, b.id, err)
		return
	}
	sum := h.Sum64()
	if was, known := b.states[at.Index]; known {
		j.s.count.compared++
		if was != sum {
			j.s.fault("I6: after entry %d of %v the groups' %d rows on %v (boot %d) are not what they were elsewhere or before", at.Index, b.id, rows, n.id, n.boot)
		}
	}
	b.states[at.Index] = sum
}

// stopping and restarted compare the state before and after a power cut.
func (j *judge) stopping(n *node) {
	if n.store.Err() != nil {
		return
	}
	for _, p := range j.s.logs() {
		if _, err := n.core.Position(p); err == nil {
			j.state(n, j.logs[p])
		}
	}
}

func (j *judge) restarted(n *node) {
	j.remembers(n)
	for _, p := range j.s.logs() {
		j.state(n, j.logs[p])
	}
	j.look(n)
}
