package peer

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	uriScheme  = "strandmq"
	pemCert    = "CERTIFICATE"
	pemRequest = "CERTIFICATE REQUEST"
	pemKey     = "PRIVATE KEY"
)

func nodeURI(cluster string, node uint64) *url.URL {
	return &url.URL{Scheme: uriScheme, Host: cluster, Path: "/node/" + strconv.FormatUint(node, 10)}
}

// subjectOf reads whose certificate it is. It says nothing about who signed it.
func subjectOf(cert *x509.Certificate) (cluster string, node uint64, err error) {
	if len(cert.URIs) != 1 {
		return "", 0, refuse(BadCertificate, "the certificate has %d URIs, and a node's has one: it was not made by a cluster's authority", len(cert.URIs))
	}
	u := cert.URIs[0]
	rest, ok := strings.CutPrefix(u.Path, "/node/")
	n, err := strconv.ParseUint(rest, 10, 64)
	if !ok || err != nil || n == 0 || !validCluster(u.Host) || *u != *nodeURI(u.Host, n) {
		return "", 0, refuse(BadCertificate, "the certificate is of %q, and a node's is of %s://CLUSTER/node/N", u, uriScheme)
	}
	return u.Host, n, nil
}

// verify tells which node a certificate chain is of: signed by one of the roots,
// valid now, and of this cluster. whose names the other in the text.
func verify(chain []*x509.Certificate, roots *x509.CertPool, cluster string, now time.Time, usage x509.ExtKeyUsage) (uint64, error) {
	if len(chain) == 0 {
		return 0, refuse(BadCertificate, "there is no certificate")
	}
	leaf := chain[0]
	theirs, node, err := subjectOf(leaf)
	if err != nil {
		return 0, err
	}
	// The cluster is looked at first: its authority being another says the same less well.
	if theirs != cluster {
		return 0, refuse(WrongCluster, "the certificate is of node %d of cluster %s, and this is cluster %s: correct the address, or let it join this cluster with an empty data folder", node, theirs, cluster)
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err == nil {
		return node, nil
	}
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		if c := invalid.Cert; now.Before(c.NotBefore) {
			return 0, refuse(ClockSkew, "the certificate of node %d is valid from %s on, and the clock here says %s: set the clocks of both machines right", node, stamp(c.NotBefore), stamp(now))
		}
		return 0, refuse(CertificateExpired, "the certificate of node %d ended at %s, and the clock here says %s: let that node join again with its data folder, or set the clock right", node, stamp(invalid.Cert.NotAfter), stamp(now))
	}
	return 0, refuse(BadCertificate, "the certificate of node %d is not one of this cluster's authority: %v", node, err)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// pin is what a join token knows of the authority: a hash of its public key, which
// stays when its certificate is made anew.
func pin(cert *x509.Certificate) [sha256.Size]byte {
	return sha256.Sum256(cert.RawSubjectPublicKeyInfo)
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: der})
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// parseCerts reads one certificate or more, and nothing else.
func parseCerts(b []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		block, rest := pem.Decode(b)
		if block == nil {
			if len(certs) == 0 || strings.TrimSpace(string(b)) != "" {
				return nil, fmt.Errorf("it is not PEM throughout")
			}
			return certs, nil
		}
		if block.Type != pemCert {
			return nil, fmt.Errorf("it holds a block of %q", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs, b = append(certs, c), rest
	}
}

func parseKey(b []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != pemKey {
		return nil, fmt.Errorf("it is not one block of PEM with a private key")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		// What the parser says could quote the key.
		return nil, fmt.Errorf("it is not a private key")
	}
	s, ok := k.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("it is not a key to sign with")
	}
	return s, nil
}
