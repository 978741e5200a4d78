package broker

import "testing"

// What a broker within a limit may keep is less than the limit, at every size; it is a
// configuration that a broker takes; what was set stays, and nothing exceeds its default.
func TestWithin(t *testing.T) {
	for memory := int64(LeastMemory); memory < 8<<30; memory += 111 << 20 {
		c, heap := Config{DataDir: t.TempDir()}.Within(memory)
		if err := c.Validate(); err != nil {
			t.Errorf("%d MiB: %v", memory>>20, err)
		}
		all := c.StreamMemory + c.RequestBytes + c.Host.TailCacheBytes + c.Host.QueueBytes + c.Host.NodeRowBytes + c.Host.IDFilterBytes + c.Host.ReceiveBytes
		if store := c.Store.Memory(); all > heap*3/4 || heap+store >= memory || store > 256<<20 {
			t.Errorf("%d MiB: %d MiB of a heap of %d, and %d of the store", memory>>20, all>>20, heap>>20, store>>20)
		}
		if c.StreamMemory > DefaultStreamMemory || c.RequestBytes > defaultRequestBytes {
			t.Errorf("%d MiB: %+v", memory>>20, c)
		}
	}
	set := Config{StreamMemory: 100 << 20, RequestBytes: 200 << 20}
	set.Host.QueueBytes, set.Store.CacheBytes = 99<<20, 98<<20
	c, _ := set.Within(LeastMemory)
	if c.StreamMemory != set.StreamMemory || c.RequestBytes != set.RequestBytes || c.Host.QueueBytes != 99<<20 || c.Store.CacheBytes != 98<<20 {
		t.Errorf("what was set is %+v", c)
	}
}
