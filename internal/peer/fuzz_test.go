package peer

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
)

// malformed: what a decoder refuses is typed, so that the other side can be told.
func malformed(t *testing.T, err error) {
	t.Helper()
	var refused *ErrRefused
	if err != nil && !errors.As(err, &refused) {
		t.Fatalf("an error without a type: %v", err)
	}
}

var sampleHello = hello{lowest: 1, highest: 3, cluster: "c-1.x_Y", node: 1<<32 - 1, to: 2, store: storeOf(9), boot: 7, life: 1 << 63, clock: -5, earlier: []Start{{5, 1}, {6, 1<<64 - 1}}}

func FuzzHello(f *testing.F) {
	good := sampleHello.encode()
	f.Add(good)
	f.Add(appendField(good, 200, []byte("of a later version")))
	f.Add(good[:len(good)-1])
	f.Add(append(good[:len(good):len(good)], good...))
	f.Add([]byte{1, 255, 255, 255, 255})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		malformed(t, err)
		_ = parseFields(b, func(tg tag, v []byte) error { _, err := parseUint64(tg, v); malformed(t, err); return nil })
		if err != nil {
			return
		}
		again, err := parseHello(h.encode())
		if err != nil || !reflect.DeepEqual(again, h) {
			t.Fatalf("%+v came back as %+v, %v", h, again, err)
		}
		m := newMachine(sampleHello)
		m.setMembers(map[uint64]Member{h.node: {}})
		if ended, refused := m.meet(h, h.node); len(ended) > 0 || refused != nil && refused.Text == "" {
			t.Fatalf("a first process ended %v: %v", ended, refused)
		}
	})
}

func FuzzFrame(f *testing.F) {
	f.Add(appendFrame(nil, kindMessage, []byte("abc")), 10)
	f.Add(appendFrame(nil, kindAnswer, make([]byte, answerSize)), answerSize)
	f.Add(appendFrame(nil, kindRefusal, encodeRefusal(refuse(StoreTwice, "x"))), 100)
	f.Add([]byte{255, 255, 255, 255, 4, 1, 2}, 1<<30)
	f.Add([]byte{1, 0, 0, 0, 99, 0}, 1)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, b []byte, limit int) {
		if limit < 0 || limit > 1<<30 {
			return
		}
		var h [headerSize]byte
		copy(h[:], b)
		_, n, err := parseHeader(h, limit)
		malformed(t, err)
		if err == nil && n > limit {
			t.Fatalf("%d bytes were taken, at most %d", n, limit)
		}
		k, body, err := readFrame(bytes.NewReader(b), limit)
		switch {
		case err != nil:
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				malformed(t, err)
			}
			return
		case !bytes.HasPrefix(b, appendFrame(nil, k, body)):
			t.Fatalf("frame %d %x is not what came: %x", k, body, b)
		}
		if _, _, err := parseAnswer(body); (err == nil) != (len(body) == answerSize) {
			t.Fatalf("an answer of %d bytes: %v", len(body), err)
		}
		if e, err := parseRefusal(body); err == nil {
			again, err := parseRefusal(encodeRefusal(e))
			if err != nil || *again != *e {
				t.Fatalf("%+v came back as %+v, %v", e, again, err)
			}
		} else {
			malformed(t, err)
		}
	})
}

func FuzzJoin(f *testing.F) {
	f.Add(appendField(appendField(nil, tagSecret, make([]byte, secretSize)), tagRequest, []byte("x")))
	f.Add(appendField(nil, tagRequest, []byte("x")))
	f.Add([]byte{11, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		secret, request, err := parseJoin(b)
		malformed(t, err)
		if err == nil && (len(secret) != secretSize || len(request) > len(b)) {
			t.Fatalf("secret %x, request %x of %x", secret, request, b)
		}
	})
}

func FuzzToken(f *testing.F) {
	a, err := NewAuthority("c1")
	if err != nil {
		f.Fatal(err)
	}
	ca, key := a.PEM()
	tok, err := NewToken(ca)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(tok.String())
	f.Add(" " + tok.String() + "\n")
	f.Add(tok.String()[:40])
	f.Add("smq-join-")
	f.Add(string(ca))
	f.Add(string(key))
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		malformed(t, err)
		if again, err2 := ParseToken(tok.String()); err == nil && (err2 != nil || again != tok) {
			t.Fatalf("%q came back as another: %v", s, err2)
		}
		// The files of an identity are text from outside, too.
		if certs, err := parseCerts([]byte(s)); err == nil && len(certs) == 0 {
			t.Fatal("no certificate and no error")
		}
		if k, err := parseKey([]byte(s)); err == nil && k.Public() == nil {
			t.Fatal("a key that has no public part")
		}
		if a, err := ParseAuthority([]byte(s), []byte(s)); err == nil && a.Cluster() == "" {
			t.Fatal("an authority of no cluster")
		}
	})
}
