package consumer

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
)

// twinWorld is one partition without a host: a log of positions and commands,
// rows with an overlay that a crash loses, a clock that the script moves, the
// machine on one side and a twin per group on the other. The machine is driven
// through its real Shell; a call that waits is a goroutine in a synctest bubble,
// so the world knows when everything that could happen has happened.
//
// After every applied command each message of each group is compared.
type twinWorld struct {
	mu     sync.Mutex // calls come from goroutines of waiting receives
	app    *App
	rows   *twinRows
	second *App // applies the same commands, never leads, never restarts
	mirror *twinRows
	shell  *Shell

	now     partition.Millis // by the leader's clock, which may go back
	passed  partition.Millis // in truth, since the beginning
	led     partition.Millis // of that, while somebody led
	changes int              // of the leader
	back    partition.Millis // how far the clock went back in all
	index   partition.Index
	start   partition.Offset
	twice   map[partition.Offset]bool // named twice by a rogue plan, which no leader does
	entries []partition.Index         // of the messages
	msgs    []partition.Message
	log     []twinEntry // commands applied, in order
	saved   int         // so many of them are in the rows of the last checkpoint
	pending []twinEntry // proposed by Drive, not yet applied
	inbox   []any
	tellMu  sync.Mutex
	told    []any
	heard   []func() // what the calls have not heard of yet; guarded by tellMu
	leading bool
	fate    twinFate
	late    bool // the leader has a turn between a proposal of the shell and its application
	bounds  bounds
	keys    int  // so many keys are published to
	patient bool // no call's wait runs out: draining takes time in the bubble
	deadly  bool // most settlements reject
	wake    partition.Millis

	groups   []*twinGroup
	calls    []*twinCall
	streams  []*twinStream
	refusals map[twinRefusal][]string
	dues     []partition.Millis // how far each due step moved the clock
	fault    error
}

type twinEntry struct {
	at   partition.Position
	msgs []twinPub // published, in place of a command
	cmd  []byte
	now  partition.Millis
	from string
}

// twinPub is a message that is being published.
type twinPub struct {
	key, size int
	twice     bool // it turns out to be a duplicate, which has no offset
}

// twinFate is what becomes of the next proposal of the shell.
type twinFate int

const (
	fateApplied twinFate = iota
	fateUnknownApplied
	fateUnknownLost
)

type twinGroup struct {
	id       GroupID
	gone     bool
	tw       *twin
	tokens   []Token
	sessions map[string]uint64
	requests map[string][]uint64 // member/session/request → hand-outs given
	lines    []string            // what the group's clients saw

	nCalls      int
	lastRequest int
	script      int // so many of the lines are of the script, the rest of finish
}

// twinCall is one Receive.
type twinCall struct {
	n       int
	g       *twinGroup
	req     ReceiveRequest
	begun   uint64 // highest hand-out number when it began
	coming  uint64 // highest number that what was planned by then can get
	step    int    // in which it began
	cancel  context.CancelFunc
	done    bool
	out     []Delivery
	idle    string
	err     error
	judged  bool
	dropped bool // cancelled, or its leader went
}

const (
	twinPart  partition.PartitionID = 7
	twinStart partition.Millis      = 1_000_000
)

// Rows in memory.

type twinRows struct {
	disk, live map[string]string
}

func newTwinRows() *twinRows {
	return &twinRows{disk: map[string]string{}, live: map[string]string{}}
}

func (r *twinRows) Get(key []byte) ([]byte, error) {
	v, ok := r.live[string(key)]
	if !ok {
		return nil, nil
	}
	return append([]byte{}, v...), nil
}
func (r *twinRows) Put(key, value []byte) { r.live[string(key)] = string(value) }
func (r *twinRows) Delete(key []byte)     { delete(r.live, string(key)) }

func (r *twinRows) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	var keys []string
	for k := range r.live {
		if strings.HasPrefix(k, string(prefix)) && k >= string(from) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if !fn([]byte(k), []byte(r.live[k])) {
			return nil
		}
	}
	return nil
}

func copyRows(m map[string]string) map[string]string {
	c := make(map[string]string, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

func (r *twinRows) flush() { r.disk = copyRows(r.live) }
func (r *twinRows) crash() { r.live = copyRows(r.disk) }

func (r *twinRows) dump() string {
	var b strings.Builder
	keys := make([]string, 0, len(r.live))
	for k := range r.live {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(&b, "%q = %q\n", k, r.live[k])
	}
	return b.String()
}

// The host that the shell speaks to.

func (w *twinWorld) position() partition.Position {
	return partition.Position{Index: w.index, Start: w.start, End: partition.Offset(len(w.msgs))}
}

func (w *twinWorld) Position() partition.Position { return w.position() }

// Foreseen counts what is proposed as if none of it were a duplicate.
func (w *twinWorld) Foreseen() partition.Offset {
	n := len(w.msgs)
	for _, e := range w.pending {
		n += len(e.msgs)
	}
	return partition.Offset(n)
}

func (w *twinWorld) Keys(from partition.Offset, maxBytes int, fn func(o partition.Offset, keyHash uint64, size int) bool) error {
	if from < w.start {
		return &partition.ErrExpired{Start: w.start}
	}
	read := 0
	for _, m := range w.msgs[min(int(from), len(w.msgs)):] {
		size := len(m.Record.Key) + len(m.Record.Body)
		if !fn(m.Offset, m.Record.KeyHash, size) {
			return nil
		}
		if read += size; read >= maxBytes {
			return nil
		}
	}
	o := partition.Offset(len(w.msgs))
	for _, e := range w.pending {
		for _, m := range e.msgs {
			hash, name := twinKey(m.key)
			if o >= from {
				if read += len(name) + m.size; !fn(o, hash, len(name)+m.size) || read >= maxBytes {
					return nil
				}
			}
			o++
		}
	}
	return nil
}

func (w *twinWorld) Propose(_ context.Context, id partition.PartitionID, cmd []byte) (any, error) {
	if id != twinPart {
		return nil, &partition.ErrUnknownPartition{Partition: id}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leading {
		return nil, &partition.ErrNotLeader{Partition: id}
	}
	fate := w.fate
	w.fate = fateApplied
	if fate == fateUnknownLost {
		return nil, &partition.ErrOutcomeUnknown{Partition: id, Why: "lost"}
	}
	// What was proposed before stands before it in the log.
	for len(w.pending) > 0 {
		w.applyNext()
	}
	var behind []twinEntry
	if w.late {
		cmds, wake := w.app.Drive(w.now, w)
		w.wake = wake
		for _, c := range cmds {
			behind = append(behind, twinEntry{cmd: bytes.Clone(c), now: w.now, from: "drive"})
		}
	}
	defer func() { w.pending = append(w.pending, behind...) }()
	res := w.apply(twinEntry{cmd: bytes.Clone(cmd), now: w.now, from: "shell"})
	if fate == fateUnknownApplied {
		return nil, &partition.ErrOutcomeUnknown{Partition: id, Why: "reply lost"}
	}
	return res, nil
}

func (w *twinWorld) Post(id partition.PartitionID, ev any) error {
	if id != twinPart {
		return &partition.ErrUnknownPartition{Partition: id}
	}
	if d, ok := ev.(demand); ok {
		if c, ok := d.Taker.(*call); ok {
			late := &lateTaker{call: c, w: w}
			d.Taker = late
			if tried := d.Tried; tried != nil {
				d.Tried = func() { late.later(tried) }
			}
			ev = d
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inbox = append(w.inbox, ev)
	return nil
}

// lateTaker is a call that hears of what becomes of it when the leader's turn is over:
// its goroutine would else run beside the turn, and whether the rest of the turn finds
// it open would be chance.
type lateTaker struct {
	*call
	w *twinWorld
}

func (l *lateTaker) later(f func()) {
	l.w.tellMu.Lock()
	defer l.w.tellMu.Unlock()
	l.w.heard = append(l.w.heard, f)
}

func (l *lateTaker) Return(n, bytes int) { l.later(func() { l.call.Return(n, bytes) }) }

func (l *lateTaker) Handed(p partition.PartitionID, hs []handOut) {
	hs = slices.Clone(hs)
	l.later(func() { l.call.Handed(p, hs) })
}

func (l *lateTaker) Ended(p partition.PartitionID, why error) {
	l.later(func() { l.call.Ended(p, why) })
}

// hear lets the calls hear of it.
func (w *twinWorld) hear() {
	w.tellMu.Lock()
	heard := w.heard
	w.heard = nil
	w.tellMu.Unlock()
	for _, f := range heard {
		f()
	}
}

// Tell may come from inside a turn, which holds the lock or needs none.
func (w *twinWorld) Tell(id partition.PartitionID, ev any) error {
	w.tellMu.Lock()
	defer w.tellMu.Unlock()
	w.told = append(w.told, ev)
	return nil
}

// takeTold is what was told, moved to what was posted.
func (w *twinWorld) takeTold() {
	w.tellMu.Lock()
	defer w.tellMu.Unlock()
	w.inbox = append(w.inbox, w.told...)
	w.told = nil
}

func (w *twinWorld) ProposeAsync(id partition.PartitionID, cmd []byte, done func(any, error)) error {
	done(w.Propose(context.Background(), id, cmd))
	return nil
}

func (w *twinWorld) View(_ context.Context, id partition.PartitionID, fn func(partition.App, partition.Position)) error {
	if id != twinPart {
		return &partition.ErrUnknownPartition{Partition: id}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fn(w.app, w.position())
	return nil
}

func (w *twinWorld) ReadAt(id partition.PartitionID, offsets []partition.Offset) ([]partition.Message, error) {
	if id != twinPart {
		return nil, &partition.ErrUnknownPartition{Partition: id}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var ms []partition.Message
	for _, o := range offsets {
		if o < w.start {
			return nil, &partition.ErrExpired{Start: w.start}
		}
		ms = append(ms, w.msgs[o])
	}
	return ms, nil
}

func (w *twinWorld) ReadRawAt(id partition.PartitionID, offsets []partition.Offset, out []partition.RawMessage) ([]partition.RawMessage, error) {
	ms, err := w.ReadAt(id, offsets)
	if err != nil {
		return out, err
	}
	for _, m := range ms {
		out = append(out, rawMessage(m))
	}
	return out, nil
}

func (w *twinWorld) Commands(_ context.Context, _ partition.PartitionID, from partition.Index, fn func(partition.LogEntry) bool) error {
	for _, e := range w.log {
		if e.at.Index >= from && !fn(partition.LogEntry{Index: e.at.Index, Term: 1, Data: e.cmd}) {
			return nil
		}
	}
	return nil
}

func (w *twinWorld) Led(partition.PartitionID) (partition.Led, error) { return nil, nil }

func (w *twinWorld) IndexOf(_ partition.PartitionID, o partition.Offset) (partition.Index, error) {
	return w.entries[o], nil
}

// Applying.

func (w *twinWorld) fail(format string, args ...any) {
	if w.fault == nil {
		w.fault = fmt.Errorf(format, args...)
	}
}

// apply runs one command on both replicas. The script's twins learn what came
// of it unless the script itself, in a call of the shell, will tell them.
func (w *twinWorld) apply(e twinEntry) any {
	w.index++
	e.at = w.position()
	w.log = append(w.log, e)
	w.foresee(e.cmd)
	res, err := w.app.Apply(e.at, e.cmd)
	if err != nil {
		w.fail("apply of a command from %s: %v", e.from, err)
	}
	w.noteRefused(e.cmd, res)
	if _, err := w.second.Apply(e.at, e.cmd); err != nil {
		w.fail("apply on the second replica: %v", err)
	}
	if e.from != "shell" {
		w.observe(e.from)
	}
	return res
}

// foresee tells the twin of what is decided by the command alone: a leap of its
// group's clock, and which deliveries lapse, in which order.
func (w *twinWorld) foresee(cmd []byte) {
	r := reader{b: cmd}
	h := r.header()
	for _, g := range w.groups {
		if g.id != h.group || g.gone {
			continue
		}
		switch h.kind {
		case cmdLeap:
			g.tw.leap(h.now, r.time())
		case cmdLapse:
			g.tw.tick(h.now)
			epoch := r.uvarint()
			for range r.count(2) {
				if o, num := partition.Offset(r.uvarint()), r.uvarint(); epoch == g.tw.epoch {
					g.tw.lapse(o, num)
				}
			}
		default:
		}
	}
}

func (w *twinWorld) applyNext() {
	e := w.pending[0]
	w.pending = w.pending[1:]
	for _, m := range e.msgs {
		if !m.twice {
			w.publish(m.key, m.size)
		}
	}
	if e.cmd != nil {
		w.apply(e)
	}
}

// settleDown lets every waiting call take what it was given.
func (w *twinWorld) settleDown() {
	w.hear()
	synctest.Wait()
	w.takeTold()
	for len(w.inbox) > 0 {
		in := w.inbox
		w.inbox = nil
		// Calls that woke at one moment ask in any order; a script has one.
		slices.SortStableFunc(in, func(a, b any) int {
			x, _ := a.(demand)
			y, _ := b.(demand)
			return cmp.Compare(x.Call, y.Call)
		})
		for _, ev := range in {
			w.app.Event(ev)
		}
		w.hear()
		synctest.Wait()
		w.takeTold()
	}
	w.judgeCalls()
}

// drive is the leader's turn.
func (w *twinWorld) drive() int {
	w.settleDown()
	if !w.leading {
		return 0
	}
	cmds, wake := w.app.Drive(w.now, w)
	w.settleDown()
	w.wake = wake
	for _, c := range cmds {
		w.pending = append(w.pending, twinEntry{cmd: bytes.Clone(c), now: w.now, from: "drive"})
	}
	w.settleDown()
	return len(cmds)
}

// drain drives and applies until nothing is left to do.
func (w *twinWorld) drain() {
	if !w.leading {
		return
	}
	for turn := 0; ; turn++ {
		if turn > 300 {
			w.fail("the dispatcher finds no rest: 300 turns at one time without a message published")
			return
		}
		n := w.drive()
		for len(w.pending) > 0 {
			w.applyNext()
			w.settleDown()
			n++
		}
		if n == 0 && w.fault == nil {
			// A member that held all that it may looks again after fullPatience of
			// the bubble's clock, which the script's does not move.
			time.Sleep(fullPatience + 5*time.Millisecond) // outlasts that; bubble time
			n = w.drive()
		}
		if n == 0 || w.fault != nil {
			break
		}
	}
	for _, c := range w.calls {
		if c.req.Wait == 0 && !w.isDone(c) {
			w.fail("stuck: %v: receive %d of %s asked for an answer at once and has none", c.g.id, c.n, c.req.Member)
		}
	}
	w.judgeRest()
}

// checkpoint writes the rows, as the host does.
func (w *twinWorld) checkpoint() {
	if err := w.app.Checkpoint(); err != nil {
		w.fail("checkpoint: %v", err)
	}
	w.rows.flush()
	w.saved = len(w.log)
}

// remember bounds what may wait in memory, before there is any group.
func (w *twinWorld) remember(n int) {
	if len(w.log) == 0 && n > 0 && n < 6 {
		w.bounds = []bounds{{3, 1, 2}, {1, 1, 1}, {6, 2, 3}, {2, 5, 2}, {memoryMessages, 1, 3}}[n-1]
		w.app.bounds, w.second.bounds = w.bounds, w.bounds
	}
}

// restart drops the machine and restores it from its rows.
func (w *twinWorld) restart() {
	w.dropCalls()
	if w.leading {
		w.app.Lead(false)
	}
	w.inbox = nil
	w.rows.crash()
	app, err := newApp(twinPart, w.rows, w.bounds)
	if err != nil {
		w.fail("restore: %v", err)
		return
	}
	w.app = app
	for _, e := range w.log[w.saved:] {
		if _, err := app.Apply(e.at, e.cmd); err != nil {
			w.fail("apply again: %v", err)
			return
		}
	}
	w.observe("restore")
}

func (w *twinWorld) lead(on bool) {
	if on != w.leading {
		for _, c := range w.calls {
			c.dropped = c.dropped || !on && !w.isDone(c)
		}
		w.leading = on
		w.changes++
		w.app.Lead(on)
		if on {
			w.heartbeat()
		}
	}
}

// isDone tells whether a call returned, as its goroutine says.
func (w *twinWorld) isDone(c *twinCall) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.done
}

// dropCalls ends all waiting calls: their clients see an error and ask again.
func (w *twinWorld) dropCalls() {
	for _, c := range w.calls {
		if !w.isDone(c) {
			c.dropped = true
			c.cancel()
		}
	}
	w.hear()
	synctest.Wait()
	w.inbox = nil
	w.judgeCalls()
}

func (w *twinWorld) close() {
	for _, c := range w.calls {
		c.cancel()
	}
	synctest.Wait()
}

// compareReplicas checks that rows depend on the commands alone: not on who
// led, when checkpoints were made, or what was restored.
func (w *twinWorld) compareReplicas() {
	if err := w.app.Checkpoint(); err != nil {
		w.fail("checkpoint: %v", err)
	}
	if err := w.second.Checkpoint(); err != nil {
		w.fail("checkpoint of the second replica: %v", err)
	}
	if a, b := w.rows.dump(), w.mirror.dump(); a != b {
		w.fail("I6: rows differ between the replica that led and restarted and the one that only followed:\n%s", firstDifference(a, b))
	}
}

func firstDifference(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := 0; i < min(len(as), len(bs)); i++ {
		if as[i] != bs[i] {
			return "  first:  " + as[i] + "\n  second: " + bs[i]
		}
	}
	return fmt.Sprintf("  %d and %d rows", len(as), len(bs))
}

func newTwinWorld() *twinWorld {
	w := &twinWorld{twice: make(map[partition.Offset]bool), rows: newTwinRows(), mirror: newTwinRows(), now: twinStart, keys: 5}
	w.bounds = bounds{messages: memoryMessages, ofKey: memoryOfKey, row: rowMessages}
	w.app, _ = NewApp(twinPart, w.rows)
	w.second, _ = NewApp(twinPart, w.mirror)
	w.shell = NewShellOver(w, 99)
	w.shell.Now = func() partition.Millis {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.now
	}
	w.lead(true)
	return w
}

// inBubble runs a script in a synctest bubble and returns what it found wrong.
func inBubble(t *testing.T, run func() error) (err error) {
	synctest.Test(t, func(*testing.T) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v\n%s", r, stackOf())
			}
		}()
		err = run()
	})
	return err
}

// advance moves both clocks forward. The leader has its turns meanwhile, as
// often as it asks for them while anything is timed; what it proposes is on its
// way.
func (w *twinWorld) advance(d partition.Millis) {
	for {
		step := min(d, pulse)
		w.turnClock(step)
		w.passed += step
		if w.leading {
			w.led += step
		}
		time.Sleep(time.Duration(step) * time.Millisecond) // bubble time: wakes what waits for it
		w.settleDown()
		if d -= step; d <= 0 {
			return
		}
		w.drive()
	}
}

// turnClock sets the leader's clock forward or back. Calls that wait look at it.
func (w *twinWorld) turnClock(d partition.Millis) {
	w.mu.Lock()
	w.now += d
	w.mu.Unlock()
}

// time is the group's present time, as the machine has it.
func (w *twinWorld) time(g *twinGroup) partition.Millis {
	if a := w.app.group(g.id); a != nil {
		return a.time(w.now)
	}
	return w.now
}

func (w *twinWorld) publish(key int, size int) {
	hash, name := twinKey(key)
	o := partition.Offset(len(w.msgs))
	w.index++
	w.entries = append(w.entries, w.index)
	w.msgs = append(w.msgs, partition.Message{Offset: o, PublishTime: w.now, Record: record.Record{
		KeyHash: hash, HasKey: true, Key: []byte(name), Body: bytes.Repeat([]byte("x"), size),
	}})
	for _, g := range w.groups {
		g.tw.publish(hash, name, size+len(name))
	}
}

// twinKey names the keys of the scripts; the last two share a hash.
func twinKey(n int) (uint64, string) {
	switch n {
	case 0:
		return 11, "a"
	case 1:
		return 1 << 63, "b"
	case 2:
		return 500, "c"
	case 3:
		return 900, "d"
	default:
		return 900, "e"
	}
}
