package httpapi

import (
	"errors"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/strandmq/strandmq/internal/plain"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

const (
	events  = "text/event-stream"
	jsonOne = "application/json"
)

// gap is messages that are not kept any more.
type gap struct {
	Partition uint32 `json:"partition"`
	First     uint64 `json:"first"`
	Last      uint64 `json:"last"`
}

// read shows messages: some of them, all there are line by line, or as events for as
// long as the caller listens.
func (a *api) read(w http.ResponseWriter, r *http.Request) error {
	form := accepted(r)
	f, q, err := query(r, "partition")
	if err != nil {
		return err
	}
	req := &strandmqv1.ReadRequest{Topic: r.PathValue("topic"), BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES, WaitMs: f.span("wait").Milliseconds()}
	from, has := f.given("from")
	limit := f.number("limit", math.MaxInt64)
	coded := f.coded()
	follow := form == lines && f.yes("follow")
	if err := f.done(); err != nil {
		return err
	}
	if limit != nil && *limit == 0 {
		return refuse("BAD_VALUE", "limit", "a limit of 0 reads nothing: give 1 or more, or leave it out")
	}
	if follow && req.GetWaitMs() != 0 {
		return refuse("BAD_REQUEST", "wait", "with follow the answer goes on for as long as you listen: leave wait out")
	}
	field := "from"
	if form == events {
		if id := r.Header.Get("Last-Event-ID"); id != "" {
			if err := a.sameStream(req.GetTopic(), id, from, q["partition"]); err != nil {
				return err
			}
			from, has, field = id, true, "Last-Event-ID"
		}
		if !has {
			from, has = "latest", true
		}
		if req.GetWaitMs() != 0 {
			return refuse("BAD_REQUEST", "wait", "events come for as long as you listen: leave wait out")
		}
	}
	if err := whence(req, field, from, has, q["partition"]); err != nil {
		return err
	}
	if r.Method == http.MethodHead && form != jsonOne {
		// Nothing is sent, so there is nothing to wait for.
		req.WaitMs, req.MaxMessages = 0, 1
		if _, err := a.calls.read.Read(r.Context(), req); err != nil {
			return asked(err)
		}
		w.Header().Set("Content-Type", form)
		w.WriteHeader(http.StatusOK)
		return nil
	}
	if form == jsonOne {
		return a.readSome(w, r, req, limit, coded)
	}
	s := &stream{api: a, w: w, rc: http.NewResponseController(w), ctx: r.Context(), req: req, coded: coded, events: form == events, beat: beat, left: math.MaxInt64}
	if limit != nil {
		s.left = int64(*limit)
	}
	s.forever = s.events || follow
	return s.run()
}

// sameStream refuses an event's id that names other partitions than the stream reads:
// those that are missing would be passed over.
func (a *api) sameStream(topic, id, from string, partitions []string) error {
	places, incarnation, err := parsePlaces("Last-Event-ID", id)
	if err != nil {
		return err
	}
	named := map[uint32]bool{}
	for _, p := range places {
		named[p.GetPartition()] = true
	}
	req := &strandmqv1.ReadRequest{}
	if err := whence(req, "from", from, isPlaces(from), partitions); err != nil {
		return err
	}
	reads := req.GetPartitions()
	for _, p := range req.GetPlaces() {
		reads = append(reads, p.GetPartition())
	}
	n, now, err := a.cfg.Topic(topic)
	if err != nil {
		return err
	}
	if incarnation != 0 && incarnation != now {
		return nil // whoever reads is refused for that
	}
	if len(reads) == 0 {
		for i := range n {
			reads = append(reads, uint32(i))
		}
	}
	for _, p := range reads {
		if !named[p] {
			return refuse("BAD_VALUE", "Last-Event-ID", "the id has no place in partition %d, which the stream reads: send an event's id as it came, or name the partitions to read, with partition=%d and so on", p, places[0].GetPartition())
		}
	}
	if len(places) > len(reads) {
		return refuse("BAD_VALUE", "Last-Event-ID", "the id names %d partitions, and the stream reads %d: send an event's id as it came", len(places), len(reads))
	}
	return nil
}

// accepted is the form that the caller asks for: of those that are named, the one
// with the highest weight; of several, the first. A weight of 0 is a no.
func accepted(r *http.Request) string {
	best, form := 0.0, jsonOne
	for _, header := range r.Header.Values("Accept") {
		for one := range strings.SplitSeq(header, ",") {
			kind, params, _ := mime.ParseMediaType(one)
			if kind != events && kind != lines && kind != jsonOne {
				continue
			}
			weight := 1.0
			if q, has := params["q"]; has {
				var err error
				if weight, err = strconv.ParseFloat(q, 64); err != nil {
					continue
				}
			}
			if weight > best {
				best, form = weight, kind
			}
		}
	}
	return form
}

// whence reads where to begin.
func whence(req *strandmqv1.ReadRequest, field, from string, has bool, partitions []string) error {
	for _, p := range partitions {
		n, err := strconv.ParseUint(p, 10, 32)
		if err != nil {
			return refuse("BAD_VALUE", "partition", "%s is no partition: they are numbered from 0", plain.Quote(p))
		}
		req.Partitions = append(req.Partitions, uint32(n))
	}
	var err error
	switch {
	case has && isPlaces(from):
		// An event's id says which partitions were read.
		if len(partitions) > 0 && field == "from" {
			return refuse("BAD_REQUEST", "partition", "the place in from says which partitions are read: leave partition out")
		}
		req.Partitions = nil
		req.Places, req.Incarnation, err = parsePlaces(field, from)
	case has:
		req.Start, err = position(field, from)
	}
	return err
}

func (a *api) readSome(w http.ResponseWriter, r *http.Request, req *strandmqv1.ReadRequest, limit *uint64, coded bool) error {
	if limit != nil {
		req.MaxMessages = uint32(min(*limit, math.MaxUint32))
	}
	res, err := a.calls.read.Read(r.Context(), req)
	if err != nil {
		return asked(err)
	}
	out := struct {
		Messages []shown   `json:"messages"`
		Next     string    `json:"next"`
		Lost     []gap     `json:"lost,omitempty"`
		LeftOut  []leftOut `json:"left_out,omitempty"`
	}{make([]shown, len(res.GetMessages())), places(res.GetNext(), res.GetIncarnation()), gaps(res.GetGaps()), a.leftOut(res.GetLeftOut())}
	for i, m := range res.GetMessages() {
		out.Messages[i] = show(m.GetMessage(), m.GetPartition(), m.GetOffset(), coded)
	}
	answer(w, http.StatusOK, out)
	return nil
}

// asked gives the fields of a refused Read the names of the parameters.
func asked(err error) error {
	p := problemOf(err)
	switch p.field {
	case "max":
		p.field = "limit"
	case "start", "start.offset", "places", "incarnation":
		p.field = "from"
	case "partitions":
		p.field = "partition"
	}
	return p
}

func gaps(list []*strandmqv1.ReadGap) []gap {
	out := make([]gap, len(list))
	for i, g := range list {
		out[i] = gap{g.GetPartition(), g.GetFirst(), g.GetLast()}
	}
	return out
}

// readOne gives one message's value as it is stored.
func (a *api) readOne(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	number, bad := strconv.ParseUint(r.PathValue("partition"), 10, 32)
	offset, worse := strconv.ParseUint(r.PathValue("offset"), 10, 63)
	if errors.Join(bad, worse) != nil {
		return refuse("BAD_VALUE", "", "the path has to end with the numbers of a partition and an offset, such as /messages/0/17")
	}
	res, err := a.calls.read.Read(r.Context(), &strandmqv1.ReadRequest{
		Topic: r.PathValue("topic"), Places: []*strandmqv1.ReadPlace{{Partition: uint32(number), Offset: offset}}, MaxMessages: 1, MaxBytes: 1,
		BodyFormat: strandmqv1.BodyFormat_BODY_FORMAT_BYTES,
	})
	switch {
	case err != nil && problemOf(err).reason == "OFFSET_BEYOND_END":
		return refuse("UNKNOWN_MESSAGE", "offset", "partition %d has no offset %d yet", number, offset)
	case err != nil:
		return err
	case len(res.GetGaps()) > 0:
		return refuse("OFFSET_EXPIRED", "offset", "partition %d keeps messages from offset %d on: ask for that one or a later one", number, res.GetGaps()[0].GetLast()+1)
	case len(res.GetMessages()) == 0:
		return refuse("UNKNOWN_MESSAGE", "offset", "partition %d has no offset %d yet", number, offset)
	}
	m := res.GetMessages()[0].GetMessage()
	h := w.Header()
	h.Set("Strandmq-Partition", strconv.FormatUint(number, 10))
	h.Set("Strandmq-Offset", strconv.FormatUint(offset, 10))
	h.Set("Strandmq-Published", instant(m.GetPublishTime()))
	if m.GetKeyKind() != nil {
		h.Set("Strandmq-Key", url.PathEscape(m.GetKey()+string(m.GetKeyBytes())))
	}
	if m.GetId() != "" {
		h.Set("Strandmq-Id", url.PathEscape(m.GetId()))
	}
	for _, one := range m.GetHeaders() {
		h.Add(headerPrefix+one.GetName(), url.PathEscape(one.GetValue()+string(one.GetValueBytes())))
	}
	// Never what a browser would show or run as the broker's own.
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment")
	h.Set("Content-Length", strconv.Itoa(len(m.GetBytes())))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(m.GetBytes())
	return nil
}
