package partition

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition/logstore"
)

// seer is an App that proposes, in every turn, what it foresees of the log: where
// it will end, and the keys from what is applied on. Apply judges it.
type seer struct {
	t     *testing.T
	pad   int      // behind what it proposes
	truth []uint64 // key hashes by offset, as the log had them in a turn
	right int
	wrong int
}

func (s *seer) Apply(at Position, cmd []byte) (any, error) {
	if len(cmd) == 0 || cmd[0] != '!' {
		return nil, nil // an outsider's
	}
	from, end := Offset(binary.BigEndian.Uint64(cmd[1:])), Offset(binary.BigEndian.Uint64(cmd[9:]))
	if at.End > end {
		s.t.Errorf("the log ends at %d, beyond %d: a message came between", at.End, end)
	}
	if at.End != end {
		s.wrong++
		return nil, nil
	}
	s.right++
	for cmd = cmd[17:]; from < end; cmd, from = cmd[8:], from+1 {
		s.see(from, binary.BigEndian.Uint64(cmd))
	}
	return nil, nil
}

// see compares what is said of a message with what was said before.
func (s *seer) see(o Offset, hash uint64) {
	for Offset(len(s.truth)) <= o {
		s.truth = append(s.truth, 0)
	}
	if was := s.truth[o]; was != 0 && was != hash {
		s.t.Errorf("message %d has the key %d, and was seen with %d", o, hash, was)
	}
	s.truth[o] = hash
}

func (s *seer) Checkpoint() error { return nil }
func (s *seer) Lead(bool)         {}
func (s *seer) Event(any)         {}

func (s *seer) Drive(_ Millis, log Log) ([][]byte, Millis) {
	at := log.Position()
	if at.End > 0 {
		// What is applied is the truth.
		if err := log.Keys(max(at.Start, at.End-min(at.End, 50)), 1<<20, func(o Offset, hash uint64, _ int) bool {
			if o < at.End {
				s.see(o, hash)
			}
			return o < at.End
		}); err != nil {
			s.t.Error(err)
		}
	}
	if log.Foreseen() == at.End {
		return nil, 0
	}
	cmd := binary.BigEndian.AppendUint64([]byte("!"), uint64(at.End))
	cmd = binary.BigEndian.AppendUint64(cmd, uint64(log.Foreseen()))
	next := at.End
	if err := log.Keys(at.End, 64<<20, func(o Offset, hash uint64, _ int) bool {
		if o != next {
			s.t.Errorf("foresaw %d behind %d", o, next)
		}
		next++
		cmd = binary.BigEndian.AppendUint64(cmd, hash)
		return true
	}); err != nil {
		s.t.Error(err)
	}
	if next != log.Foreseen() {
		s.t.Errorf("foresaw %d messages up to %d of %d", next-at.End, next, log.Foreseen())
	}
	return [][]byte{append(cmd, make([]byte, s.pad)...)}, 0
}

// What an App proposes in its turn stands in the log behind exactly the messages
// that it foresaw, and finds the end that it foresaw unless some of them were
// duplicates: whatever else is queued, however small an entry is, and also when
// raft takes nothing for a while.
func TestForesight(t *testing.T) {
	for name, c := range map[string]struct {
		entry, body, steps int
		twice              bool
	}{
		"plain":         {entry: 1 << 20, body: 20, steps: 3000},
		"small entries": {entry: 300, body: 20, steps: 3000},
		"duplicates":    {entry: 300, body: 20, steps: 3000, twice: true},
		// More than raft keeps without a sync.
		"raft refuses": {entry: 1 << 20, body: record.MaxBody, steps: 250},
	} {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(7, uint64(len(name))))
			store, err := logstore.Open(storeConfig(vfs.NewMem()))
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			app := &seer{t: t, pad: c.body / 10 * 9}
			core := newCore(Config{
				Node: 1, Store: store, Seed: 1, EntryBytes: c.entry,
				NewApp: func(PartitionID, Rows) (App, error) { return app, nil },
			}.withDefaults())
			if err := core.create(1, 1, 1); err != nil {
				t.Fatal(err)
			}
			var writes []*write
			refused := false
			pump := func() {
				w, _, err := core.pump(1)
				if err != nil {
					t.Fatal(err)
				}
				if w != nil {
					writes = append(writes, w)
				}
				refused = refused || core.replicas[1].commands.own > 0
			}
			durable := func() {
				w := writes[0]
				writes = writes[1:]
				if w.pending != nil {
					if err := w.pending.Wait(); err != nil {
						t.Fatal(err)
					}
				}
				core.durable(w)
			}
			for core.ready() || len(writes) > 0 { // until it leads
				pump()
				for len(writes) > 0 {
					durable()
				}
			}
			published, key := 0, uint64(0)
			for range c.steps {
				switch rnd.IntN(8) {
				case 0, 1, 2:
					var recs []record.Record
					for range 1 + rnd.IntN(4) {
						key++
						rec := record.Record{KeyHash: key, Body: make([]byte, c.body)}
						if c.twice && rnd.IntN(3) == 0 {
							rec.KeyHash = key
							rec.ID, rec.HasKey = fmt.Sprint(rnd.IntN(30)), true
						}
						recs = append(recs, rec)
						if c.body > 1000 {
							break
						}
					}
					data := record.Append(nil, record.Meta{}, recs)
					b, _, err := record.Parse(data)
					if err != nil {
						t.Fatal(err)
					}
					published += len(recs)
					core.enqueue(1, &shelf{id: 1}, &proposal{kind: Batches, data: data, batch: b, stored: func([]Stored, error) {}})
				case 3:
					core.enqueue(1, &shelf{id: 1}, &proposal{kind: Command, data: make([]byte, rnd.IntN(200)), result: func(any, error) {}})
				case 4, 5:
					pump()
				default:
					if len(writes) > 0 && (c.body < 1000 || rnd.IntN(60) == 0) {
						durable()
					}
				}
			}
			for core.ready() || len(writes) > 0 {
				pump()
				for len(writes) > 0 {
					durable()
				}
			}
			end := core.replicas[1].log.Position().End
			if core.replicas[1].fault != nil || app.right == 0 || (app.wrong > 0) != c.twice || (int(end) < published) != c.twice {
				t.Fatalf("fault %v; foresaw %d times right and %d times wrong; %d of %d are stored", core.replicas[1].fault, app.right, app.wrong, end, published)
			}
			if name == "raft refuses" && !refused {
				t.Error("raft took everything at once")
			}
		})
	}
}
