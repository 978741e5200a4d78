package partition

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/strandmq/strandmq/internal/format"
)

// someFrames has one frame of each kind that raft and we send.
func someFrames() []Frame {
	u := func(v uint64) *uint64 { return &v }
	yes := true
	from, to := NodeID(1).Replica(), NewReplicaID(2, 7)
	msgs := []*raftpb.Message{
		{Type: raftpb.MsgApp.Enum(), Term: u(7), LogTerm: u(6), Index: u(40), Commit: u(39), Entries: []*raftpb.Entry{
			{Type: raftpb.EntryNormal.Enum(), Term: u(6), Index: u(41), Data: bytes.Repeat([]byte("x"), 300)},
			{Type: raftpb.EntryConfChangeV2.Enum(), Term: u(7), Index: u(42)},
		}},
		{Type: raftpb.MsgApp.Enum(), Term: u(7), LogTerm: u(6), Index: u(40), Commit: u(40)},
		{Type: raftpb.MsgAppResp.Enum(), Term: u(7), Index: u(42)},
		{Type: raftpb.MsgAppResp.Enum(), Term: u(7), Index: u(42), Reject: &yes, RejectHint: u(17), LogTerm: u(3)},
		{Type: raftpb.MsgHeartbeat.Enum(), Term: u(7), Commit: u(39)},
		{Type: raftpb.MsgHeartbeatResp.Enum(), Term: u(7), Context: []byte("read 5")},
		{Type: raftpb.MsgPreVote.Enum(), Term: u(8), Index: u(42), LogTerm: u(7)},
		{Type: raftpb.MsgPreVoteResp.Enum(), Term: u(8), Reject: &yes},
		{Type: raftpb.MsgVote.Enum(), Term: u(8), Index: u(42), LogTerm: u(7), Context: []byte("CampaignTransfer")},
		{Type: raftpb.MsgVoteResp.Enum(), Term: u(8)},
		{Type: raftpb.MsgTimeoutNow.Enum(), Term: u(8)},
		{Type: raftpb.MsgSnap.Enum(), Term: u(8), Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
			Index: u(30), Term: u(5), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}},
		}}},
	}
	var out []Frame
	for i, m := range msgs {
		m.From, m.To = u(uint64(from)), u(uint64(to))
		f, ok := frameOf(PartitionID(i*1000), m)
		if !ok {
			panic(m.GetType().String() + " has no frame")
		}
		out = append(out, f)
	}
	return append(out,
		ourFrame(9, frameSleep, from, to, 7, 42),
		ourFrame(9, frameResign, from, to, 7, 0),
		ourFrame(Metadata, frameStuck, from, to, 0, 0),
		ourFrame(Metadata, frameUnfit, from, to, 0, 0))
}

// sameFrames tells whether frames say the same.
func sameFrames(t *testing.T, got, want []Frame) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d frames, want %d", len(got), len(want))
	}
	for i := range got {
		a, b := got[i], want[i]
		if a.String() != b.String() || a.kind != b.kind {
			t.Errorf("frame %d: %v, want %v", i, a, b)
		}
		x, y := proto.Clone(a.m).(*raftpb.Message), proto.Clone(b.m).(*raftpb.Message)
		for _, m := range []*raftpb.Message{x, y} { // nought and nothing are the same
			for _, n := range []**uint64{&m.Term, &m.Index, &m.LogTerm, &m.Commit, &m.RejectHint} {
				if *n != nil && **n == 0 {
					*n = nil
				}
			}
		}
		if !proto.Equal(x, y) {
			t.Errorf("frame %d:\n%v, want\n%v", i, x, y)
		}
	}
}

func TestFramesComeThrough(t *testing.T) {
	all := someFrames()
	kinds := make(map[frameKind]bool)
	for _, f := range all {
		kinds[f.kind] = true
	}
	if len(kinds) != int(frameKinds)-1 {
		t.Fatalf("%d kinds are tried of %d", len(kinds), frameKinds-1)
	}
	b := AppendFrames([]byte("before"), all)
	got, err := ParseFrames(b[len("before"):])
	if err != nil {
		t.Fatal(err)
	}
	sameFrames(t, got, all)
	if none, err := ParseFrames(AppendFrames(nil, nil)); err != nil || len(none) != 0 {
		t.Fatalf("no frames came through as %v, %v", none, err)
	}

	// What is sent most is small, and payloads are not copied on arrival.
	if n := len(AppendFrames(nil, all[4:5])) - framesHeadLen; n > 16 {
		t.Errorf("a heartbeat takes %d bytes", n)
	}
	one := AppendFrames(nil, all[:1])
	got, err = ParseFrames(one)
	if err != nil {
		t.Fatal(err)
	}
	data := got[0].m.GetEntries()[0].GetData()
	if cap(data) != len(data) {
		t.Error("who appends to an entry would change what lies behind it")
	}
	at := bytes.Index(one, data)
	one[at]++
	if data[0] != one[at] {
		t.Error("an entry's data was copied")
	}
}

// What changed on its way is refused, whichever byte it is.
func TestFramesThatChanged(t *testing.T) {
	b := AppendFrames(nil, someFrames())
	for i := range b {
		c := slices.Clone(b)
		c[i] ^= 0x10
		if _, err := ParseFrames(c); err == nil {
			t.Fatalf("byte %d was changed, and the frames read", i)
		}
	}
	for n := range b {
		if _, err := ParseFrames(b[:n]); err == nil {
			t.Fatalf("cut at %d, the frames read", n)
		}
	}
	newer := slices.Clone(b)
	newer[0] = framesVersion + 1
	var e *format.ErrNewer
	if _, err := ParseFrames(newer); !errors.As(err, &e) {
		t.Fatalf("of a newer version: %v", err)
	}
}

func TestFramesThatCannotBe(t *testing.T) {
	head := func(kind frameKind, has byte, rest ...byte) []byte {
		// Partition 1, from replica n1 to n2, term 1.
		return append([]byte{byte(kind), has, 1, 1, 0, 2, 0, 1}, rest...)
	}
	for name, c := range map[string]struct {
		body []byte
		says string
	}{
		"no kind":                {head(0, 0), "unknown kind"},
		"a kind of later":        {head(frameKinds, 0), "unknown kind"},
		"more than is known":     {head(frameHeartbeat, 0x80), "unknown kind"},
		"entries of a heartbeat": {head(frameHeartbeat, hasEntries, 1, 0, 1, 0), "does not have"},
		"a snapshot of none":     {head(frameSnapshot, 0), "does not have"},
		"no node":                {[]byte{byte(frameHeartbeat), 0, 1, 0, 0, 2, 0, 1}, "out of range"},
		"no entries":             {head(frameAppend, hasEntries, 0), "out of range"},
		"more than there are":    {head(frameAppend, hasEntries, 200, 1, 0, 1, 0), "out of range"},
		"an entry of no type":    {head(frameAppend, hasEntries, 1, 9, 1, 0), "unknown type"},
		"an entry too large":     {head(frameAppend, hasEntries, 1, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f), "out of range"},
		"an entry cut off":       {head(frameAppend, hasEntries, 1, 0, 1, 7, 'x'), "too early"},
		"too much context":       {head(frameVote, hasContext, 0xff, 0xff, 0x7f), "out of range"},
		"a snapshot of noise":    {head(frameSnapshot, hasSnapshot, 2, 0xff, 0xff), "cannot parse"},
	} {
		if _, err := ParseFrames(framed(c.body)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// framed puts the head before what AppendFrames would have made.
func framed(body []byte) []byte {
	b := append([]byte{framesVersion}, binary.LittleEndian.AppendUint32(nil, crc32.Checksum(body, castagnoli))...)
	return append(b, body...)
}

func FuzzFrames(f *testing.F) {
	all := someFrames()
	for i := range all {
		f.Add(AppendFrames(nil, all[i:i+1])[framesHeadLen:])
	}
	f.Add(AppendFrames(nil, all)[framesHeadLen:])
	f.Add([]byte("no frames"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := ParseFrames(framed(body))
		if err != nil {
			return
		}
		again, err := ParseFrames(AppendFrames(nil, got))
		if err != nil {
			t.Fatalf("%v do not read again: %v", got, err)
		}
		sameFrames(t, again, got)
		for _, x := range got {
			for _, e := range x.m.GetEntries() {
				if cc, err := decodeChange(e); err == nil {
					cc.AsV2()
				}
			}
		}
	})
}

// What keeps leaders alive goes first; entries, and what counts on them, do not.
func TestFramesAreParted(t *testing.T) {
	all := someFrames()
	urgent, rest := Parted(all)
	later := map[frameKind]bool{frameAppend: true, frameSnapshot: true, frameSleep: true, frameResign: true}
	var first, last []Frame
	for _, f := range all {
		if later[f.kind] {
			last = append(last, f)
		} else {
			first = append(first, f)
		}
	}
	sameFrames(t, urgent, first)
	sameFrames(t, rest, last)
	for _, list := range [][]Frame{nil, first, last} {
		urgent, rest := Parted(list)
		sameFrames(t, append(urgent, rest...), list)
	}
}
