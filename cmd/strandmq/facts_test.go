package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// asked is a node that answers as a test tells it: it has a topic t with a group g, and
// does not say what time it is.
type asked struct {
	strandmqv1connect.UnimplementedNodeServiceHandler
	strandmqv1connect.UnimplementedClusterServiceHandler
	strandmqv1connect.UnimplementedTopicServiceHandler
	strandmqv1connect.UnimplementedGroupServiceHandler
	strandmqv1connect.UnimplementedTraceServiceHandler

	cluster string                    // its id
	behind  string                    // what it says of too few nodes
	others  []*strandmqv1.ClusterNode // beside itself
	peers   []*strandmqv1.NodePeer    // how it sees those

	silent bool                // about the cluster's nodes
	loses  string              // why it knows nobody who leads the metadata
	oldest time.Time           // of what the group has before it
	looks  atomic.Int32        // at the groups
	groups func(n int32) error // of look n, from 1; nil: it answers

	glanced atomic.Int32 // how often the group was asked for
	group   func(n int32) *strandmqv1.GroupPartition
	life    []*strandmqv1.TraceEvent // of each message of the topic
}

func (a *asked) NodeInfo(context.Context, *strandmqv1.NodeInfoRequest) (*strandmqv1.NodeInfoResponse, error) {
	return &strandmqv1.NodeInfoResponse{Node: 1, Cluster: a.cluster, Leaderless: a.loses, Peers: a.peers}, nil
}

func (a *asked) DescribeCluster(context.Context, *strandmqv1.DescribeClusterRequest) (*strandmqv1.DescribeClusterResponse, error) {
	if a.silent {
		return nil, errors.New("not now")
	}
	return &strandmqv1.DescribeClusterResponse{Cluster: a.cluster, Behind: a.behind, Nodes: append([]*strandmqv1.ClusterNode{{Node: 1}}, a.others...)}, nil
}

func (a *asked) DescribeTopic(context.Context, *strandmqv1.DescribeTopicRequest) (*strandmqv1.DescribeTopicResponse, error) {
	return &strandmqv1.DescribeTopicResponse{Topic: &strandmqv1.Topic{Name: "t"}}, nil
}

func (a *asked) ListGroups(context.Context, *strandmqv1.ListGroupsRequest) (*strandmqv1.ListGroupsResponse, error) {
	if n := a.looks.Add(1); a.groups != nil {
		if err := a.groups(n); err != nil {
			return nil, err
		}
	}
	g := &strandmqv1.GroupSummary{Group: &strandmqv1.Group{Topic: "t", Name: "g"}, Counts: &strandmqv1.GroupCounts{}}
	if !a.oldest.IsZero() {
		g.Counts.Lag, g.OldestPublished = 10, timestamppb.New(a.oldest)
	}
	return &strandmqv1.ListGroupsResponse{Groups: []*strandmqv1.GroupSummary{g}}, nil
}

func (a *asked) DescribeGroup(context.Context, *strandmqv1.DescribeGroupRequest) (*strandmqv1.DescribeGroupResponse, error) {
	if n := a.glanced.Add(1); a.group != nil {
		return &strandmqv1.DescribeGroupResponse{Members: []*strandmqv1.Member{{Name: "m"}}, Partitions: []*strandmqv1.GroupPartition{a.group(n)}}, nil
	}
	return &strandmqv1.DescribeGroupResponse{}, nil
}

func (a *asked) Trace(context.Context, *strandmqv1.TraceRequest) (*strandmqv1.TraceResponse, error) {
	return &strandmqv1.TraceResponse{Messages: []*strandmqv1.MessageTrace{{Events: a.life}}}, nil
}

// run runs a command against it, about topic t.
func (a *asked) run(t *testing.T, args ...string) (printed string, code int) {
	t.Helper()
	s := a.serve(t)
	var out bytes.Buffer
	code = run(&app{in: strings.NewReader(""), out: &out, err: &out}, append(args, "--server", s.URL, "--topic", "t"))
	return out.String(), code
}

// serve has it answer until the test ends.
func (a *asked) serve(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	mux.Handle(strandmqv1connect.NewNodeServiceHandler(a))
	mux.Handle(strandmqv1connect.NewClusterServiceHandler(a))
	mux.Handle(strandmqv1connect.NewTopicServiceHandler(a))
	mux.Handle(strandmqv1connect.NewGroupServiceHandler(a))
	mux.Handle(strandmqv1connect.NewTraceServiceHandler(a))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// A node that was started on an empty folder is another cluster at its address: it is told
// as that, and asked nothing, also where it is the only one that is not behind.
func TestDoctorKnowsAStranger(t *testing.T) {
	t.Parallel()
	stranger := (&asked{cluster: "other"}).serve(t)
	silent := int64(60_000)
	a := &asked{cluster: "own", others: []*strandmqv1.ClusterNode{{Node: 4, ApiAddress: stranger.URL, SilentMs: &silent}}}
	for _, a.behind = range []string{"", "it may be behind"} {
		printed, code := a.run(t, "doctor", "--watch", "0")
		wants := []string{"node n4 is away, and another cluster answers at its address", "not asked: node n4: "}
		if a.behind == "" { // else nothing can be decided
			wants = append(wants, "strandmq cluster replace 4 --dry-run")
		}
		for _, want := range wants {
			if code != exitFailed || !strings.Contains(printed, want) {
				t.Errorf("exit code %d, and it does not say %q:\n%s", code, want, printed)
			}
		}
		if strings.Contains(printed, "NODES_CUT_OFF") {
			t.Errorf("it is taken for the node:\n%s", printed)
		}
	}
}

// Clocks that differ are told with the nodes, by how much, and what to type; check warns.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	a := &asked{
		cluster: "own", others: []*strandmqv1.ClusterNode{{Node: 2}, {Node: 3}},
		peers: []*strandmqv1.NodePeer{{Node: 2, Up: true, SkewMs: -90_000, ClockOff: true}, {Node: 3, Up: true, SkewMs: 1}},
	}
	printed := ""
	until(t, "doctor names the clocks first", func() bool { // a busy machine may not answer in time
		var code int
		printed, code = a.run(t, "doctor", "--watch", "0")
		t.Log(printed)
		return code == exitFailed && strings.HasPrefix(printed, "WARNING CLOCK_OFF: the clocks of n1 and n2 differ by 1m30s: ")
	})
	for _, want := range []string{"  - the clock of n2 is 1m30s behind that of n1\n", "  next: timedatectl "} {
		if !strings.Contains(printed, want) {
			t.Errorf("it does not say %q:\n%s", want, printed)
		}
	}
	until(t, "check warns of them", func() bool {
		printed, code := a.run(t, "check")
		t.Log(printed)
		return code == 1 && strings.Contains(printed, "WARNING: node n1: its clock and that of n2 differ by 1m30s")
	})
}

// What did not answer at the first look and does at the second was asked.
func TestDoctorForgetsTheFirstLook(t *testing.T) {
	t.Parallel()
	a := &asked{groups: func(n int32) error {
		if n == 1 {
			return errors.New("not now")
		}
		return nil
	}}
	printed, code := a.run(t, "doctor", "--watch", "1ms")
	if code != exitDone || strings.Contains(printed, "not asked") || a.looks.Load() != 2 {
		t.Errorf("exit code %d after %d looks:\n%s", code, a.looks.Load(), printed)
	}
}

// A broker that does not tell its time has messages as old as by our clock.
func TestCheckWithoutTheBrokersTime(t *testing.T) {
	t.Parallel()
	a := &asked{oldest: time.Now().Add(-time.Hour)}
	if printed, code := a.run(t, "check"); code != 2 {
		t.Errorf("exit code %d with a message of an hour ago:\n%s", code, printed)
	}
}

// As soon as a node says that nobody leads the metadata it is critical, also while nothing
// else can be asked.
func TestCheckTakesTheNodesWord(t *testing.T) {
	t.Parallel()
	fails := func(int32) error { return errors.New("not now") }
	for _, a := range []*asked{{loses: "n2 is not there"}, {loses: "n2 is not there", silent: true, groups: fails}} {
		for _, more := range [][]string{nil, {"--group", "h"}} {
			printed, code := a.run(t, append([]string{"check"}, more...)...)
			if code != 2 || !strings.HasPrefix(printed, "CRITICAL: NO_QUORUM: n2 is not there") {
				t.Errorf("exit code %d:\n%s", code, printed)
			}
			if printed, code := a.run(t, append([]string{"doctor", "--watch", "0"}, more...)...); code != exitFailed || !strings.Contains(printed, "CRITICAL NO_QUORUM") {
				t.Errorf("exit code %d:\n%s", code, printed)
			}
		}
	}
	a := &asked{silent: true, groups: fails}
	if printed, code := a.run(t, "check"); code != 3 || strings.Contains(printed, "NO_QUORUM") {
		t.Errorf("exit code %d of one that knows a leader:\n%s", code, printed)
	}
}

// A group that is not there is refused although not all could be asked, unless that is
// the list of groups.
func TestDoctorRefusesUnknownGroup(t *testing.T) {
	t.Parallel()
	const refusal = "topic t has no group h"
	a := &asked{silent: true}
	if printed, code := a.run(t, "doctor", "--watch", "0", "--group", "h"); code != exitFailed || !strings.Contains(printed, refusal) {
		t.Errorf("exit code %d:\n%s", code, printed)
	}
	a.groups = func(int32) error { return errors.New("not now") }
	if printed, _ := a.run(t, "doctor", "--watch", "0", "--group", "h"); strings.Contains(printed, refusal) || !strings.Contains(printed, "not asked: "+theGroups) {
		t.Errorf("without the list of groups:\n%s", printed)
	}
}

// No time that was waited is none at all.
func TestWaited(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "1ms", 1_300 * time.Microsecond: "1ms", 40 * time.Millisecond: "40ms", 4_460 * time.Millisecond: "4.5s"} {
		if got := waited(d).String(); got != want {
			t.Errorf("%v is %s, not %s", d, got, want)
		}
	}
}
