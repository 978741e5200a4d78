package broker

import (
	"testing"

	"connectrpc.com/connect"

	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// Who has a token may settle with it and name nobody, but not in the name of a
// member that the delivery was not given to; and one wrong name refuses nothing
// else.
func TestSettleForAnother(t *testing.T) {
	b := start(t, t.TempDir())
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	a.store(t, "t", msg("k1", "x"), msg("k2", "x"), msg("k3", "x"))
	join := func(member string) string {
		res, err := a.consume.Join(ctx(t), &strandmqv1.JoinRequest{Topic: "t", Group: "g", Member: member})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetSession()
	}
	s1 := join("m1")
	got := a.receive(t, "t", "g", "m1", 3)
	if len(got) != 3 {
		t.Fatalf("%d deliveries", len(got))
	}
	s2 := join("m2")
	_, g, err := b.group("t", "g")
	if err != nil {
		t.Fatal(err)
	}
	settle := func(member, session string, action strandmqv1.SettleAction, ds ...*strandmqv1.Delivery) ([]*strandmqv1.SettleResult, error) {
		req := &strandmqv1.SettleRequest{Topic: "t", Group: "g", Member: member, Session: session}
		for _, d := range ds {
			req.Settlements = append(req.Settlements, &strandmqv1.Settlement{Token: d.GetToken(), Action: action})
		}
		res, err := a.consume.Settle(ctx(t), req)
		return res.GetResults(), err
	}
	for _, session := range []string{"", s2} {
		res, err := settle("m2", session, nack, got...)
		if err != nil || len(res) != 3 {
			t.Fatal(res, err)
		}
		for _, r := range res {
			if p := r.GetProblem(); p.GetReason() != "NOT_HOLDER" || p.GetRetryAfterMs() != 0 {
				t.Fatalf("another member's name, session %q: %v", session, r)
			}
		}
	}
	for _, c := range []struct{ member, session, reason string }{
		{"m2", s1, "UNKNOWN_SESSION"}, // of another member
		{"m1", s2, "UNKNOWN_SESSION"},
		{"m1", sessionText(g.ID, "m1", 999_999), "UNKNOWN_SESSION"}, // not given out yet
		{"", s1, "BAD_NAME"},
		{"no such name!", "", "BAD_NAME"},
	} {
		_, err := settle(c.member, c.session, nack, got...)
		if err == nil {
			t.Fatalf("member %q, session %q: settled", c.member, c.session)
		}
		wantReason(t, err, c.reason)
	}
	// Nothing was changed by any of it: all three are settled as first attempts.
	for i, c := range []struct{ member, session string }{{"", ""}, {"m1", ""}, {"m1", s1}} {
		res, err := settle(c.member, c.session, ack, got[i])
		if err != nil || res[0].GetProblem() != nil {
			t.Fatalf("as %q of session %q: %v, %v", c.member, c.session, res, err)
		}
	}
	if n := a.describe(t, "t", "g").GetCounts(); n.GetLag() != 0 {
		t.Fatalf("counts %v", n)
	}
}

// A session that never was the member's is told from one that ended, and Leave
// takes the second alone for done.
func TestSessionsThatNeverWere(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir)
	a := newAPI(t, b.URL())
	a.topic(t, "t", 1)
	a.group(t, "t", "g", nil)
	join := func(member string) string {
		res, err := a.consume.Join(ctx(t), &strandmqv1.JoinRequest{Topic: "t", Group: "g", Member: member})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetSession()
	}
	gone := join("gone")
	old := join("m")
	now := join("m")
	other := join("other")
	if _, err := a.consume.Leave(ctx(t), &strandmqv1.LeaveRequest{Topic: "t", Group: "g", Member: "gone", Session: gone}); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		_, g, err := b.group("t", "g")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct{ member, session, reason string }{
			{"m", old, "SESSION_ENDED"},
			{"m", other, "UNKNOWN_SESSION"},
			{"m", gone, "UNKNOWN_SESSION"}, // of one who left
			{"m", sessionText(g.ID, "m", 999_999), "UNKNOWN_SESSION"},
			{"gone", gone, "SESSION_ENDED"},
			{"gone", now, "UNKNOWN_SESSION"},
			{"nobody", other, "UNKNOWN_SESSION"},
			{"nobody", gone, "UNKNOWN_SESSION"},
			{"nobody", old, "UNKNOWN_SESSION"},
			{"nobody", sessionText(g.ID, "nobody", 999_999), "UNKNOWN_SESSION"},
			{"nobody", sessionText(g.ID, "nobody", 1<<64-1), "UNKNOWN_SESSION"},
		} {
			_, err := a.consume.Receive(ctx(t), &strandmqv1.ReceiveRequest{Topic: "t", Group: "g", Member: c.member, Session: c.session})
			if err == nil {
				t.Fatalf("%s receives in session %s", c.member, c.session)
			}
			wantReason(t, err, c.reason)
			_, err = a.consume.Heartbeat(ctx(t), &strandmqv1.HeartbeatRequest{Topic: "t", Group: "g", Member: c.member, Session: c.session})
			if err == nil {
				t.Fatalf("%s lives in session %s", c.member, c.session)
			}
			wantReason(t, err, c.reason)
			_, err = a.consume.Leave(ctx(t), &strandmqv1.LeaveRequest{Topic: "t", Group: "g", Member: c.member, Session: c.session})
			if c.reason == "SESSION_ENDED" {
				if err != nil {
					t.Errorf("%s leaves session %s, which is over: %v", c.member, c.session, err)
				}
				continue
			}
			if connect.CodeOf(err) != connect.CodeNotFound {
				t.Errorf("%s leaves session %s, which never was: %v", c.member, c.session, err)
			}
		}
		// None of it ended a session that goes on.
		for member, session := range map[string]string{"m": now, "other": other} {
			if _, err := a.consume.Heartbeat(ctx(t), &strandmqv1.HeartbeatRequest{Topic: "t", Group: "g", Member: member, Session: session}); err != nil {
				t.Errorf("%s: %v", member, err)
			}
		}
	}
	check()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = start(t, dir) // the last number given out is stored
	a = newAPI(t, b.URL())
	check()
}
