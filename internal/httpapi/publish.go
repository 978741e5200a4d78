package httpapi

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/strandmq/strandmq/internal/ndjson"
	"github.com/strandmq/strandmq/internal/plain"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

const (
	lines      = "application/x-ndjson"
	maxLine    = 8 << 20 // the whole request has no more
	maxInBatch = 1000
)

// receipt says where a message is stored.
type receipt struct {
	Partition uint32 `json:"partition"`
	Offset    uint64 `json:"offset"`
	Duplicate bool   `json:"duplicate"`
}

// publish stores a body as it is, or lines of JSON.
func (a *api) publish(w http.ResponseWriter, r *http.Request) error {
	if err := plainBody(r); err != nil {
		return err
	}
	given := r.Header.Get("Content-Type")
	if kind, params, err := mime.ParseMediaType(given); err == nil && kind == lines {
		if charset, has := params["charset"]; has && !strings.EqualFold(charset, "utf-8") {
			return refuse("BAD_CONTENT_TYPE", "Content-Type", "lines are read as UTF-8, and the content type %s says otherwise: send them so, with -H 'Content-Type: application/x-ndjson'", plain.Quote(given))
		}
		return a.publishLines(w, r)
	}
	return a.publishOne(w, r)
}

func (a *api) publishOne(w http.ResponseWriter, r *http.Request) error {
	m, err := metadata(r)
	if err != nil {
		return err
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	m.Body = &strandmqv1.Message_Bytes{Bytes: b}
	topic := r.PathValue("topic")
	res, err := a.calls.publish.Publish(r.Context(), &strandmqv1.PublishRequest{Topic: topic, Messages: []*strandmqv1.Message{m}})
	if err != nil {
		return err
	}
	one := res.GetResults()[0]
	if p := one.GetProblem(); p != nil {
		out := problemFrom(p)
		out.field = strings.TrimPrefix(out.field, "messages[0].")
		return out
	}
	status := http.StatusCreated
	if one.GetReceipt().GetDuplicate() {
		status = http.StatusOK
	}
	stored := receiptOf(one.GetReceipt())
	w.Header().Set("Location", fmt.Sprintf("/v1/topics/%s/messages/%d/%d", url.PathEscape(topic), stored.Partition, stored.Offset))
	answer(w, status, stored)
	return nil
}

const (
	keyHeader = "Strandmq-Key"
	// headerPrefix is what request headers begin with that become headers of the message.
	headerPrefix = "Strandmq-Header-"
	idHeader     = "Idempotency-Key"
)

// metadata reads the key, the id and the headers of a message from the query and the
// request's headers. Header values are percent-encoded where they are not plain.
func metadata(r *http.Request) (*strandmqv1.Message, error) {
	f, q, err := query(r, "header")
	if err != nil {
		return nil, err
	}
	m := &strandmqv1.Message{}
	key, has := f.given("key")
	id, named := f.given("id")
	if err := f.done(); err != nil {
		return nil, err
	}
	if in := r.Header.Values(keyHeader); len(in) > 0 {
		if has || len(in) > 1 {
			return nil, refuse("BAD_KEY", keyHeader, "there are two keys: give one, as the parameter key or as the header Strandmq-Key")
		}
		if key, err = decoded(keyHeader, in[0]); err != nil {
			return nil, err
		}
		has = true
	}
	if has {
		m.KeyKind = &strandmqv1.Message_KeyBytes{KeyBytes: []byte(key)}
	}
	if in := r.Header.Values(idHeader); len(in) > 0 {
		// The header is a string in quotes by its standard, and often is not.
		given := strings.TrimSpace(in[0])
		if n := len(given); n >= 2 && given[0] == '"' && given[n-1] == '"' {
			given = given[1 : n-1]
		}
		if named || len(in) > 1 {
			return nil, refuse("BAD_ID", idHeader, "there are two ids: give one, as the parameter id or as the header Idempotency-Key")
		}
		if given == "" {
			return nil, refuse("BAD_ID", idHeader, "the header Idempotency-Key is empty: give an id, or leave it out")
		}
		if id, err = decoded(idHeader, given); err != nil {
			return nil, err
		}
		if !utf8.ValidString(id) {
			return nil, refuse("BAD_ID", idHeader, "the id in Idempotency-Key is not in UTF-8")
		}
	}
	m.Id = id
	for _, h := range q["header"] {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return nil, refuse("BAD_HEADER", "header", "the parameter header has to be name:value, and %s has no colon", plain.Quote(h))
		}
		m.Headers = append(m.Headers, &strandmqv1.Header{Name: name, ValueKind: &strandmqv1.Header_Value{Value: strings.TrimPrefix(value, " ")}})
	}
	for _, name := range ours(r) {
		if name == keyHeader {
			continue
		}
		if !strings.HasPrefix(name, headerPrefix) {
			return nil, refuse("BAD_REQUEST", name, "the header %s says nothing about a message: there are Strandmq-Key, Strandmq-Header- with a name, and Idempotency-Key", name)
		}
		for _, v := range r.Header[name] {
			v, err := decoded(name, v)
			if err != nil {
				return nil, err
			}
			m.Headers = append(m.Headers, &strandmqv1.Header{
				Name: strings.ToLower(strings.TrimPrefix(name, headerPrefix)), ValueKind: &strandmqv1.Header_ValueBytes{ValueBytes: []byte(v)},
			})
		}
	}
	return m, nil
}

// ours are the names of the request's headers that are this API's own, in order: how
// they came is not known.
func ours(r *http.Request) (names []string) {
	for name := range r.Header {
		if strings.HasPrefix(name, "Strandmq-") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func decoded(name, value string) (string, error) {
	out, err := url.PathUnescape(value)
	if err != nil {
		return "", refuse("BAD_HEADER", name, "the header %s is not percent-encoded as it should be: write %% as %%25, and what is not plain text likewise", name)
	}
	return out, nil
}

func receiptOf(r *strandmqv1.Receipt) receipt {
	return receipt{r.GetPartition(), r.GetOffset(), r.GetDuplicate()}
}

// publishLines stores one message a line.
func (a *api) publishLines(w http.ResponseWriter, r *http.Request) error {
	f, _, err := query(r)
	if err != nil {
		return err
	}
	inOrder := f.yes("in_order")
	if err := f.done(); err != nil {
		return err
	}
	beside := ours(r)
	if len(r.Header.Values(idHeader)) > 0 {
		beside = append(beside, idHeader)
	}
	if len(beside) > 0 {
		return refuse("BAD_REQUEST", beside[0], "the header %s is for a body with one message: give each line a key, an id and headers of its own", beside[0])
	}
	req := &strandmqv1.PublishRequest{Topic: r.PathValue("topic"), InOrder: inOrder}
	numbers, err := messages(r.Body, req)
	if err != nil {
		return err
	}
	res, err := a.calls.publish.Publish(r.Context(), req)
	if err != nil {
		return err
	}
	results := make([]any, len(res.GetResults()))
	var first *problem
	refused := 0
	for i, one := range res.GetResults() {
		p := one.GetProblem()
		if p == nil {
			results[i] = receiptOf(one.GetReceipt())
			continue
		}
		refused++
		told := problemFrom(p)
		told.field = strings.TrimPrefix(told.field, fmt.Sprintf("messages[%d].", i))
		results[i] = map[string]any{"line": numbers[i], "problem": told.written(a.cfg.Row)}
		if first == nil {
			first = told
			first.detail = fmt.Sprintf("line %d: %s", numbers[i], told.detail)
		}
	}
	if first != nil {
		whole := *first
		whole.results = results
		switch {
		case refused < len(results):
			whole.detail = fmt.Sprintf("refused: %d of %d messages, and the others are stored; the first refused is %s", refused, len(results), first.detail)
		case refused > 1:
			whole.detail = fmt.Sprintf("all %d messages were refused; the first is %s", refused, first.detail)
		default:
			whole.detail = first.detail
		}
		return &whole
	}
	answer(w, http.StatusOK, map[string]any{"results": results})
	return nil
}

// messages reads lines into a request, and gives the number of each.
func messages(in io.Reader, req *strandmqv1.PublishRequest) (numbers []int, err error) {
	for read := ndjson.NewReader(in, ndjson.Config{MaxLine: maxLine}); ; {
		line, err := read.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if bad := (*ndjson.Error)(nil); errors.As(err, &bad) {
			return nil, refuse("BAD_REQUEST", fmt.Sprintf("line %d", bad.Line), "%s; nothing was stored", bad)
		}
		if err != nil {
			return nil, err
		}
		if len(numbers) == maxInBatch {
			return nil, refuse("BATCH_TOO_LARGE", "", "the request has more than %d lines: send at most so many at once", maxInBatch)
		}
		m, err := message(line.Text)
		if err != nil {
			p := problemOf(err)
			p.detail = fmt.Sprintf("line %d: %s; nothing was stored", line.Number, p.detail)
			return nil, p
		}
		req.Messages, numbers = append(req.Messages, m), append(numbers, line.Number)
	}
	if len(numbers) == 0 {
		return nil, refuse("BAD_VALUE", "", "the request has no lines: send 1 to %d", maxInBatch)
	}
	return numbers, nil
}
