package acme

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"skyserve/internal/store"
)

// Prefixes of the keys in the store: of values, and of the leases that lock them. The prefix is
// followed by certmagic's key in base64, since that key may contain any character.
const (
	valuePrefix = "acme.value."
	lockPrefix  = "acme.lock."
)

// lockTTL is how long a lock remains after its holder has failed.
const lockTTL = 15 * time.Second

// storage is certmagic's storage, in the store of a service. Values are encrypted and
// authenticated: private keys cannot be read from the store's files or a backup, and a
// certificate cannot be replaced without the secret.
type storage struct {
	store *store.Store
	id    string
	aead  cipher.AEAD

	mu    sync.Mutex
	locks map[string]*lock // held by this process
}

var _ certmagic.Storage = (*storage)(nil)

// lock is a held lock: a lease, renewed until stop is called.
type lock struct {
	lease *store.Lease
	stop  func()
	done  chan struct{}
}

// newStorage returns the storage of one process that shares a store and a secret.
func newStorage(s *store.Store, id, secret string) (*storage, error) {
	if secret == "" {
		return nil, errors.New("share certificates in the store: a secret to encrypt them is required")
	}
	key, err := hkdf.Key(sha256.New, []byte(secret), nil, "skyserve certificates", 32)
	if err != nil {
		return nil, fmt.Errorf("deriving the encryption key of shared certificates: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &storage{store: s, id: id, aead: aead, locks: map[string]*lock{}}, err
}

func encode(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

// Store writes a value with the current time.
func (s *storage) Store(ctx context.Context, key string, value []byte) error {
	nonce := make([]byte, s.aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return err
	}
	plain := binary.BigEndian.AppendUint64(nil, uint64(time.Now().Unix()))
	sealed := s.aead.Seal(nonce, nonce, append(plain, value...), []byte(key))
	_, err := s.store.Put(ctx, valuePrefix+encode(key), sealed)
	return err
}

// open returns a value and when it was stored. A value encrypted with another secret is
// treated as missing.
func (s *storage) open(ctx context.Context, key string) (value []byte, at time.Time, err error) {
	if key == "" { // the root directory
		return nil, at, fs.ErrNotExist
	}
	sealed, _, err := s.store.Get(ctx, valuePrefix+encode(key))
	if errors.Is(err, store.ErrNotFound) {
		return nil, at, fs.ErrNotExist
	}
	if err != nil {
		return nil, at, err
	}
	n := s.aead.NonceSize()
	if len(sealed) < n {
		return nil, at, fs.ErrNotExist
	}
	plain, err := s.aead.Open(nil, sealed[:n], sealed[n:], []byte(key))
	if err != nil || len(plain) < 8 {
		return nil, at, fs.ErrNotExist
	}
	return plain[8:], time.Unix(int64(binary.BigEndian.Uint64(plain)), 0), nil
}

// Load reads a value.
func (s *storage) Load(ctx context.Context, key string) ([]byte, error) {
	value, _, err := s.open(ctx, key)
	return value, err
}

// Delete removes a value and everything below it.
func (s *storage) Delete(ctx context.Context, key string) error {
	keys, err := s.below(ctx, key)
	if err != nil {
		return err
	}
	if key != "" {
		keys = append(keys, key)
	}
	for _, k := range keys {
		if err := s.store.Delete(ctx, valuePrefix+encode(k)); err != nil {
			return err
		}
	}
	return nil
}

// Exists reports whether there is a value at or below a key.
func (s *storage) Exists(ctx context.Context, key string) bool {
	_, err := s.Stat(ctx, key)
	return err == nil
}

// Stat describes a value or a directory.
func (s *storage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	value, at, err := s.open(ctx, key)
	if err == nil {
		return certmagic.KeyInfo{Key: key, Modified: at, Size: int64(len(value)), IsTerminal: true}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return certmagic.KeyInfo{}, err
	}
	keys, err := s.below(ctx, key)
	if err == nil && len(keys) == 0 {
		err = fs.ErrNotExist
	}
	return certmagic.KeyInfo{Key: key}, err
}

// List lists a directory: all values below it if recursive, else its values and
// directories.
func (s *storage) List(ctx context.Context, dir string, recursive bool) ([]string, error) {
	keys, err := s.below(ctx, dir)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, fs.ErrNotExist
	}
	if recursive {
		return keys, nil
	}
	var list []string
	seen := map[string]bool{}
	for _, k := range keys {
		first, _, _ := strings.Cut(strings.TrimPrefix(k, keysOf(dir)), "/")
		if entry := keysOf(dir) + first; !seen[entry] {
			seen[entry] = true
			list = append(list, entry)
		}
	}
	return list, nil
}

// keysOf returns the prefix of the keys of a directory.
func keysOf(dir string) string {
	if dir == "" {
		return ""
	}
	return dir + "/"
}

// below returns the keys of all values in a directory, in the store's order.
func (s *storage) below(ctx context.Context, dir string) ([]string, error) {
	all, err := s.store.Keys(ctx, valuePrefix)
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, encoded := range all {
		key, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(encoded, valuePrefix))
		if err == nil && strings.HasPrefix(string(key), keysOf(dir)) {
			keys = append(keys, string(key))
		}
	}
	return keys, nil
}

// Lock waits until this process holds the lock of a name in the store.
func (s *storage) Lock(ctx context.Context, name string) error {
	lease, err := s.store.Acquire(ctx, lockPrefix+encode(name), s.id, lockTTL)
	if err != nil {
		return err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &lock{lease: lease, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		renewLease(life, stop, lease)
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locks[name] = l
	return nil
}

// Unlock releases the lock of a name.
func (s *storage) Unlock(ctx context.Context, name string) error {
	s.mu.Lock()
	l := s.locks[name]
	delete(s.locks, name)
	s.mu.Unlock()
	if l == nil {
		return fmt.Errorf("releasing the lock %s: the lock is not held: %w", name, fs.ErrNotExist)
	}
	l.stop()
	<-l.done
	release, done := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer done()
	return l.lease.Release(release)
}
