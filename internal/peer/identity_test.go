package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestIdentityFiles(t *testing.T) {
	c := newCluster(t, "c1")
	dir := filepath.Join(t.TempDir(), "identity")
	if _, err := Load(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	c.issue(dir, 7)
	for name, mode := range map[string]fs.FileMode{"": fs.ModeDir | 0o700, keyFile: 0o600, certFile: 0o644, authorityFile: 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%q has mode %v, want %v: %v", name, info.Mode(), mode, err)
		}
	}
	id, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if id.Node() != 7 || id.Cluster() != "c1" || id.Due(time.Now()) || !id.Due(id.Expires().Add(-time.Hour)) {
		t.Errorf("node %d of %s until %v", id.Node(), id.Cluster(), id.Expires())
	}
	if changed, err := id.Reload(); changed || err != nil {
		t.Errorf("nothing changed: %t, %v", changed, err)
	}
	key, _ := os.ReadFile(filepath.Join(dir, keyFile))
	c.issue(dir, 7) // as a node does before its certificate ends
	if changed, err := id.Reload(); !changed || err != nil {
		t.Errorf("another certificate: %t, %v", changed, err)
	}
	if again, _ := os.ReadFile(filepath.Join(dir, keyFile)); string(again) != string(key) {
		t.Error("the key was made anew")
	}

	path := func(name string) string { return filepath.Join(dir, name) }
	good := map[string][]byte{}
	for _, name := range []string{keyFile, certFile, authorityFile} {
		good[name], _ = os.ReadFile(path(name))
	}
	other := newCluster(t, "c1")
	otherCA, _ := other.authority.PEM()
	csr, _ := Request(dir)
	asEight, err := c.authority.Sign(csr, 8)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "identity")
	c.issue(elsewhere, 7)
	foreign, _ := os.ReadFile(filepath.Join(elsewhere, certFile))
	write := func(name string, b []byte) func() error {
		return func() error { return os.WriteFile(path(name), b, 0o600) }
	}
	for _, x := range []struct {
		name, says string
		spoil      func() error
	}{
		{"a key for everybody", "chmod 600", func() error { return os.Chmod(path(keyFile), 0o604) }},
		{"a key that is a link", "not a regular file", func() error {
			return errors.Join(os.Rename(path(keyFile), path("k")), os.Symlink("k", path(keyFile)))
		}},
		{"a certificate of another key", "is not the certificate of", write(certFile, foreign)},
		{"the certificate of another node", "restart it", write(certFile, asEight)},
		{"another authority", "not signed by", write(authorityFile, otherCA)},
		{"no authority", "not an authority's", write(authorityFile, good[certFile])},
		{"half a certificate", "not PEM", write(certFile, good[certFile][:100])},
		{"a certificate and more", "not PEM", write(certFile, append(good[certFile][:len(good[certFile]):len(good[certFile])], "more"...))},
		{"no key", "private key", write(keyFile, good[certFile])},
		{"a large file", "larger than", write(authorityFile, make([]byte, 2<<20))},
		{"a missing file", "no such file", func() error { return os.Remove(path(certFile)) }},
	} {
		if err := x.spoil(); err != nil {
			t.Fatal(err)
		}
		_, err := id.Reload()
		wrong := new(ErrIdentity)
		if !errors.As(err, &wrong) || wrong.Dir != dir || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", x.name, err)
		}
		if id.Node() != 7 {
			t.Errorf("%s: what was in use is lost", x.name)
		}
		for name, b := range good {
			_ = os.Remove(path(name))
			if err := os.WriteFile(path(name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := id.Reload(); err != nil {
			t.Fatalf("%s: mended: %v", x.name, err)
		}
	}
	// Install writes nothing that Load would refuse.
	if err := Install(dir, foreign, good[authorityFile]); err == nil {
		t.Error("the certificate of another key was installed")
	}
	if _, err := Load(dir); err != nil {
		t.Error(err)
	}
}

func TestAuthority(t *testing.T) {
	c := newCluster(t, "c1")
	cert, key := c.authority.PEM()
	again, err := ParseAuthority(cert, key)
	if err != nil || again.Cluster() != "c1" {
		t.Fatalf("%v, %v", again, err)
	}
	if _, otherKey := newCluster(t, "c1").authority.PEM(); true {
		if _, err := ParseAuthority(cert, otherKey); err == nil {
			t.Error("the key of another authority was taken")
		}
	}
	for _, id := range []string{"", "a/b", "a b", strings.Repeat("x", 129)} {
		if _, err := NewAuthority(id); err == nil {
			t.Errorf("cluster id %q was taken", id)
		}
	}
	csr, err := Request(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Sign(csr, 0); err == nil {
		t.Error("node 0 was signed for")
	}
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
	if err != nil {
		t.Fatal(err)
	}
	for name, request := range map[string][]byte{
		"a weak key":    pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: der}),
		"a certificate": cert, "nothing": nil, "one and more": append(csr[:len(csr):len(csr)], csr...),
		"a wrong signature": spoilt(csr),
	} {
		if _, err := again.Sign(request, 3); err == nil {
			t.Errorf("%s was signed", name)
		} else {
			isRefused(t, err, Malformed, false)
		}
	}
	// A node's certificate cannot be an authority.
	signed, err := again.Sign(csr, 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseAuthority(signed, key); err == nil {
		t.Error("a node's certificate is an authority")
	}
}

// spoilt changes a byte of the signature.
func spoilt(request []byte) []byte {
	block, _ := pem.Decode(request)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

func TestConfig(t *testing.T) {
	err := Config{Beat: time.Nanosecond, Silence: 2, Timeout: -1, Backoff: 1, MaxMessage: 2 << 30, QueueBytes: 1, MaxSkew: -1}.Validate()
	if err == nil {
		t.Fatal("a bad Config is taken")
	}
	for _, word := range []string{"Identity", "Store", "Boot", "Listen", "Deliver", "Alive", "Beat", "Timeout", "Backoff", "MaxMessage", "QueueBytes", "MaxSkew"} {
		if !strings.Contains(err.Error(), word+" is") {
			t.Errorf("%s is not among the faults: %v", word, err)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("an empty Config is taken")
	}
}
