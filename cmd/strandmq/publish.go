package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/strandmq/strandmq/internal/ndjson"
	"github.com/strandmq/strandmq/internal/quantity"
	strandmqv1 "github.com/strandmq/strandmq/proto/strandmq/v1"
)

// publishFlags are what the command line says of a publish.
type publishFlags struct {
	file, keyField, idField, again string
	body, key, id                  string
	headers                        []string
	retryFor                       spanFlag
}

func (a *app) publishCommand() *cobra.Command {
	var f publishFlags
	f.retryFor.d = time.Minute
	c := command(&cobra.Command{
		Use:   "publish TOPIC [--file FILE] [--key-field FIELD]",
		Short: "Publish the lines of a file or of standard input, or one message",
		Long: `Publishes newline-delimited JSON: every line becomes the body of one message, byte
for byte. --key-field names the top-level field that is its key; messages of one
key are stored in the order of the lines. Without it, messages have no key and
no order. The command ends when every message is on the broker's disk.

Nothing is stored twice. Each message has an id, and the broker stores an id of a
topic and key once, for as long as it keeps the message: on a work queue, until
about a second after the last group settled it. So if the command is cut off, or a line is bad, run it again:
lines that are stored already are counted as duplicates. Ids come from --id-field,
or are derived from the first line of the input, the line's number, and the line
itself. So a line that was changed in its place is a new message, and the others
keep their ids; but after a change of the first line, or when lines are put in or
taken out, the lines from there on are new messages. Input that is edited like
that wants --id-field. To publish the same lines once more on purpose, give that
round a name with --again NAME: it is part of the ids, so each name is stored once.

A bad line, or one that the broker refuses, ends the command with its number; the
lines before it are stored, and of its key none behind it, so that the order holds
when it is mended and the command is run again.
While the broker's queues are full, the command waits as long as the broker says.

With --output json, one line is printed for each message: where it is stored.
With --body, one message is published instead of lines.`,
		Example: `  strandmq publish flights --file flights.ndjson --key-field origin
  strandmq publish orders --file orders.ndjson --key-field customer --id-field order
  tail -F app.log.json | strandmq publish logs --key-field host
  strandmq publish flights --file flights.ndjson --key-field origin --again monday
  strandmq publish orders --key c-12 --body '{"total": 9.5}' --header source=shop`,
		Args: exact("TOPIC"),
	}, func(cmd *cobra.Command, args []string) error {
		return a.runPublish(cmd, args[0], &f)
	})
	fl := c.Flags()
	fl.StringVarP(&f.file, "file", "f", "", "the file to read (default standard input; - means that too)")
	fl.StringVar(&f.keyField, "key-field", "", "the field of each line that is the key")
	fl.StringVar(&f.idField, "id-field", "", "the field of each line that is the message id (default: derived)")
	fl.StringVar(&f.again, "again", "", "publish the same lines once more, as the round of this name")
	fl.StringVar(&f.body, "body", "", "publish one message with this body instead of lines")
	fl.StringVar(&f.key, "key", "", "with --body: its key")
	fl.StringVar(&f.id, "id", "", "with --body: its id (default: a new one)")
	fl.StringArrayVar(&f.headers, "header", nil, "a header for each message, name=value; can be repeated")
	fl.Var(&f.retryFor, "retry-for", "how long to try again while the broker is away or full")
	return c
}

func (a *app) runPublish(cmd *cobra.Command, topic string, f *publishFlags) error {
	headers, err := parseHeaders(f.headers)
	if err != nil {
		return err
	}
	p := &publisher{
		api: a.dial(), topic: topic, retryFor: f.retryFor.d,
		waiting: func(err error, d time.Duration) {
			a.talk("waiting %v: %v", d.Round(time.Millisecond), err)
		},
	}
	set := cmd.Flags().Changed
	if set("body") {
		if set("file") || set("key-field") || set("id-field") || set("again") {
			return usagef("--body is one message: --file, --key-field, --id-field and --again are for lines")
		}
		return a.publishOne(cmd.Context(), p, f, set("key"), headers)
	}
	if set("key") || set("id") {
		return usagef("--key and --id are for --body; lines have --key-field and --id-field")
	}
	if f.idField != "" && f.again != "" {
		return usagef("--again is for derived ids: with --id-field the field decides")
	}
	in, name, size := a.in, "standard input", int64(0)
	if f.file != "" && f.file != "-" {
		file, err := os.Open(f.file)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if info.IsDir() {
			return fmt.Errorf("%s is a folder: --file wants a file of JSON lines", f.file)
		}
		in, name, size = file, f.file, info.Size()
	} else if terminal(a.in) {
		a.talk("reading JSON lines from the terminal; end with Ctrl-D")
	}
	// Ask for the topic first, so that a wrong name costs no reading.
	if _, err := patiently(cmd.Context(), p.retryFor, p.waiting, p.api.topics.DescribeTopic, &strandmqv1.DescribeTopicRequest{Topic: topic}); err != nil {
		if isReason(err, "UNKNOWN_TOPIC") {
			return fmt.Errorf("there is no topic %s: 'strandmq topic create %s' makes it", topic, topic)
		}
		return err
	}
	lines := ndjson.NewReader(in, ndjson.Config{KeyField: f.keyField, IDField: f.idField})
	return a.publishLines(cmd.Context(), p, lines, f, headers, name, size)
}

func parseHeaders(given []string) (out []*strandmqv1.Header, err error) {
	for _, h := range given {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return nil, usagef("--header %q is not name=value", h)
		}
		if !utf8.ValidString(h) {
			return nil, usagef("--header %q is not valid UTF-8", h)
		}
		out = append(out, &strandmqv1.Header{Name: name, ValueKind: &strandmqv1.Header_Value{Value: value}})
	}
	return out, nil
}

// publishOne publishes the message of --body.
func (a *app) publishOne(ctx context.Context, p *publisher, f *publishFlags, keyed bool, headers []*strandmqv1.Header) error {
	for _, text := range []string{f.body, f.key, f.id} {
		if !utf8.ValidString(text) {
			return usagef("%q is not valid UTF-8", text)
		}
	}
	m := &strandmqv1.Message{Id: f.id, Headers: headers, Body: &strandmqv1.Message_Text{Text: f.body}}
	if keyed {
		m.KeyKind = &strandmqv1.Message_Key{Key: f.key}
	}
	if m.Id == "" {
		// Trying again after a lost answer must not store it twice.
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		m.Id = id.String()
	}
	results, err := p.send(ctx, []*strandmqv1.Message{m})
	if badInput(err) {
		return usagef("%v", err)
	}
	if err != nil {
		return err
	}
	if refused := results[0].GetProblem(); refused != nil {
		return fmt.Errorf("refused: %s", refusalText(refused))
	}
	r := results[0].GetReceipt()
	if a.json() {
		return a.printReceipt(0, m.GetId(), r)
	}
	what := "stored"
	if r.GetDuplicate() {
		what = "was stored before"
	}
	a.talk("%s: partition %d, offset %d", what, r.GetPartition(), r.GetOffset())
	return nil
}

// receiptLine is what --output json prints for a message.
type receiptLine struct {
	Line      int    `json:"line,omitempty"`
	ID        string `json:"id"`
	Partition uint32 `json:"partition"`
	Offset    uint64 `json:"offset,string"` // as the API's JSON has it
	Duplicate bool   `json:"duplicate"`
}

func (a *app) printReceipt(line int, id string, r *strandmqv1.Receipt) error {
	raw, err := json.Marshal(receiptLine{line, id, r.GetPartition(), r.GetOffset(), r.GetDuplicate()})
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(raw, '\n'))
	return err
}

// lineBatch is a batch on its way, with the line of each message.
type lineBatch struct {
	messages []*strandmqv1.Message
	lines    []int
	bytes    int
	read     int64 // bytes of the input up to here
	err      error // why there is no further batch
}

// The size of a batch: large enough that a round trip hardly counts, small
// enough that progress is seen and a retry is cheap.
const (
	batchMessages = 500
	batchBytes    = 1 << 20
)

// publishLines reads ahead by one batch while another is on its way. One batch
// at a time is on its way, since the order of a key is that of the calls.
func (a *app) publishLines(ctx context.Context, p *publisher, in *ndjson.Reader, f *publishFlags, headers []*strandmqv1.Header, name string, size int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches := make(chan *lineBatch, 1)
	go func() {
		defer close(batches)
		readBatches(ctx, in, f, headers, batches)
	}()
	m := a.newMeter("publishing to "+p.topic, size)
	began, stored, duplicates, last := time.Now(), 0, 0, 0
	finish := func() { m.end() }
	defer finish()
	summary := func() string {
		text := fmt.Sprintf("%s published, %s stored before", quantity.Count(stored), quantity.Count(duplicates))
		if d := time.Since(began); stored > 0 && d > 0 {
			text += fmt.Sprintf(", in %v", d.Round(time.Millisecond))
		}
		return text
	}
	// before says what of the input is stored when line n is not.
	before := func(n int) string {
		if n == 1 {
			return "nothing was stored"
		}
		return "the lines before it are stored"
	}
	for b := range batches {
		if len(b.messages) > 0 {
			results, err := p.send(ctx, b.messages)
			refused := -1
			for i, r := range results {
				switch {
				case r.GetReceipt() == nil:
					if refused < 0 {
						refused = i
					}
					continue
				case r.GetReceipt().GetDuplicate():
					duplicates++
				default:
					stored++
				}
				if a.json() {
					if err := a.printReceipt(b.lines[i], b.messages[i].GetId(), r.GetReceipt()); err != nil {
						return err
					}
				}
			}
			if err != nil {
				m.end()
				a.talk("%s, up to line %d", summary(), last)
				return fmt.Errorf("lines %d to %d of %s: %w; run the same command again to go on: nothing is stored twice",
					b.lines[0], b.lines[len(b.lines)-1], name, err)
			}
			if refused >= 0 {
				m.end()
				a.talk("%s", summary())
				return fmt.Errorf("line %d of %s was refused: %s; %s, mend it and run the same command again: nothing is stored twice",
					b.lines[refused], name, refusalText(results[refused].GetProblem()), before(b.lines[refused]))
			}
			last = b.lines[len(b.lines)-1]
			m.at(b.read, summary())
		}
		if b.err == nil {
			continue
		}
		m.end()
		a.talk("%s", summary())
		var bad *ndjson.Error
		switch {
		case errors.Is(b.err, io.EOF):
			if stored == 0 && duplicates > 0 && f.idField == "" {
				a.talk("All lines were stored before. To publish them once more on purpose, name the round with --again.")
			}
			return nil
		case errors.As(b.err, &bad):
			return fmt.Errorf("%s, %w; %s, mend it and run the same command again: nothing is stored twice", name, bad, before(bad.Line))
		}
		return fmt.Errorf("reading %s %w", name, b.err)
	}
	return context.Cause(ctx)
}

// inBatch is the part of a field's name that says which message of a batch it is
// in: lines say it better.
var inBatch = regexp.MustCompile(`^messages\[\d+\]\.?`)

// refusalText is what was refused and why: "key: it is empty; …".
func refusalText(p *strandmqv1.Problem) string {
	if field := inBatch.ReplaceAllString(p.GetField(), ""); field != "" {
		return field + ": " + p.GetMessage()
	}
	return p.GetMessage()
}

// readBatches reads the input into batches; the last one carries why it ended.
// A batch that waits for slow input is sent as it is after a moment: standard
// input may be a log that grows.
func readBatches(ctx context.Context, in *ndjson.Reader, f *publishFlags, headers []*strandmqv1.Header, out chan<- *lineBatch) {
	ids := ndjson.NewIdentity(f.again)
	lines := make(chan *lineBatch) // of one message
	go func() {
		defer close(lines)
		for {
			one := &lineBatch{}
			l, err := in.Next()
			if err != nil {
				one.err = err
			} else {
				m := &strandmqv1.Message{Id: l.ID, Headers: headers, Body: &strandmqv1.Message_Text{Text: string(l.Text)}}
				if f.keyField != "" {
					m.KeyKind = &strandmqv1.Message_Key{Key: l.Key}
				}
				if f.idField == "" {
					m.Id = ids.ID(l)
				}
				one.messages, one.lines = []*strandmqv1.Message{m}, []int{l.Number}
				one.bytes, one.read = len(l.Text)+len(l.Key)+len(m.Id), l.End
			}
			select {
			case lines <- one:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	b := &lineBatch{}
	send := func() bool {
		select {
		case out <- b:
			b = &lineBatch{}
			return true
		case <-ctx.Done():
			return false
		}
	}
	const linger = 20 * time.Millisecond
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for {
		select {
		case one, ok := <-lines:
			if !ok {
				return
			}
			if one.err != nil {
				b.err = one.err
				send()
				return
			}
			if b.bytes+one.bytes > batchBytes && len(b.messages) > 0 && !send() {
				return
			}
			if len(b.messages) == 0 {
				timer.Reset(linger)
			}
			b.messages, b.lines = append(b.messages, one.messages...), append(b.lines, one.lines...)
			b.bytes, b.read = b.bytes+one.bytes, one.read
			// The first line goes alone: all ids derive from it, so if it is refused
			// and mended, no other line may be stored under the ids of before.
			if (len(b.messages) == batchMessages || b.lines[0] == 1 && f.idField == "") && !send() {
				return
			}
		case <-timer.C:
			if len(b.messages) > 0 && !send() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
