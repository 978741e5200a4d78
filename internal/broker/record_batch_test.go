package broker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/strandmq/strandmq/internal/keyspace"
	"github.com/strandmq/strandmq/internal/record"
	"github.com/strandmq/strandmq/partition"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// route asks for a topic's routing table.
func (a api) route(t testing.TB, topic string) *strandmqv1.RouteResponse {
	t.Helper()
	r, err := a.publish.Route(ctx(t), &strandmqv1.RouteRequest{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hashed gives records the hashes that a publisher gives them.
func hashed(r *strandmqv1.RouteResponse, recs ...record.Record) []record.Record {
	for i := range recs {
		switch x := &recs[i]; {
		case x.HasKey:
			x.KeyHash = keyspace.Hash(r.GetSeed(), x.Key)
		case x.ID != "":
			x.KeyHash = keyspace.HashString(r.GetSeed(), x.ID)
		}
	}
	return recs
}

// keyed is a record as msg makes a message.
func keyed(key, body string) record.Record {
	return record.Record{HasKey: key != "", Key: []byte(key), Body: []byte(body)}
}

// pack makes one batch of records.
func pack(r *strandmqv1.RouteResponse, meta record.Meta, recs ...record.Record) []byte {
	return record.Append(nil, meta, hashed(r, recs...))
}

// partitionOf is where a key goes.
func partitionOf(r *strandmqv1.RouteResponse, key string) uint32 {
	h := keyspace.HashString(r.GetSeed(), key)
	for _, p := range r.GetPartitions() {
		if p.GetHashFirst() <= h && h <= p.GetHashLast() {
			return p.GetPartition()
		}
	}
	return 1 << 31
}

// logOf is the record batches of a partition, as they are stored.
func logOf(t testing.TB, b *Broker, topic string, n int) (out [][]byte) {
	t.Helper()
	m := b.coord.View()
	found, err := m.Topic(topic)
	if err != nil {
		t.Fatal(err)
	}
	host := b.host
	if c, ok := clusters.Load(b); ok {
		host = c.(*cluster).at(c.(*cluster).leader(found.Partitions[n].ID)).host
	}
	err = host.Scan(ctx(t), found.Partitions[n].ID, 0, func(e partition.LogEntry) bool {
		if e.Kind == partition.Batches {
			out = append(out, bytes.Clone(e.Data))
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The same messages, readable or as a record batch, are the same bytes in the
// log and get the same receipts.
func TestBothGiveTheSameLog(t *testing.T) {
	now := time.Now().UnixMilli() // one time for all; of a time long past, retention would leave nothing
	b := start(t, t.TempDir(), func(c *Config) { c.Host.Now = func() partition.Millis { return partition.Millis(now) } })
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	r := a.route(t, "t")
	if len(r.GetPartitions()) != 1 || r.GetPartitions()[0].GetHashLast() != 1<<64-1 || r.GetMaxBodyBytes() != record.MaxBody || r.GetRevision() == 0 {
		t.Fatalf("route %v", r)
	}
	header := func(name, value string) *strandmqv1.Header {
		return &strandmqv1.Header{Name: name, ValueKind: &strandmqv1.Header_ValueBytes{ValueBytes: []byte(value)}}
	}
	readable := []*strandmqv1.Message{
		msg("a", "1"), msg("b", ""), msg("a", strings.Repeat("x", 300)),
		{KeyKind: &strandmqv1.Message_KeyBytes{KeyBytes: []byte{0xff}}, Id: "id-é", Headers: []*strandmqv1.Header{header("h", "\x00"), header("H", "v")}, Body: &strandmqv1.Message_Bytes{Bytes: []byte{0x80}}},
		{Id: "no-key", Body: &strandmqv1.Message_Text{Text: "loose"}},
	}
	raw := func() []byte {
		return pack(r, record.Meta{}, keyed("a", "1"), keyed("b", ""), keyed("a", strings.Repeat("x", 300)),
			record.Record{HasKey: true, Key: []byte{0xff}, ID: "id-é", Headers: []record.Header{{Name: "h", Value: []byte{0}}, {Name: "H", Value: []byte("v")}}, Body: []byte{0x80}},
			record.Record{ID: "no-key", Body: []byte("loose")})
	}
	first := a.store(t, "t", readable...)
	res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", RecordBatch: raw()})
	if err != nil {
		t.Fatal(err)
	}
	log := logOf(t, b, "t", 0)
	if len(log) != 2 || !bytes.Equal(log[0], log[1]) {
		t.Fatalf("two logs:\n%x", log)
	}
	// The same receipts: what has an id was stored before.
	if res.GetRun() != nil || len(res.GetResults()) != 5 {
		t.Fatalf("answer %v", res)
	}
	for i, x := range res.GetResults() {
		got, want := x.GetReceipt(), first[i]
		if repeat := i >= 3; got.GetDuplicate() != repeat || repeat && got.GetOffset() != want.GetOffset() || !repeat && got.GetOffset() != want.GetOffset()+5 {
			t.Fatalf("record %d: %v, and readable %v", i, got, want)
		}
	}

	// A producer's sequence, which calls count from 1 and batches from 0.
	numbered := &strandmqv1.PublishRequest{Topic: "t", ProducerId: "p", FirstSequence: 1, Messages: []*strandmqv1.Message{msg("k", "1"), msg("k", "2")}}
	if _, err := a.publish.Publish(ctx(t), numbered); err != nil {
		t.Fatal(err)
	}
	again, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", RecordBatch: pack(r, record.Meta{ProducerID: "p"}, keyed("k", "1"), keyed("k", "2"))})
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range again.GetResults() {
		if !x.GetReceipt().GetDuplicate() || x.GetReceipt().GetOffset() != uint64(8+i) {
			t.Fatalf("sequence %d: %v", i, x)
		}
	}
	if log = logOf(t, b, "t", 0); len(log) != 4 || !bytes.Equal(log[2], log[3]) {
		t.Fatalf("two logs with sequences:\n%x", log[2:])
	}
	next, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", RecordBatch: pack(r, record.Meta{ProducerID: "p", FirstSequence: 2}, keyed("k", "3"), keyed("other", "4"))})
	if err != nil || next.GetRun().GetFirstOffset() != 10 || next.GetRun().GetCount() != 2 || len(next.GetResults()) != 0 {
		t.Fatalf("next in sequence: %v, %v", next, err)
	}
	gap, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", RecordBatch: pack(r, record.Meta{ProducerID: "p", FirstSequence: 9}, keyed("k", "x"))})
	if err != nil || gap.GetResults()[0].GetProblem().GetReason() != "SEQUENCE_GAP" {
		t.Fatalf("a gap: %v, %v", gap, err)
	}
	// A batch counts its sequences from 0, and so does what is said of it; of
	// readable messages they count from 1.
	if s := gap.GetResults()[0].GetProblem().GetMessage(); !strings.Contains(s, "sends sequence 9 where 4 is next") {
		t.Errorf("a gap in a batch: %s", s)
	}
	// And readers see no difference.
	a.group(t, "t", "g", &strandmqv1.GroupPolicy{Mode: strandmqv1.GroupMode_GROUP_MODE_NONE})
	ds := a.receive(t, "t", "g", "m", 20)
	if len(ds) != 12 || ds[3].GetMessage().GetId() != "id-é" || len(ds[3].GetMessage().GetHeaders()) != 2 || ds[0].GetMessage().GetPublishTime().AsTime().UnixMilli() != now {
		t.Fatalf("received %v", ds)
	}
	// Both count alike.
	want := float64(0)
	for _, m := range []int{1 + 1, 1, 1 + 300, 1 + 5 + 3 + 1 + 1, 6 + 5, 2, 1, 301, 2, 2, 2, 6} {
		want += float64(m)
	}
	if got := metric(t, b, `strandmq_bytes_published_total{topic="t"}`); got != want {
		t.Errorf("%v bytes were counted, want %v", got, want)
	}
	if got := metric(t, b, `strandmq_messages_published_total{topic="t"}`); got != 12 {
		t.Errorf("%v messages were counted", got)
	}
	if got := metric(t, b, `strandmq_messages_duplicate_total{topic="t"}`); got != 4 {
		t.Errorf("%v duplicates were counted", got)
	}
}

// A batch that is wrong is refused whole, says where, and leaves nothing.
func TestRecordBatchRefused(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	if _, err := a.topics.CreateTopic(ctx(t), &strandmqv1.CreateTopicRequest{Topic: "t", Partitions: 4, Config: &strandmqv1.TopicConfig{MaxBodyBytes: new(int64(100))}}); err != nil {
		t.Fatal(err)
	}
	r := a.route(t, "t")
	home := partitionOf(r, "k")
	good := func() []byte { return pack(r, record.Meta{}, keyed("k", "1"), keyed("k", "2")) }
	patch := func(f func(b []byte)) []byte {
		b := good()
		f(b)
		return b
	}
	resealed := func(f func(b []byte)) []byte {
		b := patch(f)
		binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], crc32.MakeTable(crc32.Castagnoli)))
		return b
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		name   string
		batch  []byte
		number uint32
		reason string
		field  string
	}{
		{"checksum", patch(func(b []byte) { b[len(b)-1] ^= 1 }), home, "BAD_RECORD_BATCH", "record_batch"},
		{"cut off", good()[:40], home, "BAD_RECORD_BATCH", "record_batch"},
		{"one byte", []byte{1}, home, "BAD_RECORD_BATCH", "record_batch"},
		{"magic", patch(func(b []byte) { b[0] = 0 }), home, "BAD_RECORD_BATCH", "record_batch"},
		{"version", patch(func(b []byte) { b[2] = 2 }), home, "BAD_RECORD_BATCH", "record_batch"},
		{"flags", resealed(func(b []byte) { b[3] = 0x80 }), home, "BAD_RECORD_BATCH", "record_batch"},
		{"length", patch(func(b []byte) { binary.LittleEndian.PutUint32(b[8:], 1<<31) }), home, "BAD_RECORD_BATCH", "record_batch"},
		{"count 0", resealed(func(b []byte) { binary.LittleEndian.PutUint32(b[12:], 0) }), home, "BAD_RECORD_BATCH", "record_batch"},
		{"count 3", resealed(func(b []byte) { binary.LittleEndian.PutUint32(b[12:], 3) }), home, "BAD_RECORD_BATCH", "record_batch"},
		{"count 1", resealed(func(b []byte) { binary.LittleEndian.PutUint32(b[12:], 1) }), home, "BAD_RECORD_BATCH", "record_batch"},
		{"count 1001", resealed(func(b []byte) { binary.LittleEndian.PutUint32(b[12:], 1001) }), home, "BAD_RECORD_BATCH", "record_batch"},
		{"two batches", append(good(), good()...), home, "BAD_RECORD_BATCH", "record_batch"},
		{"long id", pack(r, record.Meta{}, record.Record{HasKey: true, Key: []byte("k"), ID: long(257)}), home, "BAD_RECORD_BATCH", "record_batch"},
		{"empty key", pack(r, record.Meta{}, keyed("k", ""), record.Record{HasKey: true}), home, "BAD_KEY", "record_batch.records[1].key"},
		{"id", pack(r, record.Meta{}, record.Record{HasKey: true, Key: []byte("k"), ID: "a\nb"}), home, "BAD_ID", "record_batch.records[0].id"},
		{"header", pack(r, record.Meta{}, record.Record{HasKey: true, Key: []byte("k"), Headers: []record.Header{{Name: "ok"}, {Name: "no token"}}}), home, "BAD_HEADER", "record_batch.records[0].headers[1].name"},
		{"our header", pack(r, record.Meta{}, record.Record{HasKey: true, Key: []byte("k"), Headers: []record.Header{{Name: "Strandmq-X"}}}), home, "BAD_HEADER", "record_batch.records[0].headers[0].name"},
		{"body", pack(r, record.Meta{}, keyed("k", long(101))), home, "BODY_TOO_LARGE", "record_batch.records[0].body"},
		{"producer", pack(r, record.Meta{ProducerID: "a b"}, keyed("k", "")), home, "BAD_NAME", "producer_id"},
		{"long producer", pack(r, record.Meta{ProducerID: long(65)}, keyed("k", "")), home, "BAD_NAME", "producer_id"},
		{"sequence without producer", pack(r, record.Meta{FirstSequence: 1}, keyed("k", "")), home, "BAD_VALUE", "first_sequence"},
		{"last sequence", pack(r, record.Meta{ProducerID: "p", FirstSequence: 1<<64 - 1}, keyed("k", "")), home, "BAD_VALUE", "first_sequence"},
		{"other partition", good(), (home + 1) % 4, "STALE_ROUTE", "record_batch"},
		{"no partition", good(), 4, "STALE_ROUTE", "record_batch"},
		{"other seed", record.Append(nil, record.Meta{}, []record.Record{{KeyHash: r.GetPartitions()[home].GetHashFirst(), HasKey: true, Key: []byte("k")}}), home, "STALE_ROUTE", "record_batch"},
		{"other hash of an id", record.Append(nil, record.Meta{}, []record.Record{{KeyHash: r.GetPartitions()[home].GetHashFirst(), ID: "i"}}), home, "STALE_ROUTE", "record_batch"},
		{"keyless elsewhere", record.Append(nil, record.Meta{}, []record.Record{{KeyHash: r.GetPartitions()[(home+1)%4].GetHashFirst()}}), home, "STALE_ROUTE", "record_batch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", RecordBatch: c.batch, Partition: c.number})
			wantReason(t, err, c.reason)
			if p := problemOf(err); p.GetField() != c.field || p.GetRetryAfterMs() != 0 {
				t.Errorf("problem %v, want field %s", p, c.field)
			}
			var now *strandmqv1.RouteResponse
			for _, d := range err.(*connect.Error).Details() { //nolint:forcetypeassert // wantReason has seen to it
				if v, err := d.Value(); err == nil {
					if x, ok := v.(*strandmqv1.RouteResponse); ok {
						now = x
					}
				}
			}
			if stale := c.reason == "STALE_ROUTE"; stale != (now != nil) || stale && now.GetSeed() != r.GetSeed() {
				t.Errorf("the route with it: %v", now)
			}
		})
	}
	for name, req := range map[string]*strandmqv1.PublishRequest{
		"record_batch": {RecordBatch: good(), Messages: []*strandmqv1.Message{msg("k", "")}},
		"producer_id":  {RecordBatch: good(), ProducerId: "p"},
	} {
		req.Topic, req.Partition = "t", home
		_, err := a.publish.Publish(ctx(t), req)
		wantReason(t, err, "BAD_VALUE")
		if p := problemOf(err); p.GetField() != name {
			t.Errorf("field %q, want %q", p.GetField(), name)
		}
	}
	for i := range 4 {
		if log := logOf(t, b, "t", i); len(log) != 0 {
			t.Errorf("partition %d holds %d batches", i, len(log))
		}
	}
	// A keyless record may have any hash of the partition.
	res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Partition: home, RecordBatch: record.Append(nil, record.Meta{}, []record.Record{
		{KeyHash: r.GetPartitions()[home].GetHashFirst()}, {KeyHash: r.GetPartitions()[home].GetHashLast()},
	})})
	if err != nil || res.GetRun().GetCount() != 2 || res.GetRun().GetPartition() != home {
		t.Fatalf("keyless: %v, %v", res, err)
	}
}

// Records of one batch can fare differently.
func TestRecordBatchPartly(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	r := a.route(t, "t")
	one := func(id, body string) record.Record {
		return record.Record{HasKey: true, Key: []byte("k"), ID: id, Body: []byte(body)}
	}
	send := func(recs ...record.Record) *strandmqv1.PublishResponse {
		t.Helper()
		res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", RecordBatch: pack(r, record.Meta{}, recs...)})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if run := send(one("1", "x"), one("2", "x")).GetRun(); run.GetCount() != 2 || run.GetFirstOffset() != 0 {
		t.Fatalf("first: %v", run)
	}
	var got []string
	for _, x := range send(one("3", "x"), one("1", "x"), one("2", "other"), one("3", "x"), one("4", "x")).GetResults() {
		got = append(got, fmt.Sprintf("%d %v %s %s", x.GetReceipt().GetOffset(), x.GetReceipt().GetDuplicate(), x.GetProblem().GetReason(), x.GetProblem().GetField()))
	}
	want := []string{"2 false  ", "0 true  ", "0 false ID_REUSED record_batch.records[2].id", "2 true  ", "3 false  "}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Fatalf("got %q, want %q", got, want)
	}
	if got := metric(t, b, `strandmq_bytes_published_total{topic="t"}`); got != 4*3 {
		t.Errorf("%v bytes were counted", got)
	}
	if got := metric(t, b, `strandmq_messages_refused_total{reason="ID_REUSED",topic="t"}`); got != 1 {
		t.Errorf("%v refused were counted", got)
	}
}

// metric is one sample of /metrics.
func metric(t *testing.T, b *Broker, name string) float64 {
	t.Helper()
	_, body := get(t, b.URL()+"/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return 0
}
