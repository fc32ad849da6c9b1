package acme

import (
	"context"
	"errors"
	"sync"

	"github.com/caddyserver/certmagic"
)

// closing is a storage that takes nothing any more once it is closed: what certmagic has
// under way ends some time after its context does, and the directory or the store behind
// the storage may be gone by then. Locks are given back all the same.
type closing struct {
	certmagic.Storage
	mu     sync.RWMutex // held for reading by each write
	closed bool
}

var errClosed = errors.New("the storage of certificates is closed")

// close waits for writes that are under way; those that come later fail.
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

// Lock takes a lock, or waits for it until ctx ends.
func (c *closing) Lock(ctx context.Context, name string) error {
	return c.write(func() error { return c.Storage.Lock(ctx, name) })
}
