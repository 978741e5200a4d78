package httpapi

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/strandmq/strandmq/internal/offsets"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// delivery is a message that was handed out.
type delivery struct {
	shown
	Attempt   uint32 `json:"attempt"`
	Token     string `json:"token"`
	Deadline  string `json:"deadline,omitempty"`
	FirstSeen string `json:"first_seen,omitempty"`
	Fence     uint64 `json:"fence"`
	Replayed  bool   `json:"replayed"`
	Settled   bool   `json:"settled,omitempty"`
}

// poll waits for deliveries.
func (a *api) poll(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	f, err := body(r, false)
	if err != nil {
		return err
	}
	req := &strandmqv1.ReceiveRequest{
		Topic: r.PathValue("topic"), Group: r.PathValue("group"), BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES,
		Member: f.text("member"), Session: f.text("session"), RequestId: f.text("request_id"), CreateGroup: f.yes("create"),
		WaitMs: f.span("wait").Milliseconds(),
	}
	if n := f.number("max", math.MaxUint32); n != nil {
		req.MaxMessages = uint32(*n)
	}
	if n := f.number("max_bytes", math.MaxUint32); n != nil {
		req.MaxBytes = uint32(*n)
	}
	coded := f.coded()
	if err := f.done(); err != nil {
		return err
	}
	res, err := a.calls.consume.Receive(r.Context(), req)
	if err != nil {
		return err
	}
	out := struct {
		Deliveries []delivery `json:"deliveries"`
		Session    string     `json:"session"`
		Idle       string     `json:"idle_reason,omitempty"`
	}{make([]delivery, len(res.GetDeliveries())), res.GetSession(), res.GetIdleReason()}
	for i, d := range res.GetDeliveries() {
		out.Deliveries[i] = delivery{
			show(d.GetMessage(), d.GetPartition(), d.GetOffset(), coded), d.GetAttempt(), d.GetToken(), instant(d.GetDeadline()), instant(d.GetFirstSeen()),
			d.GetFence(), d.GetReplayed(), d.GetSettled(),
		}
	}
	answer(w, http.StatusOK, out)
	return nil
}

// coded tells whether all values are to be in base64.
func (f *fields) coded() bool {
	how, has := f.given("encoding")
	if has && how != asBase64 {
		f.fail("encoding", "can only be base64, for all values; leave it out to have text and JSON as such")
	}
	return how == asBase64
}

// settle makes the handler of one way to settle.
func settle(action strandmqv1.SettleAction, delay, reason bool) func(*api, http.ResponseWriter, *http.Request) error {
	return func(a *api, w http.ResponseWriter, r *http.Request) error {
		if err := noParameters(r); err != nil {
			return err
		}
		f, err := body(r, false)
		if err != nil {
			return err
		}
		req := &strandmqv1.SettleRequest{Topic: r.PathValue("topic"), Group: r.PathValue("group"), Member: f.text("member"), Session: f.text("session")}
		like := &strandmqv1.Settlement{Action: action}
		if delay {
			like.DelayMs = f.span("delay").Milliseconds()
		}
		if reason {
			like.Reason = f.text("reason")
		}
		tokens := f.texts("tokens")
		if err := f.done(); err != nil {
			return err
		}
		if len(tokens) == 0 {
			return refuse("BAD_VALUE", "tokens", "there are no tokens: send those of 1 to %d deliveries", maxInBatch)
		}
		for _, t := range tokens {
			req.Settlements = append(req.Settlements, &strandmqv1.Settlement{Token: t, Action: like.GetAction(), DelayMs: like.GetDelayMs(), Reason: like.GetReason()})
		}
		res, err := a.calls.consume.Settle(r.Context(), req)
		if err != nil {
			return err
		}
		return a.settled(w, tokens, res.GetResults())
	}
}

// leave ends a member's session: what it holds goes back at once, and its keys to
// the others.
func (a *api) leave(w http.ResponseWriter, r *http.Request) error {
	f, _, err := query(r)
	if err != nil {
		return err
	}
	session := f.text("session")
	if err := f.done(); err != nil {
		return err
	}
	if session == "" {
		return refuse("BAD_VALUE", "session", "the parameter \"session\" is missing: give the one that poll answered, so that no later one of the same member ends")
	}
	req := &strandmqv1.LeaveRequest{Topic: r.PathValue("topic"), Group: r.PathValue("group"), Member: r.PathValue("member"), Session: session}
	if _, err := a.calls.consume.Leave(r.Context(), req); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// settledOne is what became of one delivery.
type settledOne struct {
	Token        string   `json:"token"`
	Deadline     string   `json:"deadline,omitempty"`
	DeadLettered bool     `json:"dead_lettered"`
	Problem      *written `json:"problem,omitempty"`
}

func (a *api) settled(w http.ResponseWriter, tokens []string, of []*strandmqv1.SettleResult) error {
	results := make([]any, len(of))
	var first *problem
	refused := 0
	for i, s := range of {
		one := settledOne{Token: tokens[i], Deadline: instant(s.GetDeadline()), DeadLettered: s.GetDeadLettered()}
		if s.GetProblem() != nil {
			refused++
			p := problemFrom(s.GetProblem())
			if _, field, ok := strings.Cut(p.field, "]."); ok {
				p.field = field
			}
			out := p.written(a.cfg.Row)
			one.Problem = &out
			if first == nil {
				first = p
			}
		}
		results[i] = one
	}
	if first == nil {
		answer(w, http.StatusOK, map[string]any{"results": results})
		return nil
	}
	whole := *first
	whole.results = results
	if len(of) > 1 {
		others := ", and the others are settled"
		if refused == len(of) {
			others = ""
		}
		whole.detail = fmt.Sprintf("%d of %d deliveries were refused%s; the first refused: %s", refused, len(of), others, first.detail)
	}
	return &whole
}

// seek moves the group.
func (a *api) seek(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	f, err := body(r, false)
	if err != nil {
		return err
	}
	req := &strandmqv1.ResetGroupRequest{Topic: r.PathValue("topic"), Group: r.PathValue("group"), DryRun: f.yes("dry_run")}
	if n := f.number("partition", math.MaxUint32); n != nil {
		req.Partition = new(uint32(*n))
	}
	to, has := f.given("to")
	if err := f.done(); err != nil {
		return err
	}
	if !has {
		return refuse("BAD_REQUEST", "to", "the field \"to\" is missing: use %s", offsets.Grammar)
	}
	if req.To, err = position("to", to); err != nil {
		return err
	}
	res, err := a.calls.groups.ResetGroup(r.Context(), req)
	if err != nil {
		return err
	}
	type moved struct {
		Partition uint32 `json:"partition"`
		From      uint64 `json:"from"`
		To        uint64 `json:"to"`
	}
	out := struct {
		Partitions []moved   `json:"partitions"`
		LeftOut    []leftOut `json:"left_out,omitempty"`
	}{make([]moved, len(res.GetPartitions())), a.leftOut(res.GetLeftOut())}
	for i, p := range res.GetPartitions() {
		out.Partitions[i] = moved{p.GetPartition(), p.GetFrom(), p.GetTo()}
	}
	answer(w, http.StatusOK, out)
	return nil
}

// leftOut is a partition that stopped, so that an answer is without it.
type leftOut struct {
	Partition uint32  `json:"partition"`
	Problem   written `json:"problem"`
}

func (a *api) leftOut(list []*strandmqv1.LeftOut) []leftOut {
	out := make([]leftOut, len(list))
	for i, l := range list {
		out[i] = leftOut{l.GetPartition(), problemFrom(l.GetProblem()).written(a.cfg.Row)}
	}
	return out
}

// position reads a place in a log as everywhere: earliest, latest, 17, -10, @-15m.
func position(field, text string) (*strandmqv1.StartPosition, error) {
	p, err := offsets.Parse(text)
	if err != nil {
		return nil, refuse("BAD_VALUE", field, "%s", err)
	}
	switch p = p.At(time.Now()); p.Kind {
	case offsets.Latest:
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Latest{Latest: true}}, nil
	case offsets.Offset:
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Offset{Offset: p.N}}, nil
	case offsets.FromEnd:
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_FromEnd{FromEnd: p.N}}, nil
	case offsets.Time, offsets.Ago:
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Time{Time: timestamppb.New(p.Time)}}, nil
	default:
		return &strandmqv1.StartPosition{At: &strandmqv1.StartPosition_Earliest{Earliest: true}}, nil
	}
}
