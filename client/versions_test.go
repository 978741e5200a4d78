package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/strandmq/strandmq/client"
)

// A broker of a version that lacks what is called, or something else that answers there, is told
// in words, and nothing is tried for ever.
func TestBrokerWithoutTheCall(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.Protocols = &http.Protocols{}
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	c, err := client.New([]string{s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	tells := func(what string, err error) {
		t.Helper()
		var e *client.Error
		if !errors.As(err, &e) || client.Retryable(err) || !strings.Contains(err.Error(), s.URL) || !strings.Contains(err.Error(), "version") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = c.Admin().ListTopics(within(t))
	tells("a call", err)
	_, err = c.Publisher(within(t), "orders")
	tells("a publisher", err)
	err = consumer(t, c, "orders", "g").Run(within(t), func(context.Context, *client.Delivery) error { return nil })
	tells("a consumer", err)
}
