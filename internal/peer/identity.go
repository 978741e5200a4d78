package peer

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// The files of an identity folder.
const (
	keyFile       = "node.key" // 0600: the node's private key, which never leaves this folder
	certFile      = "node.crt" // the certificate of that key
	authorityFile = "ca.crt"   // the authority's certificate; several while it is being replaced
)

// ErrIdentity tells what is wrong with an identity folder.
type ErrIdentity struct {
	Dir  string
	What string
	Err  error // what the system said; may be nil
}

func (e *ErrIdentity) Error() string {
	return fmt.Sprintf("the node's identity in %s: %s", e.Dir, e.What)
}

func (e *ErrIdentity) Unwrap() error { return e.Err }

// Identity is who this node is: its key, its certificate, and the authority that
// it trusts. It may be used by several goroutines.
type Identity struct {
	dir string

	reload sync.Mutex // held while files are read anew
	held   atomic.Pointer[credentials]
}

// credentials are what was read at one time.
type credentials struct {
	cluster string
	node    uint64
	cert    tls.Certificate // with the authority's behind it, for who joins
	roots   *x509.CertPool
	files   [3][]byte // to see whether they changed
}

// Request gives a certificate request for the key of the folder, and makes both
// folder and key where they are not there. It is what a node sends when it joins,
// and signs before its certificate ends.
func Request(dir string) ([]byte, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &ErrIdentity{Dir: dir, What: "the folder cannot be made: " + err.Error(), Err: err}
	}
	key, err := readKey(dir)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = makeKey(dir)
	}
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: der}), nil
}

func makeKey(dir string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	b, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, writeFile(dir, keyFile, b, 0o600)
}

// Install writes what Sign made for the folder's key, and the authority's
// certificates, after it has looked whether they belong together.
func Install(dir string, cert, authority []byte) error {
	key, err := readFile(dir, keyFile)
	if err != nil {
		return err
	}
	if _, err := assemble(dir, [3][]byte{key, cert, authority}); err != nil {
		return err
	}
	if err := writeFile(dir, authorityFile, authority, 0o644); err != nil {
		return err
	}
	return writeFile(dir, certFile, cert, 0o644)
}

// Load reads an identity folder. fs.ErrNotExist: it has no identity yet.
func Load(dir string) (*Identity, error) {
	id := &Identity{dir: dir}
	if _, err := id.Reload(); err != nil {
		return nil, err
	}
	return id, nil
}

// Reload reads the files again, and tells whether they changed. Connections made
// from then on use the new ones. On an error what was there stays in use.
func (id *Identity) Reload() (changed bool, err error) {
	id.reload.Lock()
	defer id.reload.Unlock()
	var files [3][]byte
	for i, name := range []string{keyFile, certFile, authorityFile} {
		if files[i], err = readFile(id.dir, name); err != nil {
			return false, err
		}
	}
	was := id.held.Load()
	if was != nil && bytes.Equal(was.files[0], files[0]) && bytes.Equal(was.files[1], files[1]) && bytes.Equal(was.files[2], files[2]) {
		return false, nil
	}
	c, err := assemble(id.dir, files)
	if err != nil {
		return false, err
	}
	if was != nil && (was.cluster != c.cluster || was.node != c.node) {
		return false, &ErrIdentity{Dir: id.dir, What: fmt.Sprintf("the files are now of node %d of cluster %s, and this process is node %d of cluster %s: restart it to make it another node", c.node, c.cluster, was.node, was.cluster)}
	}
	id.held.Store(c)
	return true, nil
}

// Cluster and Node are what the certificate says.
func (id *Identity) Cluster() string { return id.held.Load().cluster }

// Node is the node whose certificate it is.
func (id *Identity) Node() uint64 { return id.held.Load().node }

// Expires is when the certificate ends.
func (id *Identity) Expires() time.Time { return id.held.Load().cert.Leaf.NotAfter }

// Due tells whether it is time to make a new certificate: half of its life is over.
func (id *Identity) Due(now time.Time) bool {
	leaf := id.held.Load().cert.Leaf
	return now.After(leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2))
}

// assemble checks that three files belong together.
func assemble(dir string, files [3][]byte) (*credentials, error) {
	wrong := func(format string, args ...any) error {
		return &ErrIdentity{Dir: dir, What: fmt.Sprintf(format, args...)}
	}
	key, err := parseKey(files[0])
	if err != nil {
		return nil, wrong("%s: %v", keyFile, err)
	}
	certs, err := parseCerts(files[1])
	if err != nil {
		return nil, wrong("%s: %v", certFile, err)
	}
	authorities, err := parseCerts(files[2])
	if err != nil {
		return nil, wrong("%s: %v", authorityFile, err)
	}
	leaf := certs[0]
	if !samePublic(leaf.PublicKey, key.Public()) {
		return nil, wrong("%s is not the certificate of %s", certFile, keyFile)
	}
	c := &credentials{roots: x509.NewCertPool(), files: files}
	if c.cluster, c.node, err = subjectOf(leaf); err != nil {
		return nil, wrong("%s: %v", certFile, err)
	}
	c.cert = tls.Certificate{PrivateKey: key, Leaf: leaf, Certificate: [][]byte{leaf.Raw}}
	signed := false
	for _, a := range authorities {
		if !a.IsCA {
			return nil, wrong("%s has a certificate that is not an authority's", authorityFile)
		}
		signed = signed || leaf.CheckSignatureFrom(a) == nil
		c.roots.AddCert(a)
		c.cert.Certificate = append(c.cert.Certificate, a.Raw)
	}
	// Whether it is valid now is told when it is used; one of another authority is of
	// no use at any time.
	if !signed {
		return nil, wrong("%s is not signed by an authority of %s", certFile, authorityFile)
	}
	return c, nil
}

func readKey(dir string) (crypto.Signer, error) {
	b, err := readFile(dir, keyFile)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(b)
	if err != nil {
		return nil, &ErrIdentity{Dir: dir, What: keyFile + ": " + err.Error()}
	}
	return key, nil
}

// readFile reads a small, regular file, never through a symbolic link, and never a
// key that others on this machine can read. A group may: volumes of some machines
// are given to a group as they are mounted.
func readFile(dir, name string) ([]byte, error) {
	path := filepath.Join(dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, &ErrIdentity{Dir: dir, What: err.Error(), Err: err}
	}
	if !info.Mode().IsRegular() {
		return nil, &ErrIdentity{Dir: dir, What: name + " is not a regular file: copy it there instead of linking it"}
	}
	if info.Size() > 1<<20 {
		return nil, &ErrIdentity{Dir: dir, What: name + " is larger than 1 MiB"}
	}
	if name == keyFile && info.Mode().Perm()&0o007 != 0 {
		return nil, &ErrIdentity{Dir: dir, What: fmt.Sprintf("%s can be read by everybody on this machine (%v): chmod 600 it, and if others were there, make a new key", name, info.Mode().Perm())}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, &ErrIdentity{Dir: dir, What: err.Error(), Err: err}
	}
	return b, nil
}

// writeFile writes a file as a whole or not at all, also in a power cut.
func writeFile(dir, name string, b []byte, mode fs.FileMode) (err error) {
	defer func() {
		if err != nil {
			err = &ErrIdentity{Dir: dir, What: name + " cannot be written: " + err.Error(), Err: err}
		}
	}()
	f, err := os.CreateTemp(dir, name+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err := errors.Join(f.Chmod(mode), writeSynced(f, b), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func writeSynced(f *os.File, b []byte) error {
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Sync()
}
