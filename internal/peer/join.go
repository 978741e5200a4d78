package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"time"
)

const (
	// joinsAtOnce bounds the memory that strangers can take.
	joinsAtOnce = 8
	// joinTime is how long OnJoin may take.
	joinTime = 30 * time.Second
)

// Join asks a node of a cluster, by a join token's text, to be taken in. request and
// the answer mean what OnJoin makes of them; each has at most 1 MiB. The token's
// secret is told only to a node whose certificate is of the authority that the
// token names. Join does not try again.
func Join(ctx context.Context, address, token string, request []byte) ([]byte, error) {
	tok, err := ParseToken(token)
	if err != nil {
		return nil, err
	}
	if len(request) > joinLimit-1<<10 {
		return nil, refuse(Malformed, "the request has %d bytes, at most 1 MiB", len(request))
	}
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocolJoin}, SessionTicketsDisabled: true,
		InsecureSkipVerify: true, // VerifyConnection compares with the token
		VerifyConnection: func(s tls.ConnectionState) error {
			return tok.verify(s.PeerCertificates, time.Now())
		},
	})
	defer func() { _ = raw.Close() }()
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })()
	answer, err := exchange(ctx, conn, tok, request)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return answer, err
}

func exchange(ctx context.Context, conn *tls.Conn, tok Token, request []byte) ([]byte, error) {
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, handshakeError(err)
	}
	if conn.ConnectionState().NegotiatedProtocol != protocolJoin {
		return nil, refuse(UnknownVersion, "the node does not take joins by this protocol: run the cluster's version")
	}
	body := appendField(appendField(nil, tagSecret, tok.Secret[:]), tagRequest, request)
	if _, err := conn.Write(appendFrame(nil, kindJoin, body)); err != nil {
		return nil, err
	}
	reply, err := expect(conn, kindJoined, joinLimit)
	if err != nil {
		return nil, err
	}
	var answer []byte
	err = parseFields(reply, func(t tag, v []byte) error {
		if t == tagReply {
			answer = v
		}
		return nil
	})
	return answer, err
}

// verify makes sure that a chain is of the token's authority.
func (t Token) verify(chain []*x509.Certificate, now time.Time) error {
	if len(chain) == 0 {
		return refuse(BadCertificate, "there is no certificate")
	}
	cluster, _, err := subjectOf(chain[0])
	if err != nil {
		return err
	}
	roots, found := x509.NewCertPool(), false
	for _, c := range chain[1:] {
		if c.IsCA && pin(c) == t.pin {
			roots.AddCert(c)
			found = true
		}
	}
	if !found {
		return refuse(WrongCluster, "the node there is not of the cluster that the join token is for, or somebody stands in between: check the address, and the token")
	}
	_, err = verify(chain, roots, cluster, now, x509.ExtKeyUsageServerAuth)
	return err
}

// serveJoin answers one machine that wants to join.
func (t *Transport) serveJoin(conn *tls.Conn) error {
	select {
	case t.joining <- struct{}{}:
		defer func() { <-t.joining }()
	default:
		// What it asks is read first, or closing would take the refusal back.
		if _, err := expect(conn, kindJoin, helloLimit); err != nil {
			return err
		}
		return t.sendRefusal(conn, refuse(Busy, "%d machines join at this moment: try again", joinsAtOnce))
	}
	_ = conn.SetDeadline(time.Now().Add(t.cfg.Timeout))
	body, err := expect(conn, kindJoin, joinLimit)
	if err != nil {
		return err
	}
	secret, request, err := parseJoin(body)
	if err != nil {
		return t.sendRefusal(conn, err)
	}
	ctx, cancel := context.WithTimeout(t.ctx, joinTime)
	defer cancel()
	answer, err := t.cfg.OnJoin(ctx, secret, request)
	_ = conn.SetDeadline(time.Now().Add(t.cfg.Timeout))
	var refused *ErrRefused
	switch {
	case errors.As(err, &refused):
		return t.sendRefusal(conn, refused)
	case err != nil:
		// What went wrong inside is not for strangers.
		t.tells.warn("a machine could not join", "error", err)
		return t.sendRefusal(conn, refuse(Failed, "the cluster could not take the machine in at this moment: the log of the node that was asked says why; try again"))
	case len(answer) > joinLimit-1<<10:
		t.tells.warn("a machine could not join: the answer is too large", "bytes", len(answer))
		return t.sendRefusal(conn, refuse(Failed, "the cluster's answer is larger than a machine reads"))
	}
	if _, err := conn.Write(appendFrame(nil, kindJoined, appendField(nil, tagReply, answer))); err != nil {
		return err
	}
	return conn.CloseWrite()
}

// parseJoin takes a join apart.
func parseJoin(b []byte) (secret, request []byte, err error) {
	err = parseFields(b, func(t tag, v []byte) error {
		switch t {
		case tagSecret:
			secret = v
		case tagRequest:
			request = v
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if len(secret) != secretSize {
		return nil, nil, refuse(TokenUnknown, "the join token's secret has %d bytes, and has %d where it is right", len(secret), secretSize)
	}
	return secret, request, nil
}
