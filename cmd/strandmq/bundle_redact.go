package main

import (
	"fmt"
	"net/url"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/strandmq/strandmq/internal/doctor"
)

// redactor takes out what came from publishers and handlers: keys, ids, reasons. The same
// text becomes the same word, so that one still sees what belongs together.
type redactor struct {
	words  map[[2]string]string
	counts map[string]int
	secret []string // parts of addresses that are nobody's business
}

func newRedactor(servers ...string) *redactor {
	r := &redactor{words: map[[2]string]string{}, counts: map[string]int{}}
	for _, server := range servers {
		if u, err := url.Parse(server); err == nil && u.User != nil {
			if p, ok := u.User.Password(); ok && p != "" {
				r.secret = append(r.secret, p, url.QueryEscape(p), url.PathEscape(p))
			}
			r.secret = append(r.secret, u.User.String()+"@")
		}
	}
	return r
}

// word stands for a text.
func (r *redactor) word(kind, text string) string {
	if text == "" {
		return ""
	}
	at := [2]string{kind, text}
	if r.words[at] == "" {
		r.counts[kind]++
		r.words[at] = fmt.Sprintf("%s-%d", kind, r.counts[kind])
	}
	return r.words[at]
}

// facts takes it out of what doctor knows.
func (r *redactor) facts(f *doctor.Facts) {
	letters := func(list []doctor.Letter) {
		for i := range list {
			l := &list[i]
			l.Key, l.ID, l.Reason = r.word("key", l.Key), r.word("id", l.ID), r.word("reason", l.Reason)
			for j := range l.History {
				l.History[j].Reason = r.word("reason", l.History[j].Reason)
			}
		}
	}
	for i := range f.Groups {
		g := &f.Groups[i]
		for j := range g.Stalls {
			s := &g.Stalls[j]
			s.Key, s.Text = r.word("key", s.Key), "" // which has the key in words
		}
		letters(g.Dead)
		letters(g.Suspects)
	}
}

// plainFields are the strings of the API's descriptions that may leave: names of what is
// on the broker, and the broker's own words. What is not among them stays, also what a
// later version adds.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var plainFields = map[protoreflect.Name]bool{
	"cluster": true, "peer_address": true, "api_address": true, "zone": true, "version": true,
	"topic": true, "group": true, "groups": true, "name": true, "member": true, "held_by": true,
	"why": true, "needs": true, "behind": true, "faults": true, "file": true, "what": true,
	"fault": true, "fault_reason": true, "reason": true, "cause": true,
}

// plainOf are those that may leave of one kind of message only. What an event was is the
// broker's own words, without keys, ids and reasons of handlers.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var plainOf = map[protoreflect.FullName]bool{
	"strandmq.v1.ClusterEvent.kind": true, "strandmq.v1.ClusterEvent.text": true, "strandmq.v1.ClusterEvent.advice": true,
}

// message takes it out of a description by the API.
func (r *redactor) message(m proto.Message) {
	r.walk(m.ProtoReflect())
}

func (r *redactor) walk(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			m.Clear(f) // there is none yet
		case f.Message() != nil && f.IsList():
			for i := range v.List().Len() {
				r.walk(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			r.walk(v.Message())
		case f.Kind() == protoreflect.BytesKind, f.Kind() == protoreflect.StringKind && !plainFields[f.Name()] && !plainOf[f.FullName()]:
			if f.Kind() == protoreflect.StringKind && !f.IsList() && f.Name() == "key" {
				m.Set(f, protoreflect.ValueOfString(r.word("key", v.String())))
				break
			}
			m.Clear(f)
		}
		return true
	})
}

// text takes secrets of addresses out of anything.
func (r *redactor) text(s string) string {
	for _, x := range r.secret {
		s = strings.ReplaceAll(s, x, "")
	}
	return s
}
