package nemesis

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Ledger notes when each partition acknowledged something, and when which fault struck.
// It is the one thing here that many goroutines use at once.
type Ledger struct {
	mu     sync.Mutex
	acks   map[uint32][]time.Duration // guarded by mu: since the run began, in order
	faults []Span                     // guarded by mu: in order
}

// Span is the time of one fault: from when it struck until everything was whole again.
type Span struct {
	Step        Step
	From, Until time.Duration // since the run began
	Led         []uint32      // the partitions that the struck node led
}

// Ack notes that a partition acknowledged something.
func (l *Ledger) Ack(partition uint32, at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acks == nil {
		l.acks = map[uint32][]time.Duration{}
	}
	// Two callers may come here in another order than they looked at the clock.
	list := append(l.acks[partition], at)
	for i := len(list) - 1; i > 0 && list[i] < list[i-1]; i-- {
		list[i], list[i-1] = list[i-1], list[i]
	}
	l.acks[partition] = list
}

// Acks counts what a partition acknowledged since a moment.
func (l *Ledger) Acks(partition uint32, since time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.acks[partition]
	at, _ := slices.BinarySearch(list, since)
	return len(list) - at
}

// Fault notes a fault that is over.
func (l *Ledger) Fault(s Span) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, s)
}

// Outage is the longest time that a partition acknowledged nothing around one fault.
type Outage struct {
	Step      int     `json:"step"`
	Kind      Kind    `json:"kind"`
	Node      int     `json:"node"` // from 1
	Partition uint32  `json:"partition"`
	Led       bool    `json:"led"` // by the struck node, before
	Seconds   float64 `json:"seconds"`
	// Open tells that the partition acknowledged nothing any more before the next
	// fault or the end.
	Open bool `json:"open,omitempty"`
}

// Outages are those of every fault and each of so many partitions. What is looked at is
// the time between two acknowledgements, of which the second came after the fault struck
// and the first before all was whole again.
func (l *Ledger) Outages(partitions uint32) (out []Outage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.faults {
		for p := range partitions {
			o := Outage{Step: f.Step.Number, Kind: f.Step.Kind, Node: f.Step.Node + 1, Partition: p, Led: slices.Contains(f.Led, p)}
			longest, open := longestGap(l.acks[p], f.From, f.Until)
			o.Seconds, o.Open = longest.Seconds(), open
			out = append(out, o)
		}
	}
	return out
}

// longestGap is the longest time without an acknowledgement of those that touch the span.
// One that no acknowledgement ends counts until the end of the span, and is open.
func longestGap(acks []time.Duration, from, until time.Duration) (longest time.Duration, open bool) {
	i, _ := slices.BinarySearch(acks, from)
	last := from
	if i > 0 {
		last = acks[i-1]
	}
	for ; i < len(acks); i++ {
		longest = max(longest, acks[i]-last)
		if last = acks[i]; last >= until {
			return longest, false
		}
	}
	if last < until {
		return max(longest, until-last), true
	}
	return longest, false
}

// Figures are the outages of one kind of fault, in seconds over its faults and partitions.
type Figures struct {
	Kind   Kind    `json:"kind"`
	Faults int     `json:"faults"`
	All    Spread  `json:"all"`
	Led    *Spread `json:"led,omitempty"` // of the partitions that the struck node led; nil: there were none
	Open   int     `json:"open"`          // how many did not end before the next fault
}

// Spread says how some values are spread.
type Spread struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_s"`
	P99   float64 `json:"p99_s"`
	Max   float64 `json:"max_s"`
}

// Summary sorts outages by kind.
func Summary(outages []Outage) (out []Figures) {
	for _, k := range Kinds {
		f, steps := Figures{Kind: k}, map[int]bool{}
		var all, led []float64
		for _, o := range outages {
			if o.Kind != k {
				continue
			}
			steps[o.Step] = true
			all = append(all, o.Seconds)
			if o.Led {
				led = append(led, o.Seconds)
			}
			if o.Open {
				f.Open++
			}
		}
		if f.Faults = len(steps); f.Faults == 0 {
			continue
		}
		f.All = spread(all)
		if len(led) > 0 {
			s := spread(led)
			f.Led = &s
		}
		out = append(out, f)
	}
	return out
}

// spread needs one value at least.
func spread(values []float64) Spread {
	slices.Sort(values)
	return Spread{len(values), rank(values, 0.5), rank(values, 0.99), values[len(values)-1]}
}

// rank is a percentile by the nearest rank, of what is sorted.
func rank(sorted []float64, share float64) float64 {
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
