package acme

import (
	"context"
	"errors"
	"sync"

	"github.com/caddyserver/certmagic"
)

// closing is a storage that rejects writes once it is closed. Operations of certmagic may end
// after their context, when the directory or the store no longer exists. Locks can still be
// released.
type closing struct {
	certmagic.Storage
	mu     sync.RWMutex // held for reading by each write
	closed bool
}

var errClosed = errors.New("the certificate storage is closed: the process is stopping")

// close waits for writes in progress; later ones fail.
func (c *closing) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

func (c *closing) write(do func() error) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return errClosed
	}
	return do()
}

// Store writes a value.
func (c *closing) Store(ctx context.Context, key string, value []byte) error {
	return c.write(func() error { return c.Storage.Store(ctx, key, value) })
}

// Lock waits for a lock until ctx ends.
func (c *closing) Lock(ctx context.Context, name string) error {
	return c.write(func() error { return c.Storage.Lock(ctx, name) })
}
