package broker

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// What is wrong with a call as a whole: each with its reason, and the broker
// none the worse for it.
func TestBadCalls(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 2)
	a.group(t, "t", "g", nil)
	long := strings.Repeat("x", 201)
	many := make([]*strandmqv1.Message, 1001)
	for i := range many {
		many[i] = msg("k", "x")
	}
	big := make([]*strandmqv1.Message, 6)
	for i := range big {
		big[i] = msg("k", strings.Repeat("x", 1<<20))
	}
	publish := func(r *strandmqv1.PublishRequest) func() error {
		return func() error { _, err := a.publish.Publish(ctx(t), r); return err }
	}
	create := func(r *strandmqv1.CreateTopicRequest) func() error {
		return func() error { _, err := a.topics.CreateTopic(ctx(t), r); return err }
	}
	group := func(r *strandmqv1.CreateGroupRequest) func() error {
		return func() error { _, err := a.groups.CreateGroup(ctx(t), r); return err }
	}
	receive := func(r *strandmqv1.ReceiveRequest) func() error {
		return func() error { _, err := a.consume.Receive(ctx(t), r); return err }
	}
	settle := func(r *strandmqv1.SettleRequest) func() error {
		return func() error { _, err := a.consume.Settle(ctx(t), r); return err }
	}
	reset := func(r *strandmqv1.ResetGroupRequest) func() error {
		return func() error { _, err := a.groups.ResetGroup(ctx(t), r); return err }
	}
	replay := func(s *strandmqv1.DeadLetterSelector) func() error {
		return func() error {
			_, err := a.dead.ReplayDeadLetters(ctx(t), &strandmqv1.ReplayDeadLettersRequest{Topic: "t", Group: "g", Which: s})
			return err
		}
	}
	trace := func(r *strandmqv1.TraceRequest) func() error {
		return func() error { _, err := a.trace.Trace(ctx(t), r); return err }
	}
	for _, c := range []struct {
		name   string
		call   func() error
		reason string
	}{
		{"publish to no topic", publish(&strandmqv1.PublishRequest{Messages: many[:1]}), "BAD_NAME"},
		{"publish to an unknown topic", publish(&strandmqv1.PublishRequest{Topic: "nowhere", Messages: many[:1]}), "UNKNOWN_TOPIC"},
		{"publish nothing", publish(&strandmqv1.PublishRequest{Topic: "t"}), "BAD_VALUE"},
		{"publish too many", publish(&strandmqv1.PublishRequest{Topic: "t", Messages: many}), "BATCH_TOO_LARGE"},
		{"publish too much", publish(&strandmqv1.PublishRequest{Topic: "t", Messages: big}), "BATCH_TOO_LARGE"},
		{"sequence without producer", publish(&strandmqv1.PublishRequest{Topic: "t", Messages: many[:1], FirstSequence: 1}), "BAD_VALUE"},
		{"producer without sequence", publish(&strandmqv1.PublishRequest{Topic: "t", Messages: many[:1], ProducerId: "p"}), "BAD_VALUE"},
		{"producer with a bad name", publish(&strandmqv1.PublishRequest{Topic: "t", Messages: many[:1], ProducerId: "a/b", FirstSequence: 1}), "BAD_NAME"},
		{"producer with two keys", publish(&strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("a", ""), msg("b", "")}, ProducerId: "p", FirstSequence: 1}), "BAD_VALUE"},
		{"sequence at the end", publish(&strandmqv1.PublishRequest{Topic: "t", Messages: many[:2], ProducerId: "p", FirstSequence: math.MaxUint64}), "BAD_VALUE"},

		{"topic without name", create(&strandmqv1.CreateTopicRequest{}), "BAD_NAME"},
		{"topic with a path", create(&strandmqv1.CreateTopicRequest{Topic: "../../etc/passwd"}), "BAD_NAME"},
		{"topic with a dot first", create(&strandmqv1.CreateTopicRequest{Topic: ".hidden"}), "BAD_NAME"},
		{"topic with a line end", create(&strandmqv1.CreateTopicRequest{Topic: "a\r\nSet-Cookie: x"}), "BAD_NAME"},
		{"topic with NUL", create(&strandmqv1.CreateTopicRequest{Topic: "a\x00b"}), "BAD_NAME"},
		{"topic with an escape", create(&strandmqv1.CreateTopicRequest{Topic: "a\x1b[2Jb"}), "BAD_NAME"},
		{"topic with a look-alike", create(&strandmqv1.CreateTopicRequest{Topic: "оrders"}), "BAD_NAME"},
		{"topic too long", create(&strandmqv1.CreateTopicRequest{Topic: long}), "BAD_NAME"},
		{"topic of the broker's", create(&strandmqv1.CreateTopicRequest{Topic: "strandmq.x"}), "BAD_NAME"},
		{"too many partitions", create(&strandmqv1.CreateTopicRequest{Topic: "p", Partitions: math.MaxUint32}), "BAD_VALUE"},
		{"negative retention", create(&strandmqv1.CreateTopicRequest{Topic: "p", Config: &strandmqv1.TopicConfig{RetentionMs: proto.Int64(-1)}}), "BAD_POLICY"},
		{"absurd body limit", create(&strandmqv1.CreateTopicRequest{Topic: "p", Config: &strandmqv1.TopicConfig{MaxBodyBytes: proto.Int64(math.MaxInt64)}}), "BAD_POLICY"},
		{"other settings", create(&strandmqv1.CreateTopicRequest{Topic: "t", Partitions: 3}), "TOPIC_EXISTS"},

		{"group of no topic", group(&strandmqv1.CreateGroupRequest{Topic: "nowhere", Group: "x"}), "UNKNOWN_TOPIC"},
		{"group with a bad name", group(&strandmqv1.CreateGroupRequest{Topic: "t", Group: "a b"}), "BAD_NAME"},
		{"group with other policy", group(&strandmqv1.CreateGroupRequest{Topic: "t", Group: "g", Policy: &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(9)}}), "GROUP_EXISTS"},
		{"group with an absurd deadline", group(&strandmqv1.CreateGroupRequest{Topic: "t", Group: "x", Policy: &strandmqv1.GroupPolicy{AckDeadlineMs: proto.Int64(math.MaxInt64)}}), "BAD_POLICY"},
		{"group with a negative backoff", group(&strandmqv1.CreateGroupRequest{Topic: "t", Group: "x", Policy: &strandmqv1.GroupPolicy{BackoffMs: proto.Int64(-1)}}), "BAD_POLICY"},
		{"group with an unknown mode", group(&strandmqv1.CreateGroupRequest{Topic: "t", Group: "x", Policy: &strandmqv1.GroupPolicy{Mode: 77}}), "BAD_POLICY"},
		{"group that starts at no time", group(&strandmqv1.CreateGroupRequest{Topic: "t", Group: "x", Start: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Time{Time: &timestamppb.Timestamp{Seconds: math.MaxInt64}}}}), "BAD_VALUE"},
		{"group that starts at an absurd offset", group(&strandmqv1.CreateGroupRequest{Topic: "t", Group: "x", Start: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: math.MaxUint64}}}), "BAD_VALUE"},

		{"receive without member", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g"}), "BAD_NAME"},
		{"receive of no group", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "x", Member: "m"}), "UNKNOWN_GROUP"},
		{"receive too many", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", MaxMessages: 1001}), "BAD_VALUE"},
		{"receive with a negative wait", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", WaitMs: -1}), "BAD_VALUE"},
		{"receive with an absurd wait", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", WaitMs: math.MaxInt64}), "BAD_VALUE"},
		{"receive with too many bytes", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", MaxBytes: math.MaxUint32}), "BAD_VALUE"},
		{"receive with an unknown format", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", BodyFormat: 77}), "BAD_VALUE"},
		{"receive with a bad session", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", Session: "01"}), "BAD_VALUE"},
		{"receive with a made-up session", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", Session: "99999-00000000"}), "UNKNOWN_SESSION"},
		{"receive with half a session", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", Session: "1"}), "BAD_VALUE"},
		{"receive with a long request id", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", RequestId: long}), "BAD_VALUE"},
		{"receive with a line end in the request id", receive(&strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: "m", RequestId: "a\nb"}), "BAD_VALUE"},

		{"settle nothing", settle(&strandmqv1.SettleRequest{Topic: "t", Group: "g"}), "BAD_VALUE"},
		{"settle too many", settle(&strandmqv1.SettleRequest{Topic: "t", Group: "g", Settlements: make1001()}), "BATCH_TOO_LARGE"},
		{"settle in no group", settle(&strandmqv1.SettleRequest{Topic: "t", Group: "x", Settlements: make1001()[:1]}), "UNKNOWN_GROUP"},

		{"reset to nowhere", reset(&strandmqv1.ResetGroupRequest{Topic: "t", Group: "g"}), "BAD_VALUE"},
		{"reset of no partition", reset(&strandmqv1.ResetGroupRequest{Topic: "t", Group: "g", Partition: proto.Uint32(2), To: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Earliest{Earliest: true}}}), "UNKNOWN_PARTITION"},

		{"replay nothing", replay(nil), "BAD_VALUE"},
		{"replay an empty key", replay(&strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Key{}}), "BAD_KEY"},
		{"replay an unknown id", replay(&strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Id{Id: "x"}}), "UNKNOWN_DEAD_LETTER"},
		{"replay what is not dead", replay(&strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Place{Place: &strandmqv1.MessagePlace{Offset: 7}}}), "UNKNOWN_DEAD_LETTER"},
		{"replay in no partition", replay(&strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_Place{Place: &strandmqv1.MessagePlace{Partition: math.MaxUint32}}}), "UNKNOWN_PARTITION"},
		{"list with a bad page", func() error {
			_, err := a.dead.ListDeadLetters(ctx(t), &strandmqv1.ListDeadLettersRequest{Topic: "t", Group: "g", PageToken: "!"})
			return err
		}, "BAD_VALUE"},
		{"discard all without the name", func() error {
			_, err := a.dead.DiscardDeadLetters(ctx(t), &strandmqv1.DiscardDeadLettersRequest{Topic: "t", Group: "g", Which: &strandmqv1.DeadLetterSelector{Which: &strandmqv1.DeadLetterSelector_All{All: true}}})
			return err
		}, "NOT_CONFIRMED"},
		{"delete a group without the name", func() error {
			_, err := a.groups.DeleteGroup(ctx(t), &strandmqv1.DeleteGroupRequest{Topic: "t", Group: "g", Confirm: "t"})
			return err
		}, "NOT_CONFIRMED"},
		{"delete a topic without the name", func() error {
			_, err := a.topics.DeleteTopic(ctx(t), &strandmqv1.DeleteTopicRequest{Topic: "t"})
			return err
		}, "NOT_CONFIRMED"},

		{"trace nothing", trace(&strandmqv1.TraceRequest{Topic: "t"}), "BAD_VALUE"},
		{"trace an unknown id", trace(&strandmqv1.TraceRequest{Topic: "t", Which: &strandmqv1.TraceRequest_Id{Id: "x"}}), "UNKNOWN_MESSAGE"},
		{"reset beyond the end", reset(&strandmqv1.ResetGroupRequest{Topic: "t", Group: "g", To: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: 1}}}), "OFFSET_BEYOND_END"},
		{"reset beyond the end, dry", reset(&strandmqv1.ResetGroupRequest{Topic: "t", Group: "g", DryRun: true, Partition: proto.Uint32(0), To: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: 1}}}), "OFFSET_BEYOND_END"},
		{"group that starts beyond the end", group(&strandmqv1.CreateGroupRequest{Topic: "t", Group: "x", Start: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: 1}}}), "OFFSET_BEYOND_END"},
		{"group that is there and was to start beyond the end", group(&strandmqv1.CreateGroupRequest{Topic: "t", Group: "g", Policy: &strandmqv1.GroupPolicy{MaxAttempts: proto.Uint32(9)}, Start: &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: 1}}}), "GROUP_EXISTS"},

		{"trace beyond the end", trace(&strandmqv1.TraceRequest{Topic: "t", Which: &strandmqv1.TraceRequest_Place{Place: &strandmqv1.MessagePlace{Offset: 5}}}), "UNKNOWN_MESSAGE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantReason(t, c.call(), c.reason)
		})
	}
	// After all that it works.
	a.store(t, "t", msg("k", "x"))
	d := a.one(t, "t", "g", "m")
	a.done(t, "t", "g", d, ack, "")
}

func make1001() []*strandmqv1.Settlement {
	out := make([]*strandmqv1.Settlement, 1001)
	for i := range out {
		out[i] = &strandmqv1.Settlement{Token: "x", Action: ack}
	}
	return out
}

// A body that does not come whole gets a typed answer without addresses, over
// every protocol and compressed or not, and no second one.
func TestBodyThatDoesNotCome(t *testing.T) {
	t.Parallel() // it waits
	b := start(t, t.TempDir(), func(c *Config) { c.TransferTime = 3 * time.Second })
	for _, c := range []struct {
		name, path, headers string
		cut                 bool // the caller is done sending; else it stalls
		status, reason      string
	}{
		{"stalled", "/strandmq.v1.PublishService/Publish", "Content-Type: application/json\r\n", false, "HTTP/1.1 408 ", "REQUEST_SLOW"},
		{"stalled, binary", "/strandmq.v1.TopicService/ListTopics", "Content-Type: application/proto\r\n", false, "HTTP/1.1 408 ", "REQUEST_SLOW"},
		{"stalled, compressed", "/strandmq.v1.PublishService/Publish", "Content-Type: application/json\r\nContent-Encoding: gzip\r\n", false, "HTTP/1.1 408 ", "REQUEST_SLOW"},
		{"stalled, gRPC-Web", "/strandmq.v1.PublishService/Publish", "Content-Type: application/grpc-web+proto\r\n", false, "HTTP/1.1 200 ", "within 3s"},
		{"cut off", "/strandmq.v1.PublishService/Publish", "Content-Type: application/json\r\n", true, "HTTP/1.1 400 ", "BAD_REQUEST"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(b.URL(), "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(soon))
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 1000\r\n\r\n{", c.path, c.headers)
			if c.cut {
				if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			text, _ := io.ReadAll(conn) // to the end: the connection is closed
			if !strings.HasPrefix(string(text), c.status) || !strings.Contains(string(text), c.reason) {
				t.Errorf("got %q", text)
			}
			if strings.Contains(string(text), "127.0.0.1") || strings.Contains(string(text), "tcp") || strings.Count(string(text), "HTTP/1.1") != 1 {
				t.Errorf("it tells too much: %q", text)
			}
		})
	}
}

// Headers that do not come: the connection is closed, with a word if some of them came.
func TestHeadersThatDoNotCome(t *testing.T) {
	t.Parallel()                                                                     // it waits
	b := start(t, t.TempDir(), func(c *Config) { c.TransferTime = 2 * time.Second }) // half of them come before
	for _, c := range []struct{ name, sent, status string }{
		{"none", "", ""},
		{"half", "POST /strandmq.v1.PublishService/Publish HTTP/1.1\r\nHost", "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(b.URL(), "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(soon))
			fmt.Fprint(conn, c.sent)
			text, err := io.ReadAll(conn) // to the end: the connection is closed
			if err != nil || !strings.HasPrefix(string(text), c.status) || c.status == "" && len(text) > 0 || strings.Contains(string(text), "127.0.0.1") {
				t.Errorf("got %q, %v", text, err)
			}
		})
	}
}

// What is wrong with single messages: refused one by one, in their places, and
// their neighbours stored.
func TestBadMessages(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	header := func(name, value string) *strandmqv1.Message {
		m := msg("k", "x")
		m.Headers = []*strandmqv1.Header{{Name: name, ValueKind: &strandmqv1.Header_Value{Value: value}}}
		return m
	}
	id := func(id string) *strandmqv1.Message { m := msg("k", "x"); m.Id = id; return m }
	many := msg("k", "x")
	for range 65 {
		many.Headers = append(many.Headers, &strandmqv1.Header{Name: "h"})
	}
	js := func(v *structpb.Value) *strandmqv1.Message {
		return &strandmqv1.Message{Body: &strandmqv1.Message_Json{Json: v}}
	}
	bad := []struct {
		m      *strandmqv1.Message
		reason string
		field  string
	}{
		{&strandmqv1.Message{KeyKind: &strandmqv1.Message_Key{}}, "BAD_KEY", "key"},
		{msg(strings.Repeat("k", 4097), "x"), "BAD_KEY", "key"},
		{id(strings.Repeat("i", 257)), "BAD_ID", "id"},
		{id("a\nb"), "BAD_ID", "id"},
		{header("", "x"), "BAD_HEADER", "headers[0].name"},
		{header("a b", "x"), "BAD_HEADER", "headers[0].name"},
		{header("a:", "x"), "BAD_HEADER", "headers[0].name"},
		{header("strandmq-x", "x"), "BAD_HEADER", "headers[0].name"},
		{header("a", "x\r\nb: y"), "BAD_HEADER", "headers[0].value"},
		{header("a", "x\x00"), "BAD_HEADER", "headers[0].value"},
		{header("a", strings.Repeat("x", 16385)), "BAD_HEADER", "headers"},
		{many, "BAD_HEADER", "headers"},
		{msg("k", strings.Repeat("x", 1<<20+1)), "BODY_TOO_LARGE", "body"},
		{js(structpb.NewNumberValue(1 << 53)), "BAD_BODY", "json"},
		{js(&structpb.Value{}), "BAD_BODY", "json"},
	}
	var ms []*strandmqv1.Message
	for _, c := range bad {
		ms = append(ms, msg("k", "good"), c.m)
	}
	res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: ms})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range bad {
		if r := res.GetResults()[2*i].GetReceipt(); r == nil || r.GetOffset() != uint64(i) {
			t.Errorf("neighbour %d: %v", i, res.GetResults()[2*i])
		}
		p := res.GetResults()[2*i+1].GetProblem()
		if p.GetReason() != c.reason || p.GetField() != fmt.Sprintf("messages[%d].%s", 2*i+1, c.field) || p.GetRetryAfterMs() != 0 || p.GetMessage() == "" {
			t.Errorf("message %d: got %v, want %s of %s", i, p, c.reason, c.field)
		}
	}
	// The same id with another body is refused, and names where the first is.
	a.store(t, "t", id("one"))
	other := id("one")
	other.Body = &strandmqv1.Message_Text{Text: "other"}
	res, err = a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{other}})
	if err != nil {
		t.Fatal(err)
	}
	if p := res.GetResults()[0].GetProblem(); p.GetReason() != "ID_REUSED" || p.GetField() != "messages[0].id" {
		t.Fatalf("got %v", p)
	}
}

// A producer's sequence: repeats get their receipts, gaps are refused, and what
// follows a refused message is not sent.
func TestProducerSequence(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 4)
	send := func(first uint64, ms ...*strandmqv1.Message) []*strandmqv1.PublishResult {
		t.Helper()
		res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", ProducerId: "p", FirstSequence: first, Messages: ms})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetResults()
	}
	first := send(1, msg("k", "1"), msg("k", "2"))
	again := send(1, msg("k", "1"), msg("k", "2"), msg("k", "3"))
	for i, r := range first {
		if again[i].GetReceipt().GetOffset() != r.GetReceipt().GetOffset() || !again[i].GetReceipt().GetDuplicate() {
			t.Fatalf("repeat %d: %v, first %v", i, again[i], r)
		}
	}
	if r := again[2].GetReceipt(); r == nil || r.GetDuplicate() {
		t.Fatalf("the new one: %v", again[2])
	}
	if p := send(5, msg("k", "5"))[0].GetProblem(); p.GetReason() != "SEQUENCE_GAP" || !strings.Contains(p.GetMessage(), "sends sequence 5 where") {
		t.Fatalf("a gap: %v", p)
	}
	if p := send(2, msg("k", "other"))[0].GetProblem(); p.GetReason() != "SEQUENCE_REUSED" {
		t.Fatalf("another message of an old number: %v", p)
	}
	bad := msg("k", "x")
	bad.Headers = []*strandmqv1.Header{{Name: "h", ValueKind: &strandmqv1.Header_Value{Value: "\n"}}}
	res := send(4, msg("k", "4"), bad, msg("k", "6"))
	if res[0].GetReceipt() == nil || res[1].GetProblem().GetReason() != "BAD_HEADER" || res[2].GetProblem().GetReason() != "NOT_SENT" {
		t.Fatalf("around a refused message: %v", res)
	}
}

// Requests that do not decode, or are too large, over raw HTTP.
func TestBadRequests(t *testing.T) {
	b := start(t, t.TempDir())
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := io.CopyN(z, zeros{}, 64<<20); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	nested := structpb.NewNullValue()
	for range 5000 {
		nested = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{nested}})
	}
	deepProto, err := proto.Marshal(&strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{{Body: &strandmqv1.Message_Json{Json: nested}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		path   string
		kind   string
		coding string
		body   string
		status int
		reason string // empty: an error of the protocol, with a code alone
	}{
		{"empty", "PublishService/Publish", "application/json", "", "", 400, "BAD_REQUEST"},
		{"not JSON", "PublishService/Publish", "application/json", "", "hello", 400, "BAD_REQUEST"},
		{"cut off", "PublishService/Publish", "application/json", "", `{"topic":"t"`, 400, "BAD_REQUEST"},
		{"two values", "PublishService/Publish", "application/json", "", `{}{}`, 400, "BAD_REQUEST"},
		{"a list", "PublishService/Publish", "application/json", "", `[]`, 400, "BAD_REQUEST"},
		{"unknown field", "PublishService/Publish", "application/json", "", `{"topic":"t","mesages":[]}`, 400, "BAD_REQUEST"},
		{"duplicate field", "PublishService/Publish", "application/json", "", `{"topic":"t","topic":"u"}`, 400, "BAD_REQUEST"},
		{"two bodies", "PublishService/Publish", "application/json", "", `{"topic":"t","messages":[{"text":"a","bytes":"AA=="}]}`, 400, "BAD_REQUEST"},
		{"bad base64", "PublishService/Publish", "application/json", "", `{"topic":"t","messages":[{"bytes":"$"}]}`, 400, "BAD_REQUEST"},
		{"invalid UTF-8", "PublishService/Publish", "application/json", "", "{\"topic\":\"\xff\"}", 400, "BAD_REQUEST"},
		{"half a surrogate", "PublishService/Publish", "application/json", "", `{"topic":"\ud800"}`, 400, "BAD_REQUEST"},
		{"deep", "PublishService/Publish", "application/json", "", `{"topic":"t","messages":[{"json":` + deep(100_000) + `}]}`, 400, "BAD_REQUEST"},
		{"deep and open", "PublishService/Publish", "application/json", "", strings.Repeat(`{"messages":[`, 50_000), 400, "BAD_REQUEST"},
		{"negative partitions", "TopicService/CreateTopic", "application/json", "", `{"topic":"t","partitions":-1}`, 400, "BAD_REQUEST"},
		{"absurd number", "TopicService/CreateTopic", "application/json", "", `{"topic":"t","partitions":1e400}`, 400, "BAD_REQUEST"},
		{"long number", "TopicService/CreateTopic", "application/json", "", `{"topic":"t","partitions":` + strings.Repeat("9", 100_000) + `}`, 400, "BAD_REQUEST"},
		{"decimal that would change", "PublishService/Publish", "application/json", "", `{"topic":"t","messages":[{"text":"x"}],"x":0.12345678901234567890}`, 400, "BAD_REQUEST"},
		{"invalid UTF-8 in binary", "TopicService/CreateTopic", "application/proto", "", "\x0a\x02\xff\xfe", 400, "BAD_REQUEST"},
		{"cut off binary", "TopicService/CreateTopic", "application/proto", "", "\x0a\x7f", 400, "BAD_REQUEST"},
		{"deep binary", "PublishService/Publish", "application/proto", "", string(deepProto), 400, "BAD_REQUEST"},
		{"too large", "TopicService/CreateTopic", "application/json", "", `{"topic":"` + strings.Repeat("x", 10<<20) + `"}`, 413, "REQUEST_TOO_LARGE"},
		{"bomb", "PublishService/Publish", "application/json", "gzip", bomb.String(), 400, "BAD_COMPRESSION"},
		{"not gzip", "PublishService/Publish", "application/json", "gzip", `{"topic":"t"}`, 400, "BAD_REQUEST"},
		{"gzip cut off", "PublishService/Publish", "application/json", "gzip", bomb.String()[:20], 400, "BAD_REQUEST"},
		{"unknown compression", "PublishService/Publish", "application/json", "br", "x", 415, "BAD_CONTENT_TYPE"},
		{"unknown method", "PublishService/Nonsense", "application/json", "", "{}", 404, "UNKNOWN_METHOD"},
		{"unknown service", "NonsenseService/Nonsense", "application/json", "", "{}", 404, "UNKNOWN_METHOD"},
		{"form", "TopicService/CreateTopic", "application/x-www-form-urlencoded", "", "topic=x", 415, "BAD_CONTENT_TYPE"},
		{"text", "TopicService/CreateTopic", "text/plain", "", `{"topic":"x"}`, 415, "BAD_CONTENT_TYPE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, err := http.NewRequest("POST", b.URL()+"/strandmq.v1."+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", c.kind)
			if c.coding != "" {
				req.Header.Set("Content-Encoding", c.coding)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != c.status {
				body, _ := io.ReadAll(res.Body)
				t.Fatalf("status %d, want %d: %.300s", res.StatusCode, c.status, body)
			}
			if c.reason != "" {
				if got := wireReason(t, res); got != c.reason {
					t.Fatalf("reason %s, want %s", got, c.reason)
				}
			}
		})
	}
	// An endless body with a method behind it.
	req, err := http.NewRequest("POST", b.URL()+"/strandmq.v1.PublishService/Publish", io.MultiReader(strings.NewReader(`{"topic":"`), spaces{}))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err == nil {
		if got := wireReason(t, res); got != "REQUEST_TOO_LARGE" {
			t.Fatalf("endless body: %s", got)
		}
	} // else the server cut the connection while the client still wrote
	// GET changes nothing, whatever it asks for.
	res, err = http.Get(b.URL() + "/strandmq.v1.TopicService/CreateTopic?connect=v1&encoding=json&message=%7B%22topic%22%3A%22x%22%7D")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusMethodNotAllowed {
		t.Fatalf("GET: %d", res.StatusCode)
	}
	a := newAPI(t, b.URL())
	list, err := a.topics.ListTopics(ctx(t), &strandmqv1.ListTopicsRequest{})
	if err != nil || len(list.GetTopics()) != 0 {
		t.Fatalf("topics after all that: %v, %v", list, err)
	}
}

// spaces never ends, and is a string.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// A method that panics answers INTERNAL without what it said, over every
// protocol, and the broker goes on.
func TestPanicInACall(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	saved := b.publisher
	b.publisher = nil // every publish panics now
	for _, opts := range [][]connect.ClientOption{nil, {connect.WithGRPCWeb()}} {
		_, err := newAPI(t, b.URL(), opts...).publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", Messages: []*strandmqv1.Message{msg("k", "x")}})
		wantReason(t, err, "INTERNAL")
		if strings.Contains(err.Error(), "nil pointer") {
			t.Fatalf("the panic shows: %v", err)
		}
	}
	b.publisher = saved
	a.store(t, "t", msg("k", "x"))
}

// Heads that do not end, or are too large, are cut.
func TestBadHeads(t *testing.T) {
	t.Parallel() // it waits
	b := start(t, t.TempDir(), func(c *Config) { c.TransferTime = 2 * time.Second })
	send := func(head string) string {
		t.Helper()
		conn, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(soon))
		go func() { _, _ = io.WriteString(conn, head) }() // the broker may stop reading
		out, err := io.ReadAll(conn)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Fatalf("the connection stays open after %.30q", head)
		}
		return string(out)
	}
	if got := send("GET /livez HTTP/1.1\r\nHost: local"); strings.Contains(got, "200 OK") {
		t.Errorf("half a head: %q", got)
	}
	var many strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&many, "X-%d: y\r\n", i)
	}
	if got := send("GET /livez HTTP/1.1\r\nHost: localhost\r\n" + many.String() + "\r\n"); got != "" && !strings.HasPrefix(got, "HTTP/1.1 431 ") {
		t.Errorf("10,000 headers: %.100q", got)
	}
	for _, head := range []string{
		"GET /livez HTTP/1.1\r\n\r\n",                                          // no host
		"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", // two
		"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
		"GET /livez HTTP/1.1\r\nHost: \r\nConnection: close\r\n\r\n",
	} {
		if got := send(head); strings.HasPrefix(got, "HTTP/1.1 200 ") {
			t.Errorf("%q was served", head)
		}
	}
}

// In order, nothing that stands behind a refused message is stored: whoever mends
// it and sends the call again has the order of the call.
func TestInOrder(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 4)
	send := func(ms ...*strandmqv1.Message) (got []string) {
		t.Helper()
		res, err := a.publish.Publish(ctx(t), &strandmqv1.PublishRequest{Topic: "t", InOrder: true, Messages: ms})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range res.GetResults() {
			switch {
			case r.GetProblem() != nil:
				got = append(got, r.GetProblem().GetReason())
			case r.GetReceipt().GetDuplicate():
				got = append(got, "duplicate")
			default:
				got = append(got, "stored")
			}
		}
		return got
	}
	named := func(key, id, body string) *strandmqv1.Message {
		m := msg(key, body)
		m.Id = id
		return m
	}
	header := msg("k", "x")
	header.Headers = []*strandmqv1.Header{{Name: "h", ValueKind: &strandmqv1.Header_Value{Value: "\n"}}}
	large := msg("k", strings.Repeat("x", 1<<20+1))
	long := msg(strings.Repeat("k", 4097), "x")
	for _, bad := range []*strandmqv1.Message{header, large, long, named("k", strings.Repeat("i", 257), "x")} {
		got := send(msg("k", "1"), msg("l", "2"), bad, msg("k", "3"), msg("l", "4"))
		if got[0] != "stored" || got[1] != "stored" || got[2] == "stored" || got[3] != "NOT_SENT" || got[4] != "NOT_SENT" {
			t.Errorf("around a refused message: %v", got)
		}
	}
	// An id that is taken is found out in the log, after the others were judged.
	got := send(named("k", "1", "a"), named("k", "2", "b"), named("k", "1", "other"), named("k", "3", "c"), named("k", "2", "b"), msg("k", "d"))
	if want := "stored stored ID_REUSED NOT_SENT duplicate NOT_SENT"; strings.Join(got, " ") != want {
		t.Errorf("around an id that is taken: %v, want %s", got, want)
	}
	for _, req := range []*strandmqv1.PublishRequest{
		{Topic: "t", InOrder: true, ProducerId: "p", FirstSequence: 1, Messages: []*strandmqv1.Message{msg("k", "1")}},
		{Topic: "t", InOrder: true, RecordBatch: []byte{1}},
	} {
		_, err := a.publish.Publish(ctx(t), req)
		if err == nil || !strings.Contains(err.Error(), "in_order") {
			t.Errorf("%v: %v", req, err)
		}
	}
}
