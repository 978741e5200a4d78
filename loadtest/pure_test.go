package loadtest

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/strandmq/strandmq/internal/check"
)

// Every message of the whole load belongs to one producer, is due when it should
// be to the nanosecond, and DueBy counts what Due says.
func TestSchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		producers := rapid.Uint64Range(1, 50).Draw(t, "producers")
		s := Schedule{
			Rate: rapid.Uint64Range(1, 10_000_000).Draw(t, "rate"), Producers: producers,
			Producer: rapid.Uint64Range(0, producers-1).Draw(t, "producer"),
		}
		i := rapid.Uint64Range(0, 100_000_000).Draw(t, "message") // at one a second, 158 years
		due := s.Due(i)
		exact := float64(i*s.Producers+s.Producer) / float64(s.Rate) * 1e9
		if math.Abs(float64(due)-exact) > 1+exact*1e-12 {
			t.Fatalf("%+v: message %d is due at %d, want %f", s, i, due, exact)
		}
		if n := s.DueBy(due); n <= i {
			t.Fatalf("%+v: message %d is due at %d, and DueBy counts %d", s, i, due, n)
		}
		// Another may be due in the same nanosecond, but this one is not before.
		if n := s.DueBy(due - 1); n > i {
			t.Fatalf("%+v: message %d is due at %d, and DueBy counts %d just before", s, i, due, n)
		}
	})
}

func TestScheduleSharesTheLoad(t *testing.T) {
	const rate, producers = 7, 3
	var sum uint64
	for p := range uint64(producers) {
		s := Schedule{Rate: rate, Producers: producers, Producer: p}
		sum += s.DueBy(10*int64(time.Second) - 1)
		if s.DueBy(-1) != 0 {
			t.Errorf("something is due before the start")
		}
	}
	if sum != 10*rate {
		t.Errorf("%d messages in 10 s, want %d", sum, 10*rate)
	}
	if (Schedule{Rate: 1, Producers: 1000}).Due(math.MaxUint64/2000) != math.MaxInt64 {
		t.Errorf("a message beyond time has to be due never")
	}
}

// The shares of the keys are those of the distribution: the most popular ones
// one by one, within five standard deviations.
func TestKeys(t *testing.T) {
	for _, c := range []struct {
		count uint32
		s     float64
	}{{1, 0}, {1, 1}, {2, 0.5}, {10, 0}, {100, 0.99}, {100, 1}, {1000, 1.5}, {1_000_000, 1}, {3, 10}} {
		r := rand.New(rand.NewPCG(1, 2))
		k := NewKeys(c.count, c.s)
		const draws = 200_000
		var seen [20]int
		for range draws {
			n := k.Pick(r.Float64)
			if n >= c.count {
				t.Fatalf("%+v: drew key %d", c, n)
			}
			if int(n) < len(seen) {
				seen[n]++
			}
		}
		sum := 0.0
		for n := range c.count {
			sum += math.Pow(float64(n+1), -c.s)
		}
		for n := range min(int(c.count), len(seen)) {
			p := math.Pow(float64(n+1), -c.s) / sum
			if off := math.Abs(float64(seen[n]) - draws*p); off > 5*math.Sqrt(draws*p*(1-p))+1 {
				t.Errorf("%+v: key %d came %d times, want %.0f", c, n, seen[n], draws*p)
			}
		}
	}
}

func TestKeysAtTheEdges(t *testing.T) {
	for _, random := range []float64{0, math.Nextafter(1, 0)} {
		for _, s := range []float64{0, 0.5, 1, 2} {
			calls := 0
			n := NewKeys(10, s).Pick(func() float64 { calls++; return random })
			if n >= 10 || calls > 1 {
				t.Errorf("s %v, random %v: key %d after %d draws", s, random, n, calls)
			}
		}
	}
}

func TestBody(t *testing.T) {
	m := check.Sent{Key: 12, Producer: 3, Number: 1 << 40}
	b := make([]byte, 50)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	stampBody(b, 77, m, 123)
	got, due, ours, whole := readBody(b, "key-12", 77, 50)
	if got != m || due != 123 || !ours || !whole {
		t.Fatalf("read %v due %d, ours %v, whole %v", got, due, ours, whole)
	}
	if _, _, ours, _ := readBody(b, "key-12", 78, 50); ours {
		t.Error("a body of another run is not ours")
	}
	if _, _, _, whole := readBody(b, "key-13", 77, 50); whole {
		t.Error("a body under another key is not whole")
	}
	for n := range len(b) {
		for bit := range 8 {
			b[n] ^= 1 << bit
			if _, _, ours, whole := readBody(b, "key-12", 77, 50); whole || ours != (n >= 8) {
				t.Fatalf("byte %d changed: ours %v, whole %v", n, ours, whole)
			}
			b[n] ^= 1 << bit
		}
		if _, _, _, whole := readBody(b[:n], "key-12", 77, 50); whole {
			t.Fatalf("cut to %d bytes and whole", n)
		}
	}
}

func TestConfig(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	bad := Config{
		Producers: -1, Groups: 101, Members: 1001, Zipf: -1, Size: 35, Rate: -1, Batch: 1001, Take: -5,
		Nack: 60, Lapse: 40, Crash: time.Millisecond, AckDeadline: time.Millisecond, Warmup: -1, RetryFor: -1,
	}
	err := bad.Validate()
	if err == nil {
		t.Fatal("everything is wrong, and nothing is said")
	}
	for _, word := range []string{"producers", "groups", "members", "zipf", "size", "rate", "batch", "take", "nack", "crash", "ack-deadline", "warmup", "spans"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s is not among the faults:\n%v", word, err)
		}
	}
	for _, c := range []struct {
		c    Config
		want string
	}{
		{Config{Keys: 100_000_000, Producers: 4, Groups: 1}, "keys, producers and groups"},
		{Config{Batch: 1000, Size: 1 << 20}, "4 MiB"},
		{Config{Crash: time.Second}, "no members"},
		{Config{Leave: time.Second}, "no members"},
		{Config{Nack: 5}, "no deliveries"},
		{Config{Ahead: 5}, "nobody to be ahead of"},
		{Config{Ahead: 5, Groups: 1, Rate: 1}, "a schedule waits for nobody"},
		{Config{Workers: 5, Groups: 1}, "no time without work"},
		{Config{Work: time.Second, Take: 10, Groups: 1}, "would let some lapse"},
		{Config{Lapse: 5}, "no deliveries"},
		{Config{Topic: ".x"}, `topic ".x"`},
	} {
		if err := c.c.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.c, err, c.want)
		}
	}
	if c := (Config{Lapse: 1}).withDefaults(); c.AckDeadline != 2*time.Second {
		t.Errorf("with lapses the ack deadline is %v", c.AckDeadline)
	}
}

func TestLatencies(t *testing.T) {
	l := newLatencies()
	for i := range 1000 {
		l.record(i, i >= 100, int64(i+1)*int64(time.Millisecond))
	}
	l.record(3, true, -5, math.MaxInt64)
	all := l.total()
	near := func(got, want float64) bool { return math.Abs(got-want) <= want/500 }
	if all.Count != 902 || !near(all.P50, 550) || !near(all.P99, 992) || all.Min != 0.001 || !near(all.Max, 3_600_000) {
		t.Errorf("%+v", all)
	}
	if now := l.look(); now.Count != 1002 {
		t.Errorf("%d since the beginning", now.Count)
	}
	if now := l.look(); now.Count != 0 || now.P99 != 0 {
		t.Errorf("%+v since the last look", now)
	}
}
