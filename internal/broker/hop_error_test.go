package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/consumer"
	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/internal/format"
	"github.com/strandmq/strandmq/internal/names"
	"github.com/strandmq/strandmq/internal/peer"
	"github.com/strandmq/strandmq/partition"
	"github.com/strandmq/strandmq/partition/logstore"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
	"github.com/strandmq/strandmq/router"
)

// Whatever a caller would be told by the node that refused, it is told behind an
// edge, and what the edge tells apart by type keeps it, even when it was wrapped.
func TestErrorsSurviveTheHop(t *testing.T) {
	b := start(t, t.TempDir())
	const p = partition.PartitionID(7)
	typed := []error{
		&partition.ErrNotLeader{Partition: p, Leader: 3}, &partition.ErrNotLeader{Partition: p},
		&partition.ErrOutcomeUnknown{Partition: p, Why: "the leader changed"},
		&partition.ErrFull{Partition: p, RetryAfter: 40 * time.Millisecond}, &partition.ErrUnknownPartition{Partition: p},
		&partition.ErrDamaged{Partition: p, Why: "checksum"}, &partition.ErrStopped{},
		&consumer.ErrUnknownGroup{Partition: p, Group: 5}, &consumer.ErrNotDead{Partition: p, Offset: 9}, &consumer.ErrStale{Why: "it lapsed"},
		&consumer.ErrSessionEnded{Member: "m", Session: 4}, &coordinator.ErrSessionEnded{Member: "m", Session: 4},
	}
	told := []error{
		&partition.ErrDiskStuck{Partition: p, For: 4 * time.Second}, &partition.ErrExpired{Partition: p, Start: 3},
		&partition.ErrNotStored{Partition: p, Offset: 3, End: 2}, &partition.ErrIDReused{Partition: p, ID: "x", Offset: 1},
		&partition.ErrSequenceGap{Partition: p, Producer: "x", Got: 3, Expected: 2}, &partition.ErrSequenceReused{Partition: p, Producer: "x", Sequence: 3},
		&partition.ErrSequenceExpired{Partition: p, Producer: "x", Sequence: 3},
		&partition.ErrUnreadable{Partition: p, Offset: 3, Err: &partition.ErrDamaged{Partition: p, Why: "checksum"}},
		&partition.ErrDamaged{Partition: p, Why: "newer", Newer: &format.ErrNewer{What: "row", Found: 2, Known: 1}},
		&router.ErrOutcomeUnknown{Err: context.DeadlineExceeded}, &router.ErrStaleRoute{Record: 1, Why: "moved"},
		&router.ErrMessage{Field: "key", Err: &router.ErrKey{}},
		&consumer.ErrToken{Why: "cut"}, &consumer.ErrNotHolder{Member: "m"}, &consumer.ErrHeldTooLong{Until: 3, MaxHold: 4},
		&consumer.ErrBadSettlement{Field: "action", Why: "no"}, &consumer.ErrReplayLimit{Partition: p, Limit: 3}, &consumer.ErrReplaying{Partition: p, Offset: 3},
		&consumer.ErrBadPolicy{}, &consumer.ErrBadReceive{Field: "member", Why: "is empty"}, &consumer.ErrSuperseded{},
		&coordinator.ErrNotFound{Kind: coordinator.KindTopic, Name: "t"}, &coordinator.ErrExists{Kind: coordinator.KindGroup, Name: "g"},
		&coordinator.ErrBusy{RetryAfter: time.Second}, &coordinator.ErrConfirm{Name: "t"}, &coordinator.ErrLimit{},
		&coordinator.ErrNoSession{Member: "m", Session: 3}, &coordinator.ErrConflict{Name: "g"}, &coordinator.ErrInvalid{},
		&logstore.ErrFailed{}, names.Topic(""), context.Canceled, context.DeadlineExceeded,
		&refusal{reason: "HOLD_LIMIT", text: "full", retryAfter: 5 * time.Second, field: "x"},
	}
	hop := func(err error) error {
		wire, bad := proto.Marshal(b.failureOn(ctx(t), err))
		if bad != nil {
			t.Fatal(bad)
		}
		f := &nodev1.Failure{}
		if bad := proto.Unmarshal(wire, f); bad != nil {
			t.Fatal(bad)
		}
		return errorOf(f)
	}
	for _, err := range append(typed, told...) {
		for _, err := range []error{err, fmt.Errorf("wrapped: %w", err)} {
			want, got := b.explain(err), b.explain(hop(hop(err)))
			if !proto.Equal(want.problem(nil), got.problem(nil)) {
				t.Errorf("%T: told %v, behind an edge %v", err, want.problem(nil), got.problem(nil))
			}
			if notTaken(err) != notTaken(hop(err)) || passes(err) != passes(hop(err)) {
				t.Errorf("%T: taken or not is lost", err)
			}
		}
	}
	for _, err := range typed {
		as := reflect.New(reflect.TypeOf(err))
		if !errors.As(hop(err), as.Interface()) || !reflect.DeepEqual(as.Elem().Interface(), err) {
			t.Errorf("%#v came as %#v", err, as.Elem().Interface())
		}
	}
	if errorOf(b.failureOn(ctx(t), nil)) != nil {
		t.Error("no error became one")
	}
	// What is ours says no more than to a caller.
	if r := b.explain(hop(errors.New("a secret"))); r.reason != "INTERNAL" || r.text == "a secret" {
		t.Errorf("%v", r)
	}
}

// A call that was not sent, to a node that is down or not known, did nothing: what it was
// for goes elsewhere, also what must not be done twice.
func TestCallsThatWereNotSentGoElsewhere(t *testing.T) {
	r := newRemote(2, http.DefaultClient, "")
	for _, err := range []error{&peer.ErrUnreached{Node: 2, Err: errors.New("it does not answer")}, &peer.ErrNoNode{Node: 2}} {
		got := r.failed(1, connect.NewError(connect.CodeUnavailable, &url.Error{Op: "Post", Err: err}))
		if !notTaken(got) || !passes(got) {
			t.Errorf("%v is told as %v", err, got)
		}
	}
}
