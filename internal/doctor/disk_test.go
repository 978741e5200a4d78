package doctor

import (
	"strings"
	"testing"
)

// What is refused for a full disk is what its node leads, and no other can.
func TestWhatAFullDiskRefuses(t *testing.T) {
	for _, c := range []struct {
		what     string
		plant    func(f *Facts)
		severity Severity
		says     string
		never    string
	}{
		{"alone", func(f *Facts) { f.Nodes = f.Nodes[:1]; f.Nodes[0].Disk.Low = true }, Critical, "publishes are refused, consuming goes on", "other node"},
		{"it leads all", func(f *Facts) { f.Nodes[0].Disk.Low = true }, Critical, "publishes to 4 partitions that it leads, and no other node can, are refused", "leads nothing"},
		{"it leads nothing", func(f *Facts) { f.Nodes[1].Disk.Low = true }, Warning, "it leads nothing, so no publish is refused for it; it stores what others publish", "are refused"},
		{"of one topic", func(f *Facts) { f.Only, f.Nodes[1].Disk.Low = "orders", true }, Warning, "it leads nothing of topic orders, so no publish", "are refused"},
		{"alone, and nearly full", func(f *Facts) { f.Nodes = f.Nodes[:1]; f.Nodes[0].Disk.Free = 5 << 30 }, Warning, "below 1.0 GiB publishes are refused", "another node"},
		{"nearly full among others", func(f *Facts) { f.Nodes[1].Disk.Free = 5 << 30 }, Warning, "below 1.0 GiB it leads nothing that another node can lead", "below 1.0 GiB publishes"},
	} {
		f := three()
		c.plant(f)
		found := Diagnose(f, Options{})
		if len(found) != 1 || found[0].Severity != c.severity || !strings.Contains(found[0].Text, c.says) || strings.Contains(found[0].Text, c.never) {
			t.Errorf("%s: %+v", c.what, found)
		}
		if v := Check(f, Limits{}); found[0].Cause == DiskFull && (v.State != Failed || strings.Contains(v.Text, "publishes are refused") != (c.severity == Critical)) {
			t.Errorf("%s: %+v", c.what, v)
		}
	}
}

// Who takes a disk is told before it is advised to keep less.
func TestOthersFillADisk(t *testing.T) {
	for store, others := range map[uint64]bool{25 << 20: true, 4 << 30: true, 6 << 30: false, 50 << 30: false} {
		f := three()
		f.Nodes[1].Disk.Low, f.Nodes[1].Disk.Store = true, store
		x := Diagnose(f, Options{})[0]
		if got := strings.Contains(strings.Join(x.Evidence, "\n"), "50.0 GiB of the disk are used: others fill it"); got != others {
			t.Errorf("a store of %d: %+v", store, x)
		}
		if got := strings.Contains(strings.Join(x.Next, "\n"), "--retention"); got == others {
			t.Errorf("a store of %d: %+v", store, x)
		}
	}
}
