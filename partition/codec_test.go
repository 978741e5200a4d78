package partition

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"reflect"
	"slices"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/partition/logstore"
)

func FuzzEntry(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendItem(beginEntry(nil, Batches), 7, batch("a", "b")))
	f.Add(appendItem(appendItem(beginEntry(nil, Command), 1, []byte("one")), 2, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		it, err := openEntry(b)
		if err != nil {
			return
		}
		var again []byte
		if len(b) > 0 {
			again = beginEntry(nil, it.kind)
		}
		for {
			x, ok, err := it.next()
			if err != nil {
				return
			}
			if !ok {
				break
			}
			same, err := itemAt(b, x.at)
			if err != nil || same.id != x.id || !bytes.Equal(same.data, x.data) {
				t.Fatalf("item at %d is %v, %v; the walk gave %v", x.at, same, err, x)
			}
			again = appendItem(again, x.id, x.data)
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("encoded anew:\n%x\nfrom\n%x", again, b)
		}
	})
}

// FuzzRows feeds every row decoder; what one accepts must come out the same.
func FuzzRows(f *testing.F) {
	key := offsetKey(nil, 5)
	idx := indexRow{base: 5, index: 9, at: 14, size: 60, records: 3, stored: 2, time: 7, bytes: 100, suppressed: []uint16{1}}
	rk := runKey(nil, 8, []byte("prod"), 3)
	f.Add(key, idx.append(nil))
	f.Add(make([]byte, 16), appendIDRow(nil, []idRef{{1, 2}, {3, 4}}))
	f.Add(rk, appendRunRow(nil, run{first: 3, base: 8, count: 2, odd: []verdict{{1, fateDuplicate, 4}}}))
	f.Add(nextKey(nil, 8, []byte("prod")), appendNextRow(nil, 77))
	f.Add([]byte{}, (&appliedRow{1, 2, 3, 4, 3, 5, 6, 7, buckets{8, 9}}).append(nil))
	f.Add([]byte{}, (&TrimTo{To: 7, Why: BySize, Now: 9, Firm: true}).encode())
	f.Add([]byte{}, appendCheckpoint(nil, Position{1, 2, 3}))
	f.Add([]byte{}, appendReplicaRow(nil, NewReplicaID(3, 2)))
	f.Add([]byte{}, appendReplicaRow(nil, NewReplicaID(4, 2)))
	f.Fuzz(func(t *testing.T, key, row []byte) {
		check := func(what string, err error, again func() []byte) {
			if err != nil {
				return
			}
			if got := again(); !bytes.Equal(got, row) {
				t.Fatalf("%s encoded anew:\n%x\nfrom\n%x", what, got, row)
			}
		}
		r, err := decodeIndexRow(key, row)
		check("index row", err, func() []byte { return r.append(nil) })
		refs, err := decodeIDRow(row)
		check("id row", err, func() []byte { return appendIDRow(nil, refs) })
		u, err := decodeRunRow(key, row)
		check("run row", err, func() []byte { return appendRunRow(nil, u) })
		n, err := decodeNextRow(row)
		check("next row", err, func() []byte { return appendNextRow(nil, n) })
		a, err := decodeAppliedRow(row)
		check("applied row", err, func() []byte { return a.append(nil) })
		tr, err := decodeTrim(row)
		check("trim", err, tr.encode)
		id, err := decodeReplicaRow(row, 3)
		if err == nil && id.Node() != 3 {
			t.Fatalf("%v is taken for a replica of node 3", id)
		}
		if row != nil {
			check("replica row", err, func() []byte { return appendReplicaRow(nil, id) })
		}
		p, err := decodeCheckpoint(row)
		check("checkpoint", err, func() []byte { return appendCheckpoint(nil, p) })
	})
}

// FuzzConf: what replicas a partition has is refused, or Raft begins with it.
func FuzzConf(f *testing.F) {
	joint := true
	for _, c := range []*raftpb.ConfState{
		{Voters: []uint64{1}},
		{Voters: []uint64{1, 2, 3}, Learners: []uint64{4}},
		{Voters: []uint64{1, 2}, VotersOutgoing: []uint64{1, 3}, LearnersNext: []uint64{3}, AutoLeave: &joint},
		{Voters: []uint64{1, 1}},
		{Voters: []uint64{0}},
		{Learners: []uint64{1}},
		{Voters: []uint64{1}, Learners: []uint64{1}},
		{Voters: []uint64{1}, LearnersNext: []uint64{2}},
	} {
		f.Add(confRow(c))
	}
	f.Add([]byte{})
	f.Add([]byte("damage"))
	if b, err := encodeConf(nil); err != nil || len(b) == 0 {
		f.Fatalf("the row of a replica that joins is %x, %v", b, err)
	} else {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		conf, err := decodeConf(b, true)
		if err != nil {
			return
		}
		if _, err := decodeConf(b, false); (err != nil) != (len(conf.GetVoters()) == 0) {
			t.Fatalf("%v, with %v", err, conf)
		}
		storage := raft.NewMemoryStorage()
		if err := storage.ApplySnapshot(&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
			ConfState: conf, Index: new(uint64(1)), Term: new(uint64(1)),
		}}); err != nil {
			t.Fatal(err)
		}
		if _, err := raft.NewRawNode(&raft.Config{
			ID: 1, ElectionTick: 10, HeartbeatTick: 1, Storage: storage, MaxInflightMsgs: 1, MaxSizePerMsg: 1,
			Logger: &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)},
		}); err != nil {
			t.Fatalf("Raft does not begin with %v: %v", conf, err)
		}
	})
}

// confRow is the row of a ConfState that encodeConf would not make.
func confRow(c *raftpb.ConfState) []byte {
	b, err := proto.Marshal(c)
	if err != nil {
		panic(err)
	}
	return b
}

// Rows, with checkpoints and reopening anywhere, are a plain sorted map.
func TestRowsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t, Config{})
		defer func() { n.stop() }()
		r := &appRows{id: 5, store: n.store}
		m := mapRows{}
		key := rapid.Custom(func(t *rapid.T) []byte {
			return rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'a', 'b', 0xff}), 0, 3).Draw(t, "key")
		})
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				k, v := key.Draw(rt, "k"), rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(rt, "v")
				r.Put(k, v)
				m.Put(k, append([]byte{}, v...))
			},
			"delete": func(rt *rapid.T) {
				k := key.Draw(rt, "k")
				r.Delete(k)
				m.Delete(k)
			},
			"checkpoint": func(rt *rapid.T) {
				wb := n.store.NewBatch()
				if err := r.flush(wb); err != nil {
					rt.Fatal(err)
				}
				if err := n.store.CommitNoSync(wb); err != nil {
					rt.Fatal(err)
				}
				r.over.clear()
			},
			"get": func(rt *rapid.T) {
				k := key.Draw(rt, "k")
				got, err := r.Get(k)
				want, had := m[string(k)]
				if err != nil || (got != nil) != had || !bytes.Equal(got, want) {
					rt.Fatalf("%x is %x, %v; want %x", k, got, err, want)
				}
			},
			"scan": func(rt *rapid.T) {
				prefix, from := key.Draw(rt, "prefix"), key.Draw(rt, "from")
				limit := rapid.IntRange(1, 20).Draw(rt, "limit")
				scan := func(rows Rows) (out []string) {
					err := rows.Scan(prefix, from, func(k, v []byte) bool {
						out = append(out, fmt.Sprintf("%x=%x", k, v))
						return len(out) < limit
					})
					if err != nil {
						rt.Fatal(err)
					}
					return out
				}
				if got, want := scan(r), scan(m); !slices.Equal(got, want) {
					rt.Fatalf("scan %x from %x:\n%q, want\n%q", prefix, from, got, want)
				}
			},
		})
	})
}

func TestTimersComeInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ts timers
		var want []timer
		for range rapid.IntRange(0, 30).Draw(t, "n") {
			x := timer{Millis(rapid.IntRange(0, 9).Draw(t, "at")), &replica{id: PartitionID(rapid.IntRange(0, 3).Draw(t, "id"))}}
			ts.push(x)
			want = append(want, x)
		}
		slices.SortStableFunc(want, func(a, b timer) int {
			switch {
			case a.before(b):
				return -1
			case b.before(a):
				return 1
			}
			return 0
		})
		for _, w := range want {
			if ts.next() != w.at || ts.due(w.at-1) != nil {
				t.Fatalf("next is %d, want %d", ts.next(), w.at)
			}
			if r := ts.due(w.at); r.id != w.r.id {
				t.Fatalf("%v is due, want %v", r.id, w.r.id)
			}
		}
		if ts.next() != never || ts.due(never) != nil {
			t.Fatal("timers are left")
		}
	})
}

// A batch whose rows were refused half way leaves none behind.
func TestStagedRowsAreReset(t *testing.T) {
	var b rowBuf
	b.end(append(b.begin(logstore.IDs, []byte("k")), "v"...))
	b.reset()
	if len(b.ops) != 0 || len(b.buf) != 0 {
		t.Fatalf("left: %+v", b)
	}
}

func TestFifo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f fifo
		var want []*proposal
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				for range rapid.IntRange(1, 300).Draw(t, "n") {
					p := &proposal{}
					f.push(p)
					want = append(want, p)
				}
			},
			"pop": func(t *rapid.T) {
				for n := rapid.IntRange(1, 400).Draw(t, "n"); n > 0 && len(want) > 0; n-- {
					if f.at(len(want)-1) != want[len(want)-1] || f.pop() != want[0] {
						t.Fatal("out of order")
					}
					want = want[1:]
				}
			},
			"": func(t *rapid.T) {
				if f.len() != len(want) {
					t.Fatalf("%d are left, want %d", f.len(), len(want))
				}
			},
		})
	})
}

func TestConfigValidate(t *testing.T) {
	err := Config{Tick: -1, EntryBytes: 1 << 30, SyncsInFlight: 100, QueueBytes: -1}.Validate()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 6 {
		t.Fatalf("want six faults at once, got %v", err)
	}
	if _, err := Open(Config{}); err == nil {
		t.Fatal("a host without a store was opened")
	}
	if d := (Config{}).withDefaults(); reflect.ValueOf(d).FieldByName("EntryBytes").Int() != 1<<20 || d.Now() < 1e12 {
		t.Fatalf("defaults: %+v", d)
	}
}
