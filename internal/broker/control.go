package broker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/strandmq/strandmq/coordinator"
	"github.com/strandmq/strandmq/partition"
	nodev1 "github.com/strandmq/strandmq/proto/node/v1"
	"github.com/strandmq/strandmq/proto/strandmq/v1/strandmqv1connect"
)

// What changes the map is answered by the node that leads the metadata log. Every
// node has the map; calls that need another one's are passed on whole, and are
// answered here when the map here has what the answer speaks of.
//
//	caller ──► control ──led here?──► the method
//	              └──else, whole──► passedOn at the leader ──► the method
//	caller ◄── map here has the revision? ◄── answer + revision

// The headers between nodes.
const (
	revisionHeader  = "Strandmq-Revision"   // of an answer: the map that it speaks of
	misroutedHeader = "Strandmq-Not-Leader" // of a refusal: the leader, 0 if it is not known
)

// passed are the methods that are passed on.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var passed = map[string]bool{
	strandmqv1connect.TopicServiceCreateTopicProcedure: true, strandmqv1connect.TopicServiceAlterTopicProcedure: true,
	strandmqv1connect.TopicServiceDeleteTopicProcedure: true, strandmqv1connect.GroupServiceCreateGroupProcedure: true,
	strandmqv1connect.GroupServiceAlterGroupProcedure: true, strandmqv1connect.GroupServicePauseGroupProcedure: true,
	strandmqv1connect.GroupServiceResumeGroupProcedure: true, strandmqv1connect.GroupServiceDeleteGroupProcedure: true,
	strandmqv1connect.GroupServiceDescribeGroupProcedure: true, // it alone hears of members
	// It alone hears of nodes.
	strandmqv1connect.ClusterServiceDescribeClusterProcedure: true, strandmqv1connect.ClusterServiceCreateJoinTokenProcedure: true,
	strandmqv1connect.ClusterServiceDrainNodeProcedure: true, strandmqv1connect.ClusterServiceReplaceNodeProcedure: true,
	strandmqv1connect.ClusterServiceRemoveNodeProcedure: true, strandmqv1connect.ClusterServiceMovePartitionProcedure: true,
}

// LeadMetadata finishes what the leader before left half done. It is for a node
// among others, when it begins to lead the metadata log; a node alone does the same
// at its start.
func (b *Broker) LeadMetadata(ctx context.Context) error {
	if err := b.reconcile(ctx); err != nil {
		return err
	}
	b.findHolders(ctx)
	return ctx.Err()
}

// control passes calls on that this node cannot answer.
func (b *Broker) control(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// What far is stands fast when the node is ready.
		if !passed[r.URL.Path] || b.ready() != nil || b.far == nil || b.far.here(partition.Metadata) ||
			looking[r.URL.Path] && len(b.missing(partition.Metadata)) > 0 {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			r.Body = io.NopCloser(errReader{err}) // the method words it
			next.ServeHTTP(w, r)
			return
		}
		if err := b.pass(w, r, body, next); err != nil {
			refused := b.explain(err)
			b.refused(r.Context(), r.URL.Path, refused.reason)
			writeRefusal(w, http.StatusServiceUnavailable, refused, requestOf(r.Context()))
		}
	})
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

// pass carries one call to the leader of the metadata log, looking for it for a
// while.
func (b *Broker) pass(w http.ResponseWriter, r *http.Request, body []byte, next http.Handler) error {
	ctx := r.Context()
	p := newPatience(ctx)
	for {
		n := b.far.leader(partition.Metadata)
		if n == b.cfg.Node {
			r.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(w, r)
			return nil
		}
		err := notLed(partition.Metadata)
		if n != 0 {
			if err = b.passTo(ctx, w, r, body, n); err == nil {
				return nil
			}
		}
		if !notTaken(err) {
			return err
		}
		b.far.learn(partition.Metadata, err)
		if !p.wait(ctx) {
			return refused(partition.Metadata, err)
		}
	}
}

// passTo carries a call to one node and its answer back. With an error nothing was
// answered yet.
func (b *Broker) passTo(ctx context.Context, w http.ResponseWriter, r *http.Request, body []byte, n partition.NodeID) error {
	client, url := b.far.peers.Client(n)
	if client == nil {
		return &errUnreached{node: n, err: errors.New("its address is not known")}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = r.Header.Clone()
	requestOf(ctx).to(req.Header)
	res, err := client.Do(req)
	if err != nil {
		if notSent(err) {
			return &errUnreached{node: n, err: err}
		}
		return &partition.ErrOutcomeUnknown{Partition: partition.Metadata, Why: "the connection to node " + n.String() + " broke before its answer came"}
	}
	defer func() { _ = res.Body.Close() }()
	if hint := res.Header.Get(misroutedHeader); hint != "" {
		leader, _ := strconv.ParseUint(hint, 10, 64)
		return &partition.ErrNotLeader{Partition: partition.Metadata, Leader: partition.NodeID(leader)}
	}
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxHop))
	if err != nil {
		return &partition.ErrOutcomeUnknown{Partition: partition.Metadata, Why: "the answer of node " + n.String() + " broke off"}
	}
	if revision, err := strconv.ParseUint(res.Header.Get(revisionHeader), 10, 64); err == nil {
		b.awaitRevision(ctx, revision)
	}
	res.Header.Del(revisionHeader)
	h := w.Header()
	maps.Copy(h, res.Header)
	for k := range res.Trailer {
		h.Add("Trailer", k)
	}
	w.WriteHeader(res.StatusCode)
	_, _ = w.Write(answer)
	for k, v := range res.Trailer {
		h[k] = v
	}
	return nil
}

// passedOn answers the calls that other nodes pass on, if this node leads the
// metadata log.
func (b *Broker) passedOn() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !passed[r.URL.Path] {
			http.NotFound(w, r)
			return
		}
		err := error(&partition.ErrStopped{})
		if b.ready() == nil {
			err = b.led(uint64(partition.Metadata))
		}
		if err != nil {
			var not *partition.ErrNotLeader
			leader := partition.NodeID(0)
			if errors.As(err, &not) {
				leader = not.Leader
			}
			w.Header().Set(misroutedHeader, strconv.FormatUint(uint64(leader), 10))
			w.WriteHeader(http.StatusMisdirectedRequest)
			return
		}
		b.api.ServeHTTP(&revised{ResponseWriter: w, b: b}, identified(w, r))
	})
}

// revised puts the map's revision on an answer as it begins: what the call did is
// in the map by then.
type revised struct {
	http.ResponseWriter
	b    *Broker
	done bool
}

func (r *revised) WriteHeader(status int) {
	if !r.done {
		r.done = true
		r.Header().Set(revisionHeader, strconv.FormatUint(r.b.coord.View().Revision, 10))
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *revised) Write(p []byte) (int, error) {
	if !r.done {
		r.WriteHeader(http.StatusOK)
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap lets a ResponseController find what is below.
func (r *revised) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Flush implements http.Flusher.
func (r *revised) Flush() { _ = http.NewResponseController(r.ResponseWriter).Flush() }

// awaitRevision waits until the map here is as new as one elsewhere, for as long
// as a call looks for a leader.
func (b *Broker) awaitRevision(ctx context.Context, revision uint64) {
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	for {
		m, changed := b.coord.Watch()
		if m.Revision >= revision {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// revision is how new the map here is.
func (b *Broker) revision() uint64 { return b.coord.View().Revision }

// caughtUp asks the leader of the metadata log how far its map is, and waits for
// it. It tells whether the map here is newer then than the one that was looked into,
// of which seen is the revision: it may have become so by itself since.
func (b *Broker) caughtUp(ctx context.Context, seen uint64) bool {
	if b.far == nil || b.revision() > seen {
		return b.far != nil
	}
	if b.far.here(partition.Metadata) {
		return false
	}
	res, err := atMetadata(ctx, b, true, func(r *remote) (*nodev1.RevisionResponse, error) {
		return r.sessions.Revision(ctx, &nodev1.RevisionRequest{})
	})
	if err != nil {
		return false
	}
	b.awaitRevision(ctx, res.GetRevision())
	return b.revision() > seen
}

// atMetadata calls the node that leads the metadata log, which is another one.
func atMetadata[T any](ctx context.Context, b *Broker, twice bool, call func(*remote) (T, error)) (T, error) {
	p := newPatience(ctx)
	for {
		var out T
		n := b.far.leader(partition.Metadata)
		err := notLed(partition.Metadata)
		switch n {
		case 0:
		case b.cfg.Node:
			// It may have come to lead since the caller looked, and be the only one that
			// ever will: a cluster that starts waits for that.
			out, err = call(b.nearby())
		default:
			var r *remote
			if r, err = b.far.remote(n); err == nil {
				out, err = call(r)
				err = r.failed(partition.Metadata, err)
			}
		}
		if err == nil || !notTaken(err) && !(twice && errors.As(err, new(*partition.ErrOutcomeUnknown))) {
			return out, err
		}
		b.far.learn(partition.Metadata, err)
		if !p.wait(ctx) {
			return out, refused(partition.Metadata, err)
		}
	}
}

// createGroupThere creates a group with the default policy at the leader of the
// metadata log.
func (b *Broker) createGroupThere(ctx context.Context, topic, group string) error {
	_, err := atMetadata(ctx, b, true, func(r *remote) (*nodev1.EnsureGroupResponse, error) {
		return r.sessions.EnsureGroup(ctx, &nodev1.EnsureGroupRequest{Topic: topic, Group: group})
	})
	if err == nil {
		b.caughtUp(ctx, b.revision())
	}
	return err
}

// members opens, keeps and ends sessions.
type members interface {
	Join(ctx context.Context, topic, group, member string) (coordinator.Joined, error)
	JoinStream(ctx context.Context, topic, group, member string) (coordinator.Joined, error)
	Open(ctx context.Context, topic, group, member string) (coordinator.Joined, error)
	Heartbeat(ctx context.Context, group coordinator.GroupID, member string, session uint64) (*coordinator.Member, error)
	Drain(ctx context.Context, group coordinator.GroupID, member string, session uint64) error
	Leave(ctx context.Context, group coordinator.GroupID, member string, session uint64) error
}

// miss says that nothing was heard of a session since a call of it broke off.
func (b *Broker) miss(ctx context.Context, group coordinator.GroupID, member string, session uint64, silent time.Duration) error {
	if b.far == nil || b.far.here(partition.Metadata) {
		return b.coord.Miss(group, member, session, partition.Millis(silent.Milliseconds()))
	}
	if f, ok := b.members.(*farMembers); ok {
		f.forget(session)
	}
	_, err := atMetadata(ctx, b, true, func(r *remote) (*nodev1.MissResponse, error) {
		return r.sessions.Miss(ctx, &nodev1.MissRequest{Group: uint64(group), Member: member, Session: session, SilentMs: silent.Milliseconds()})
	})
	return err
}

// farMembers are members where another node may lead the metadata log.
type farMembers struct {
	b *Broker

	mu   sync.Mutex
	told map[uint64]time.Time // guarded by mu: when a session was last said to live
}

// heardEvery is how many signs of life of a session go to the leader per timeout.
const heardEvery = 10

// Join implements members.
func (f *farMembers) Join(ctx context.Context, topic, group, member string) (coordinator.Joined, error) {
	return f.join(ctx, topic, group, member, nodev1.JoinKind_JOIN_KIND_UNSPECIFIED, f.b.coord.Join)
}

// JoinStream implements members.
func (f *farMembers) JoinStream(ctx context.Context, topic, group, member string) (coordinator.Joined, error) {
	return f.join(ctx, topic, group, member, nodev1.JoinKind_JOIN_KIND_STREAM, f.b.coord.JoinStream)
}

// Open implements members.
func (f *farMembers) Open(ctx context.Context, topic, group, member string) (coordinator.Joined, error) {
	if t, g, err := f.b.coord.View().Group(topic, group); err == nil {
		if m, ok := g.Member(member); ok && m.Takes() {
			if _, err := f.Heartbeat(ctx, g.ID, member, m.Session); err == nil {
				return coordinator.Joined{Topic: t, Group: g, Member: m}, nil
			}
		}
	}
	return f.join(ctx, topic, group, member, nodev1.JoinKind_JOIN_KIND_OPEN, f.b.coord.Open)
}

func (f *farMembers) join(
	ctx context.Context, topic, group, member string, kind nodev1.JoinKind, here func(context.Context, string, string, string) (coordinator.Joined, error),
) (coordinator.Joined, error) {
	if f.b.far.here(partition.Metadata) {
		return here(ctx, topic, group, member)
	}
	res, err := atMetadata(ctx, f.b, kind == nodev1.JoinKind_JOIN_KIND_OPEN, func(r *remote) (*nodev1.JoinResponse, error) {
		return r.sessions.Join(ctx, &nodev1.JoinRequest{Topic: topic, Group: group, Member: member, Kind: kind})
	})
	if err != nil {
		return coordinator.Joined{}, err
	}
	f.b.awaitRevision(ctx, res.GetRevision())
	t, g, err := f.b.coord.View().Group(topic, group)
	if err != nil {
		return coordinator.Joined{}, err
	}
	m, err := g.Session(member, res.GetSession())
	if err != nil {
		return coordinator.Joined{}, err
	}
	f.note(m.Session)
	return coordinator.Joined{Topic: t, Group: g, Member: m, Replaced: res.GetReplaced()}, nil
}

// note remembers that the leader has just heard of a session.
func (f *farMembers) note(session uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if len(f.told) > 10_000 {
		maps.DeleteFunc(f.told, func(_ uint64, at time.Time) bool { return now.Sub(at) > f.b.cfg.SessionTimeout })
	}
	f.told[session] = now
}

// forget has the next sign of life of a session passed on, whenever the last one was.
func (f *farMembers) forget(session uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.told, session)
}

// Heartbeat implements members. The leader hears of a session a few times per
// timeout, and of one that is away at once.
func (f *farMembers) Heartbeat(ctx context.Context, group coordinator.GroupID, member string, session uint64) (*coordinator.Member, error) {
	if f.b.far.here(partition.Metadata) {
		return f.b.coord.Heartbeat(ctx, group, member, session)
	}
	seen := f.b.revision()
	m, err := f.b.coord.View().SessionOf(group, member, session)
	var never *coordinator.ErrNoSession
	if errors.As(err, &never) && f.b.caughtUp(ctx, seen) { // it may have been opened elsewhere just now
		m, err = f.b.coord.View().SessionOf(group, member, session)
	}
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	recent := time.Since(f.told[session]) < f.b.cfg.SessionTimeout/heardEvery
	f.mu.Unlock()
	if recent && !m.Away {
		return m, nil
	}
	res, err := atMetadata(ctx, f.b, true, func(r *remote) (*nodev1.HeartbeatResponse, error) {
		return r.sessions.Heartbeat(ctx, &nodev1.HeartbeatRequest{Group: uint64(group), Member: member, Session: session})
	})
	if err != nil {
		if notTaken(err) || errors.As(err, new(*partition.ErrOutcomeUnknown)) {
			return m, nil // nobody leads for the moment; whoever does next grants a full timeout
		}
		return nil, err
	}
	f.note(session)
	if m.Away {
		f.b.awaitRevision(ctx, res.GetRevision())
		return f.b.coord.View().SessionOf(group, member, session)
	}
	return m, nil
}

// Drain implements members.
func (f *farMembers) Drain(ctx context.Context, group coordinator.GroupID, member string, session uint64) error {
	if f.b.far.here(partition.Metadata) {
		return f.b.coord.Drain(ctx, group, member, session)
	}
	res, err := atMetadata(ctx, f.b, true, func(r *remote) (*nodev1.LeaveResponse, error) {
		return r.sessions.Leave(ctx, &nodev1.LeaveRequest{Group: uint64(group), Member: member, Session: session, Drain: true})
	})
	if err == nil {
		f.note(session)
		f.b.awaitRevision(ctx, res.GetRevision())
	}
	return err
}

// Leave implements members.
func (f *farMembers) Leave(ctx context.Context, group coordinator.GroupID, member string, session uint64) error {
	if f.b.far.here(partition.Metadata) {
		return f.b.coord.Leave(ctx, group, member, session)
	}
	res, err := atMetadata(ctx, f.b, true, func(r *remote) (*nodev1.LeaveResponse, error) {
		return r.sessions.Leave(ctx, &nodev1.LeaveRequest{Group: uint64(group), Member: member, Session: session})
	})
	f.forget(session)
	if err == nil {
		f.b.awaitRevision(ctx, res.GetRevision())
	}
	return err
}
