package partition

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/strandmq/strandmq/partition/logstore"
)

// forgetful is a counter of commands that keeps none of them.
type forgetful struct{ *counter }

func (f forgetful) Apply(_ Position, cmd []byte) (any, error) {
	f.n++
	return f.n, nil
}

// An old entry of a log of commands does not read on one replica. It lets go of it,
// nothing damaged is left, also after a restart, and who lacks the entry gets on by a
// snapshot when this replica leads.
func TestShed(t *testing.T) {
	c := newCluster(t, 3, Config{NewApp: func(id PartitionID, rows Rows) (App, error) {
		a, err := newCounter(nil)(id, rows)
		return forgetful{a.(*counter)}, err
	}})
	c.create(1)
	away, bad := c.node(3), c.node(2)
	cmd := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "command %d.", i), 500) }
	do := func(i int) {
		t.Helper()
		c.byLeader(1, "a command is applied", func(lead *member) error {
			_, err := lead.Propose(within(t), 1, cmd(i))
			return err
		})
	}
	c.leadBy(1, c.node(1))
	away.kill()
	for i := range 10 {
		do(i)
	}
	applied := func(m *member) Index { return must(m.Info(1)).Position.Index }
	level := func(m *member) {
		t.Helper()
		until(t, fmt.Sprintf("%v has all that is applied", m.id), func() bool { return applied(m) == applied(c.leader(1)) })
	}
	level(bad)
	c.isUp(bad.id, false)
	bad.stop()
	if spoil(t, bad.mem, "store/pebble", cmd(5)[:40]) == 0 {
		t.Fatal("the command is nowhere")
	}
	c.back(bad)

	info := must(bad.Info(1))
	if err := bad.store.Scan(1, uint64(info.FirstIndex), uint64(info.LastIndex)+1, func(logstore.Entry, uint32) bool { return true }); err == nil {
		t.Fatal("all entries read")
	}
	var last Index
	for _, d := range bad.store.Damage() {
		last = max(last, Index(d.Ranges[0].High))
	}
	if last < info.FirstIndex || last+2 > info.Position.Index {
		t.Fatalf("%+v is damaged of %+v", bad.store.Damage(), info)
	}
	if err := bad.Shed(within(t), 1, last); err != nil {
		t.Fatal(err)
	}
	until(t, "the entries are gone", func() bool { return must(bad.Info(1)).FirstIndex > last })
	if d := bad.store.Damage(); len(d) > 0 {
		t.Fatalf("damaged yet: %+v", d)
	}
	// What is kept for who is away is kept no longer either.
	lead := c.node(1)
	if err := lead.Shed(within(t), 1, last); err != nil {
		t.Fatal(err)
	}
	until(t, "they are gone elsewhere", func() bool { return must(lead.Info(1)).FirstIndex > last })

	c.isUp(bad.id, false)
	bad.stop()
	c.back(bad)
	if now := must(bad.Info(1)); now.Fault != "" || now.FirstIndex <= last {
		t.Fatalf("after a restart: %+v", now)
	}
	c.leadBy(1, bad)
	c.back(away)
	do(10)
	level(away)
}
