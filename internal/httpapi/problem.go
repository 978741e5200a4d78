package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A problem is a refusal on its way to the caller.
type problem struct {
	reason     string
	detail     string
	field      string
	retryAfter time.Duration
	results    []any // of a request about several things, some of which were refused
	counted    bool  // by the call that it comes from
}

func (p *problem) Error() string { return p.reason + ": " + p.detail }

// refuse makes a problem of bad input.
func refuse(reason, field, format string, args ...any) *problem {
	return &problem{reason: reason, field: field, detail: fmt.Sprintf(format, args...)}
}

// written is a problem as RFC 9457 has it.
type written struct {
	Type         string `json:"type"`
	Title        string `json:"title"`
	Status       int    `json:"status"`
	Detail       string `json:"detail"`
	Reason       string `json:"reason"`
	Code         string `json:"code"`
	Field        string `json:"field,omitempty"`
	WhatToDo     string `json:"what_to_do"`
	RetryAfterMs int64  `json:"retry_after_ms"`
	RequestID    string `json:"request_id,omitempty"` // of the whole, not of its parts
	Results      []any  `json:"results,omitempty"`
}

// statuses are the statuses of the codes, and of reasons that HTTP has one for.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var statuses = map[string]int{
	"invalid_argument": http.StatusBadRequest, "out_of_range": http.StatusBadRequest, "not_found": http.StatusNotFound,
	"already_exists": http.StatusConflict, "failed_precondition": http.StatusConflict, "aborted": http.StatusConflict,
	"permission_denied": http.StatusForbidden, "resource_exhausted": http.StatusTooManyRequests, "unimplemented": http.StatusNotImplemented,
	"unavailable": http.StatusServiceUnavailable, "deadline_exceeded": http.StatusGatewayTimeout, "canceled": 499,

	"BAD_CONTENT_TYPE": http.StatusUnsupportedMediaType, "BAD_METHOD": http.StatusMethodNotAllowed, "UNKNOWN_METHOD": http.StatusNotFound,
	"REQUEST_TOO_LARGE": http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE": http.StatusRequestEntityTooLarge,
	"BATCH_TOO_LARGE": http.StatusRequestEntityTooLarge, "REQUEST_SLOW": http.StatusRequestTimeout,
	"OFFSET_EXPIRED": http.StatusGone, "DISK_FULL": http.StatusInsufficientStorage,
}

func (p *problem) written(row func(string) (code, when, what string)) written {
	out := written{Type: "urn:strandmq:reason:" + p.reason, Detail: p.detail, Reason: p.reason, Field: p.field, Results: p.results}
	out.Code, out.Title, out.WhatToDo = row(p.reason)
	if p.retryAfter > 0 {
		out.RetryAfterMs = max(1, p.retryAfter.Milliseconds())
	}
	var ok bool
	if out.Status, ok = statuses[p.reason]; !ok {
		if out.Status, ok = statuses[out.Code]; !ok {
			out.Status = http.StatusInternalServerError
		}
	}
	return out
}

// refuse answers with a problem.
func (a *api) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if !p.counted {
		a.cfg.Rejected(r.Context(), r.URL.Path, p.reason)
	}
	write(w, p.written(a.cfg.Row))
}

func write(w http.ResponseWriter, p written) {
	h := w.Header()
	p.RequestID = h.Get(RequestHeader)
	h.Set("Content-Type", "application/problem+json")
	if p.RetryAfterMs > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfterMs+999)/1000, 10))
	}
	answer(w, p.Status, p)
}

// Refuse answers a request under Prefix that was refused before it came here.
func Refuse(w http.ResponseWriter, row func(reason string) (code, when, what string), reason, field, detail string, retryAfter time.Duration) {
	write(w, (&problem{reason: reason, field: field, detail: detail, retryAfter: retryAfter}).written(row))
}

// answer writes JSON. The content type is application/json unless it is set.
func answer(w http.ResponseWriter, status int, v any) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	out, err := encode(v)
	if err != nil {
		status, out = http.StatusInternalServerError, []byte("{}\n") // cannot be: they are values of this package
	}
	w.WriteHeader(status)
	_, _ = w.Write(out)
}

// encode writes one line of JSON.
func encode(v any) ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return []byte(b.String()), err
}

// problemOf makes a problem of any error: one of this package, or of a call.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	return calledProblem(err)
}
