package doctor

import (
	"strings"
	"testing"
	"time"
)

// Where a circuit is open, the cause is why nearly all failed.
func TestWhatOpenedACircuit(t *testing.T) {
	ended := func(n int, outcome string) (all []Attempt) {
		for range n {
			all = append(all, Attempt{Member: "m", Ended: now - 5000, Outcome: outcome, Reason: "db down"})
		}
		return all
	}
	message := func(attempts ...Attempt) Letter { return Letter{Attempts: 1, Reason: "db down", History: attempts} }
	for _, c := range []struct {
		what  string
		plant func(g *Group)
		want  string
		says  string // of the first
	}{
		{"nothing was traced", func(*Group) {}, "CIRCUIT_OPEN", "nearly every delivery failed"},
		{"handlers nack", func(g *Group) {
			g.Suspects = []Letter{message(ended(3, "nack")...), message(ended(1, "nack")...)}
		}, "CIRCUIT_OPEN", "db down"},
		{"handlers nack, and one crashed", func(g *Group) {
			g.Suspects = []Letter{message(ended(20, "nack")...), message(ended(2, "session-lost")...)}
		}, "CIRCUIT_OPEN", ""},
		{"handlers nack, and some acks were late", func(g *Group) {
			g.Now.Late, g.Now.LateMs, g.Now.Lapsed = 5, 5000, 5
			g.Suspects = []Letter{message(ended(20, "nack")...), message(ended(1, "lapse")...)}
			g.Before = g.Now
		}, "CIRCUIT_OPEN", ""},
		{"consumers crash", func(g *Group) {
			g.Now.Lost = 88
			g.Suspects = []Letter{message(ended(1, "session-lost")...)}
		}, "CONSUMER_CRASHES CIRCUIT_OPEN", "so the circuit is open in 1 of 4 partitions"},
		{"consumers crash, and none is there", func(g *Group) {
			g.Now.Lost, g.Members = 88, []Member{{Name: "m", Away: true}}
			g.Suspects = []Letter{message(ended(1, "session-lost")...)}
		}, "CONSUMER_CRASHES CIRCUIT_OPEN", "no member is there now"},
		{"consumers crash while one looks", func(g *Group) { g.Now.Lost = 2 }, "CONSUMER_CRASHES CIRCUIT_OPEN", "sessions end while they hold messages"},
		{"acks come too late", func(g *Group) {
			g.Now.Late, g.Now.LateMs, g.Now.Lapsed = 40, 88_000, 40
			g.Suspects = []Letter{message(ended(2, "lapse")...)}
			g.Before = g.Now
		}, "DEADLINE_TOO_SHORT CIRCUIT_OPEN", "after 2s on average"},
		{"acks come too late, and one crashed", func(g *Group) {
			g.Now.Late, g.Now.LateMs, g.Now.Lapsed = 40, 88_000, 40
			g.Suspects = []Letter{message(ended(20, "lapse")...), message(ended(1, "session-lost")...)}
			g.Before = g.Now
		}, "DEADLINE_TOO_SHORT CIRCUIT_OPEN", ""},
		{"nobody answers", func(g *Group) {
			g.Suspects = []Letter{message(ended(1, "lapse")...)}
		}, "CONSUMER_CRASHES CIRCUIT_OPEN", "never answer"},
		{"one message, which is all that it takes", func(g *Group) {
			g.BreakerKeys = 1
			g.Suspects = []Letter{message(ended(3, "nack")...)}
		}, "POISON_MESSAGE CIRCUIT_OPEN", "tried 3 times"},
		{"one message with others behind it", func(g *Group) {
			g.BreakerKeys = 1
			g.Suspects = []Letter{{Attempts: 1, Waiting: 2, History: ended(4, "session-lost")}}
		}, "BLOCKED_KEY CIRCUIT_OPEN", "loses its consumer each time"},
		{"half and half", func(g *Group) {
			g.Suspects = []Letter{message(ended(2, "nack")...), message(ended(1, "lapse")...), message(ended(1, "lapse")...)}
		}, "CIRCUIT_OPEN CONSUMER_CRASHES", ""},
		{"crashes of long ago", func(g *Group) {
			g.Suspects = []Letter{message(Attempt{Member: "m", Ended: now - time.Hour.Milliseconds(), Outcome: "session-lost"})}
		}, "CIRCUIT_OPEN", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			f := three()
			g := &f.Groups[0]
			g.Now.Lag, g.Before.Lag, g.Circuits, g.BreakerKeys = 40, 40, []Circuit{{Opened: 1}}, 20
			c.plant(g)
			var causes []string
			found := Diagnose(f, Options{})
			for _, x := range found {
				causes = append(causes, string(x.Cause))
			}
			if got := strings.Join(causes, " "); got != c.want || found[0].Severity != Warning {
				t.Fatalf("%q, want %q: %+v", got, c.want, found)
			}
			if got := found[0].Text + strings.Join(found[0].Evidence, ";"); !strings.Contains(got, c.says) {
				t.Errorf("%q does not say %q", got, c.says)
			}
			if last := found[len(found)-1]; len(found) > 1 && last.Cause == CircuitOpen && !strings.Contains(last.Text, string(found[0].Cause)) {
				t.Errorf("the circuit does not say from what it follows: %+v", last)
			}
		})
	}
}
