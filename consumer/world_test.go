package consumer

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
)

// memRows is a partition.Rows that can go back to its last checkpoint.
type memRows struct {
	disk map[string][]byte
	now  map[string][]byte
	keys []string // sorted, of now and of some that were deleted since
	more []string // put since, not sorted

	spilled string // the file that has all of it
}

func newMemRows() *memRows {
	return &memRows{disk: make(map[string][]byte), now: make(map[string][]byte)}
}

func (r *memRows) Get(key []byte) ([]byte, error) {
	v, ok := r.now[string(key)]
	if !ok {
		return nil, nil
	}
	if v == nil {
		v = []byte{}
	}
	return v, nil
}

func (r *memRows) Put(key, value []byte) {
	if _, ok := r.now[string(key)]; !ok {
		r.more = append(r.more, string(key))
	}
	r.now[string(key)] = bytes.Clone(value)
}

func (r *memRows) Delete(key []byte) {
	delete(r.now, string(key))
}

func (r *memRows) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	r.sort()
	start := string(prefix)
	if from != nil && string(from) > start {
		start = string(from)
	}
	for i := sort.SearchStrings(r.keys, start); i < len(r.keys) && strings.HasPrefix(r.keys[i], string(prefix)); i++ {
		if v, ok := r.now[r.keys[i]]; ok && !fn([]byte(r.keys[i]), v) {
			return nil
		}
	}
	return nil
}

// sort merges what was put since the last look into the keys.
func (r *memRows) sort() {
	if len(r.more) == 0 {
		return
	}
	slices.Sort(r.more)
	all := make([]string, 0, len(r.keys)+len(r.more))
	add := func(k string) {
		if _, ok := r.now[k]; ok && (len(all) == 0 || all[len(all)-1] != k) {
			all = append(all, k)
		}
	}
	i := 0
	for _, k := range r.more {
		for ; i < len(r.keys) && r.keys[i] < k; i++ {
			add(r.keys[i])
		}
		add(k)
	}
	for ; i < len(r.keys); i++ {
		add(r.keys[i])
	}
	r.keys, r.more = all, nil
}

func (r *memRows) checkpoint() {
	r.disk = make(map[string][]byte, len(r.now))
	for k, v := range r.now {
		r.disk[k] = v
	}
}

func (r *memRows) crash() *memRows {
	n := newMemRows()
	for k, v := range r.disk {
		n.disk[k], n.now[k] = v, v
		n.more = append(n.more, k)
	}
	return n
}

func (r *memRows) String() string {
	var b strings.Builder
	_ = r.Scan(nil, nil, func(k, v []byte) bool {
		fmt.Fprintf(&b, "%x = %x\n", k, v)
		return true
	})
	return b.String()
}

// memPart is one partition: messages, commands, and an App that they drive.
type memPart struct {
	id         partition.PartitionID
	msgs       []partition.Message
	sizes      []int
	entries    []partition.Index // of the messages
	start      partition.Offset
	at         partition.Index
	term       uint64
	led        partition.Led
	cmds       []memCmd
	checkpoint int                       // commands that the rows hold
	damaged    map[partition.Offset]bool // do not read
	hole       *partition.ErrUnreadable  // whose keys do not read either
	fell       int                       // how often Keys came to it
	rows       *memRows
	app        *App
	bounds     bounds
	wake       partition.Millis
}

type memCmd struct {
	at   partition.Position
	term uint64
	cmd  []byte
	trim *partition.TrimTo // instead of a command
}

// run applies it, the first time and after a restart.
func (c memCmd) run(app *App, p *memPart) (any, error) {
	if c.trim == nil {
		return app.Apply(c.at, c.cmd)
	}
	log := memKept{p: p, at: c.at}
	to, err := app.Keeps(c.at, *c.trim, log)
	if err != nil || to <= c.at.Start {
		return c.at.Start, err
	}
	// A leader reads beforehand what it will take, so it may read nothing else.
	if log.only, err = app.Takes(c.at, to); err != nil {
		return c.at.Start, err
	}
	return to, app.Trim(c.at, *c.trim, to, log)
}

// trim is what partition does with a TrimTo.
func (p *memPart) trim(t partition.TrimTo) (partition.Offset, error) {
	p.at++
	t.To = min(max(t.To, p.start), p.Position().End)
	c := memCmd{at: p.Position(), trim: &t}
	res, err := c.run(p.app, p)
	if err != nil {
		return 0, err
	}
	p.cmds = append(p.cmds, c)
	p.start = res.(partition.Offset)
	return p.start, nil
}

// memKept is the log at a position: every message is a batch of its own.
type memKept struct {
	p    *memPart
	at   partition.Position
	only []partition.Offset // what may be read
}

func (k memKept) Read(offsets []partition.Offset) (out []partition.RawMessage, err error) {
	for _, o := range offsets {
		if !slices.Contains(k.only, o) {
			return nil, fmt.Errorf("a trim reads offset %d, and did not say so", o)
		}
	}
	for _, o := range offsets {
		if o < k.at.Start || o >= k.at.End {
			return nil, fmt.Errorf("offset %d of %v was asked for", o, k.at)
		}
		out = append(out, rawMessage(k.p.msgs[o]))
	}
	return out, nil
}

func (k memKept) Before(o partition.Offset) (n uint64, t partition.Millis, err error) {
	for i := range min(o, k.at.End) {
		n += uint64(k.p.sizes[i])
	}
	if k.at.End > 0 {
		t = k.p.msgs[min(o, k.at.End-1)].PublishTime
	}
	return n, t, nil
}

func (k memKept) Find(bytes uint64, t partition.Millis) (partition.Offset, error) {
	for o := k.at.Start; o < k.at.End; o++ {
		if n, at, _ := k.Before(o); n+uint64(k.p.sizes[o]) > bytes && at >= t {
			return o, nil
		}
	}
	return k.at.End, nil
}

func (p *memPart) Position() partition.Position {
	return partition.Position{Index: p.at, Start: p.start, End: partition.Offset(len(p.msgs))}
}

func (p *memPart) Foreseen() partition.Offset { return p.Position().End }

func (p *memPart) Keys(from partition.Offset, maxBytes int, fn func(partition.Offset, uint64, int) bool) error {
	for o := from; o < partition.Offset(len(p.msgs)); o++ {
		if h := p.hole; h != nil && o >= h.Offset && o < h.End() {
			p.fell++
			return &partition.ErrUnreadable{Partition: p.id, Offset: o, Last: h.Last, Err: h.Err}
		}
		if !fn(o, p.msgs[o].Record.KeyHash, p.sizes[o]) {
			return nil
		}
		if maxBytes -= p.sizes[o]; maxBytes <= 0 {
			return nil
		}
	}
	return nil
}

func (p *memPart) apply(cmd []byte) any {
	p.at++
	p.cmds = append(p.cmds, memCmd{at: p.Position(), term: p.term, cmd: cmd})
	res, err := p.app.Apply(p.Position(), cmd)
	if err != nil {
		panic(fmt.Sprintf("partition %v: %v", p.id, err))
	}
	return res
}

// world is a set of partitions in one thread under one lock: a Replicas without
// a disk, whose every call has run to its end when it returns.
type world struct {
	mu    sync.Mutex
	now   partition.Millis
	parts map[partition.PartitionID]*memPart
	ids   []partition.PartitionID

	tellMu sync.Mutex
	told   []telling // from inside a turn, or not yet taken
}

type telling struct {
	part partition.PartitionID
	ev   any
}

func newWorld(n int) *world { return newWorldOf(n, bounds{}) }

// newWorldOf is a world whose memory is bounded otherwise.
func newWorldOf(n int, most bounds) *world {
	w := &world{now: 1_000_000, parts: make(map[partition.PartitionID]*memPart)}
	for i := 1; i <= n; i++ {
		id := partition.PartitionID(i)
		p := &memPart{id: id, rows: newMemRows(), bounds: most}
		p.boot()
		w.parts[id] = p
		w.ids = append(w.ids, id)
	}
	return w
}

func (p *memPart) boot() {
	if p.bounds.row == 0 {
		p.bounds = bounds{messages: memoryMessages, ofKey: memoryOfKey, row: rowMessages}
	}
	app, err := newApp(p.id, p.rows, p.bounds)
	if err != nil {
		panic(err)
	}
	p.app = app
	for _, c := range p.cmds[p.checkpoint:] {
		if _, err := c.run(p.app, p); err != nil {
			panic(err)
		}
	}
	p.app.Lead(true)
}

func (p *memPart) save() {
	if err := p.app.Checkpoint(); err != nil {
		panic(err)
	}
	p.rows.checkpoint()
	p.checkpoint = len(p.cmds)
}

// restart is a kill -9 and a new start: what was not in the log is gone.
func (p *memPart) restart() {
	p.app.Lead(false)
	p.rows = p.rows.crash()
	p.boot()
}

// turn drives a partition until it has nothing more to propose.
func (w *world) turn(p *memPart) {
	for range 10_000 {
		cmds, wake := p.app.Drive(w.now, p)
		p.wake = wake
		for _, c := range cmds {
			p.apply(c)
		}
		if w.takeTold() {
			continue
		}
		if len(cmds) == 0 && (wake == 0 || wake > w.now) {
			return
		}
	}
	panic("Drive does not come to rest")
}

// takeTold gives the apps what they were told, and those other than the one
// whose turn it is theirs.
func (w *world) takeTold() bool {
	w.tellMu.Lock()
	told := w.told
	w.told = nil
	w.tellMu.Unlock()
	for _, t := range told {
		p := w.parts[t.part]
		p.app.Event(t.ev)
		w.turn(p)
	}
	return len(told) > 0
}

// Tell may come from inside a turn.
func (w *world) Tell(id partition.PartitionID, ev any) error {
	if _, err := w.part(id); err != nil {
		return err
	}
	w.tellMu.Lock()
	w.told = append(w.told, telling{id, ev})
	w.tellMu.Unlock()
	if w.mu.TryLock() {
		w.takeTold()
		w.mu.Unlock()
	}
	return nil
}

func (w *world) ProposeAsync(id partition.PartitionID, cmd []byte, done func(any, error)) error {
	if _, err := w.part(id); err != nil {
		return err
	}
	done(w.Propose(context.Background(), id, cmd))
	return nil
}

func (w *world) part(id partition.PartitionID) (*memPart, error) {
	p, ok := w.parts[id]
	if !ok {
		return nil, &partition.ErrUnknownPartition{Partition: id}
	}
	return p, nil
}

func (w *world) Propose(_ context.Context, id partition.PartitionID, cmd []byte) (any, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.part(id)
	if err != nil {
		return nil, err
	}
	res := p.apply(cmd)
	w.turn(p)
	return res, nil
}

func (w *world) Post(id partition.PartitionID, ev any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.part(id)
	if err != nil {
		return err
	}
	p.app.Event(ev)
	w.turn(p)
	return nil
}

func (w *world) View(_ context.Context, id partition.PartitionID, fn func(partition.App, partition.Position)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.part(id)
	if err != nil {
		return err
	}
	fn(p.app, p.Position())
	return nil
}

func (w *world) ReadAt(id partition.PartitionID, offsets []partition.Offset) ([]partition.Message, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.part(id)
	if err != nil {
		return nil, err
	}
	if !slices.IsSorted(offsets) {
		return nil, fmt.Errorf("offsets are not sorted: %v", offsets)
	}
	var ms []partition.Message
	for _, o := range offsets {
		if o < p.start {
			return nil, &partition.ErrExpired{Partition: id, Start: p.start}
		}
		if p.damaged[o] {
			bad := &partition.ErrDamaged{Partition: id, Why: "the checksum of a block"}
			return ms, &partition.ErrUnreadable{Partition: id, Offset: o, Err: bad}
		}
		ms = append(ms, p.msgs[o])
	}
	return ms, nil
}

func (w *world) ReadRawAt(id partition.PartitionID, offsets []partition.Offset, out []partition.RawMessage) ([]partition.RawMessage, error) {
	ms, err := w.ReadAt(id, offsets)
	for _, m := range ms {
		out = append(out, rawMessage(m))
	}
	return out, err
}

// rawMessage is a message as a batch would hold it.
func rawMessage(m partition.Message) partition.RawMessage {
	b, _, err := record.Parse(record.Append(nil, record.Meta{}, []record.Record{m.Record}))
	if err != nil {
		panic(err)
	}
	c := b.Cursor()
	raw, _ := c.Next()
	return partition.RawMessage{Offset: m.Offset, PublishTime: m.PublishTime, Record: raw}
}

func (w *world) Commands(_ context.Context, id partition.PartitionID, from partition.Index, fn func(partition.LogEntry) bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.part(id)
	if err != nil {
		return err
	}
	for _, c := range p.cmds {
		if c.trim == nil && c.at.Index >= from && !fn(partition.LogEntry{Index: c.at.Index, Term: c.term, Data: c.cmd}) {
			break
		}
	}
	return nil
}

func (w *world) Led(id partition.PartitionID) (partition.Led, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.part(id)
	if err != nil {
		return nil, err
	}
	return p.led, nil
}

func (w *world) IndexOf(id partition.PartitionID, o partition.Offset) (partition.Index, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.parts[id].entries[o], nil
}

// publish stores messages; the key - is none.
func (w *world) publish(id partition.PartitionID, keys ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.parts[id]
	p.at++
	for _, k := range keys {
		w.add(p, k)
	}
	w.turn(p)
}

func (w *world) add(p *memPart, k string) {
	r := record.Record{HasKey: k != "-", ID: fmt.Sprintf("%s@%d", k, len(p.msgs)), Body: []byte("body")}
	if r.HasKey {
		r.Key = []byte(k)
		r.KeyHash = keyspace.Hash(7, r.Key)
	} else {
		r.KeyHash = keyspace.Mix(uint64(len(p.msgs)))
	}
	p.msgs = append(p.msgs, partition.Message{Offset: partition.Offset(len(p.msgs)), PublishTime: w.now, Record: r})
	p.sizes = append(p.sizes, len(r.Key)+len(r.Body))
	p.entries = append(p.entries, p.at)
}

// advance lets time pass, stopping wherever an App asked to be woken.
func (w *world) advance(d partition.Millis) {
	w.mu.Lock()
	defer w.mu.Unlock()
	end := w.now + d
	for {
		next := end
		for _, id := range w.ids {
			if wake := w.parts[id].wake; wake > w.now && wake < next {
				next = wake
			}
		}
		w.now = next
		for _, id := range w.ids {
			w.turn(w.parts[id])
		}
		if w.now == end {
			return
		}
	}
}

func (w *world) shell() *Shell {
	s := NewShellOver(w, 42)
	s.Now = func() partition.Millis {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.now
	}
	return s
}
