package peer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// office takes joins as a cluster does: each token once, until its time is over.
type office struct {
	c      *cluster
	mu     sync.Mutex
	tokens map[[sha256.Size]byte]*ErrRefused // nil: valid
	asked  int
	next   uint64
}

func (o *office) token(t *testing.T) string {
	t.Helper()
	ca, _ := o.c.authority.PEM()
	tok, err := NewToken(ca)
	if err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tokens[Hash(tok.Secret[:])] = nil
	return tok.String()
}

func (o *office) join(_ context.Context, secret, request []byte) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked++
	refused, known := o.tokens[Hash(secret)]
	switch {
	case !known:
		return nil, refuse(TokenUnknown, "the cluster has not made this join token: make one")
	case refused != nil:
		return nil, refused
	}
	o.tokens[Hash(secret)] = refuse(TokenUsed, "the join token was used: make another")
	if bytes.Equal(request, []byte("fail")) {
		return nil, errors.New("inner workings")
	}
	o.next++
	return o.c.authority.Sign(request, o.next)
}

func TestJoin(t *testing.T) {
	c := newCluster(t, "c1")
	o := &office{c: c, tokens: map[[sha256.Size]byte]*ErrRefused{}, next: 1}
	a := c.start(1, func(cfg *Config) { cfg.OnJoin = o.join })
	at := a.Addr().String()

	dir := filepath.Join(t.TempDir(), "identity")
	csr, err := Request(dir)
	if err != nil {
		t.Fatal(err)
	}
	token := o.token(t)
	cert, err := Join(t.Context(), at, token, csr)
	if err != nil {
		t.Fatal(err)
	}
	ca, _ := c.authority.PEM()
	if err := Install(dir, cert, ca); err != nil {
		t.Fatal(err)
	}
	id, err := Load(dir)
	if err != nil || id.Node() != 2 || id.Cluster() != "c1" {
		t.Fatalf("%+v, %v", id, err)
	}
	b := c.start(2, func(cfg *Config) { cfg.Identity = id })
	connect(a, b)
	talks(t, a, b)

	// The token was for one machine.
	_, err = Join(t.Context(), at, token, csr)
	isRefused(t, err, TokenUsed, true)
	expired := o.token(t)
	tok, _ := ParseToken(expired)
	o.tokens[Hash(tok.Secret[:])] = refuse(TokenExpired, "the join token's time is over: make another")
	_, err = Join(t.Context(), at, expired, csr)
	isRefused(t, err, TokenExpired, true)
	tok.Secret[0]++
	_, err = Join(t.Context(), at, tok.String(), csr)
	isRefused(t, err, TokenUnknown, true)

	// Nobody is asked where the text is wrong, or the cluster another.
	asked := o.asked
	for _, text := range []string{"", "smq-join-", token[:len(token)-1], token + "a", strings.Replace(token, "smq-join-a", "smq-join-b", 1), strings.ToUpper(token)} {
		_, err = Join(t.Context(), at, text, csr)
		isRefused(t, err, TokenUnknown, false)
		if text != "" && err != nil && strings.Contains(err.Error(), text[len(text)/2:]) && len(text) > 20 {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
	other := &office{c: newCluster(t, "c1"), tokens: map[[sha256.Size]byte]*ErrRefused{}}
	_, err = Join(t.Context(), at, other.token(t), csr)
	isRefused(t, err, WrongCluster, false)
	if o.asked != asked {
		t.Error("a secret was told to a cluster that the token is not for")
	}

	// What goes wrong inside is not told to strangers.
	_, err = Join(t.Context(), at, o.token(t), []byte("fail"))
	isRefused(t, err, Failed, true)
	if strings.Contains(err.Error(), "inner workings") || !strings.Contains(a.logs.String(), "inner workings") {
		t.Errorf("a stranger was told %v", err)
	}
	_, err = Join(t.Context(), at, o.token(t), []byte("no request for a certificate"))
	isRefused(t, err, Malformed, true)
	_, err = Join(t.Context(), at, o.token(t), make([]byte, joinLimit))
	isRefused(t, err, Malformed, false)

	// A node that takes no joins says so.
	_, err = Join(t.Context(), b.Addr().String(), o.token(t), csr)
	isRefused(t, err, UnknownVersion, true)
}

func TestJoinsAtOnce(t *testing.T) {
	c := newCluster(t, "c1")
	entered, leave := make(chan struct{}, joinsAtOnce), make(chan struct{})
	a := c.start(1, func(cfg *Config) {
		cfg.OnJoin = func(ctx context.Context, _, request []byte) ([]byte, error) {
			entered <- struct{}{}
			select {
			case <-leave:
			case <-ctx.Done():
			}
			return request, ctx.Err()
		}
	})
	o := &office{c: c, tokens: map[[sha256.Size]byte]*ErrRefused{}}
	token := o.token(t)
	var group sync.WaitGroup
	for range joinsAtOnce {
		group.Go(func() {
			if got, err := Join(t.Context(), a.Addr().String(), token, []byte("x")); err != nil || string(got) != "x" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	for range joinsAtOnce {
		<-entered
	}
	_, err := Join(t.Context(), a.Addr().String(), token, nil)
	isRefused(t, err, Busy, true)
	close(leave)
	group.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Join(ctx, a.Addr().String(), token, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a join that was given up: %v", err)
	}
}

// Close ends a join that is under way.
func TestCloseEndsJoins(t *testing.T) {
	c := newCluster(t, "c1")
	entered := make(chan struct{})
	a := c.start(1, func(cfg *Config) {
		cfg.OnJoin = func(ctx context.Context, _, _ []byte) ([]byte, error) {
			close(entered)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	o := &office{c: c, tokens: map[[sha256.Size]byte]*ErrRefused{}}
	token, done := o.token(t), make(chan error, 1)
	go func() {
		_, err := Join(t.Context(), a.Addr().String(), token, nil)
		done <- err
	}()
	<-entered
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		if err == nil {
			t.Error("a join succeeded at a node that stopped")
		}
	case <-time.After(patience):
		t.Fatal("a join waits for a node that is closed")
	}
}
