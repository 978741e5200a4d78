package peer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"time"
)

const (
	// authorityLife is for how long an authority is valid, and certificateLife for
	// how long a node's certificate is. A node makes a new one in time.
	authorityLife   = 20 * 365 * 24 * time.Hour
	certificateLife = 365 * 24 * time.Hour
	// backdated is how far a clock may be behind that of the machine where a
	// certificate was made.
	backdated = time.Hour
)

// Authority signs the certificates of one cluster's nodes. Whoever has its key can
// be any node: it belongs into the metadata log, which only nodes read, and nowhere
// else.
type Authority struct {
	cluster string
	cert    *x509.Certificate
	certPEM []byte
	key     crypto.Signer
	keyPEM  []byte
	now     func() time.Time
}

// NewAuthority makes one for a cluster, with a new key.
func NewAuthority(cluster string) (*Authority, error) {
	return newAuthority(cluster, time.Now)
}

func newAuthority(cluster string, now func() time.Time) (*Authority, error) {
	if !validCluster(cluster) {
		return nil, fmt.Errorf("cluster id %q: use 1 to 128 letters, digits, dots, dashes and underscores", cluster)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "StrandMQ nodes of " + cluster},
		NotBefore:    now().Add(-backdated), NotAfter: now().Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
		URIs:     []*url.URL{{Scheme: uriScheme, Host: cluster}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	a, err := ParseAuthority(encodeCert(der), keyPEM)
	if err != nil {
		return nil, err
	}
	a.now = now
	return a, nil
}

// ParseAuthority takes what PEM gave.
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	certs, err := parseCerts(certPEM)
	if err != nil {
		return nil, fmt.Errorf("the authority's certificate: %w", err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("the authority's key: %w", err)
	}
	cert := certs[0]
	if !cert.IsCA || len(cert.URIs) != 1 || cert.URIs[0].Scheme != uriScheme || !validCluster(cert.URIs[0].Host) {
		return nil, fmt.Errorf("the authority's certificate is not one of an authority of nodes")
	}
	if !samePublic(cert.PublicKey, key.Public()) {
		return nil, fmt.Errorf("the authority's key is not that of its certificate")
	}
	return &Authority{cluster: cert.URIs[0].Host, cert: cert, certPEM: certPEM, key: key, keyPEM: keyPEM, now: time.Now}, nil
}

// PEM gives the certificate, which is public, and the key, which is not.
func (a *Authority) PEM() (cert, key []byte) { return a.certPEM, a.keyPEM }

// Cluster is the cluster whose nodes it signs for.
func (a *Authority) Cluster() string { return a.cluster }

// Sign makes the certificate of a node for the key in a request of Request. What
// else the request asks for is left out.
func (a *Authority) Sign(request []byte, node uint64) ([]byte, error) {
	if node == 0 {
		return nil, refuse(Malformed, "a node's number begins at 1")
	}
	block, rest := pem.Decode(request)
	if block == nil || block.Type != pemRequest || len(rest) > 0 {
		return nil, refuse(Malformed, "the certificate request is not one block of PEM")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, refuse(Malformed, "the certificate request cannot be used: %v", err)
	}
	if !strongKey(csr.PublicKey) {
		return nil, refuse(Malformed, "the certificate request has a weak key: use ECDSA of 256 bits or more, Ed25519, or RSA of 2,048 bits or more")
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	until := a.now().Add(certificateLife)
	if until.After(a.cert.NotAfter) {
		until = a.cert.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: fmt.Sprintf("node %d", node)},
		NotBefore:    a.now().Add(-backdated), NotAfter: until,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:                  []*url.URL{nodeURI(a.cluster, node)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, csr.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return encodeCert(der), nil
}

func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

func strongKey(key crypto.PublicKey) bool {
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		return key.Curve.Params().BitSize >= 256
	case ed25519.PublicKey:
		return true
	case *rsa.PublicKey:
		return key.Size() >= 256
	}
	return false
}

func samePublic(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}
