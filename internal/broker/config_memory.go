package broker

// LeastMemory is the least that Within takes.
const LeastMemory = 384 << 20

// Within is the configuration of a broker whose process is to keep to so many bytes:
// what bounds memory and is not set gets a share of it, or its default if that is less.
// heap is what of it is for Go's heap, garbage included: debug.SetMemoryLimit makes
// collections come early enough, where what is in use leaves room for that.
//
//	store ████████  program ██  heap ██████████████████████████████
//
//	heap: streams ████████  requests ██████  log's end ████  queues ████  rows ████  ids ██  other nodes ██
//	      and what is left for all that has no bound of bytes, but one of its number: groups, sessions, connections
//
// The shares of the heap are hardly ever full at once.
func (c Config) Within(memory int64) (_ Config, heap int64) {
	const program = 32 << 20 // its code, as far as it is in memory, and stacks
	c.Store = c.storeConfig().Within(memory)
	heap = memory - c.Store.Memory() - program
	share := func(of *int64, parts, most, least int64) {
		if *of == 0 {
			*of = min(most, max(heap*parts/64, least))
		}
	}
	share(&c.StreamMemory, 12, DefaultStreamMemory, leastStreamMemory)
	share(&c.RequestBytes, 8, defaultRequestBytes, leastRequestBytes)
	share(&c.Host.TailCacheBytes, 6, 32<<20, 4<<20)
	share(&c.Host.QueueBytes, 6, 64<<20, 8<<20)
	share(&c.Host.NodeRowBytes, 6, 64<<20, 4<<20)
	share(&c.Host.IDFilterBytes, 4, 32<<20, 4<<20)
	share(&c.Host.ReceiveBytes, 4, 64<<20, 4<<20)
	return c, heap
}

const (
	leastStreamMemory   = 16 << 20
	defaultRequestBytes = 256 << 20
	leastRequestBytes   = 16 << 20
)
