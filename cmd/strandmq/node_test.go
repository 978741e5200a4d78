package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// What is wrong with a node's disk is to be seen at a glance, each place with its
// topic.
func TestNodeForPeople(t *testing.T) {
	at := timestamppb.New(time.UnixMilli(1_700_000_000_000))
	show := func(n *strandmqv1.NodeInfoResponse) string {
		var out bytes.Buffer
		if err := (&app{out: &out, err: &out}).printNode(n); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(out.String()), " ")
	}
	got := show(&strandmqv1.NodeInfoResponse{
		Version: "v1", Node: 1, Cluster: "c", Started: at, Faults: []string{"one line"},
		Disk:  &strandmqv1.NodeDisk{TotalBytes: 8 << 30, FreeBytes: 1 << 30, ReserveBytes: 2 << 30, StoreBytes: 3 << 30, Low: true, WriteStalls: 2, WriteStallMs: 1500, SlowWrites: 4, StuckMs: 5000},
		Scrub: &strandmqv1.NodeScrub{Passes: 1, LastPass: at, Began: at, Bytes: 5 << 20, Paused: true},
		Damage: []*strandmqv1.NodeDamage{
			{File: "000007.sst", What: "a file of the store is gone", Found: at, Ranges: []*strandmqv1.DamagedRange{
				{Topic: "orders", Partition: 3, FirstEntry: 5, LastEntry: 9}, {Metadata: true, FirstEntry: 1}, {FirstEntry: 2},
			}},
			{What: "something else", Found: at},
		},
		Stopped: []*strandmqv1.StoppedPartition{{Topic: "orders", Partition: 3, Why: "entry 9"}, {Why: "worse"}},
	})
	for _, want := range []string{
		"node: 1", "3.0 GiB stored, 1.0 GiB free of 8.0 GiB, reserve 2.0 GiB; too little for publishes",
		"stalls: 2, 1.5s together, 4 slow writes, the disk has not come back for 5s",
		"scrub: 1 pass, the last complete at 2023-11-14T22:13:20.000Z, one since 2023-11-14T22:13:20.000Z with 5.0 MiB read, paused",
		"damage: 2 places", "stopped: 2 partitions", "fault: one line",
		"000007.sst orders 3 5 to 9", "000007.sst (metadata) - 1 and up", "000007.sst (deleted) - 2 and up", "- - - - 2023-11-14T22:13:20.000Z something else",
		"orders 3 entry 9", "(metadata) - worse",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	got = show(&strandmqv1.NodeInfoResponse{Disk: &strandmqv1.NodeDisk{}, Scrub: &strandmqv1.NodeScrub{Disabled: true}})
	for _, want := range []string{"stalls: none", "scrub: turned off", "damage: none", "stopped: none"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
}
