package acme

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/certmagic"
)

// A closed storage rejects writes, and releases a lock that is held.
func TestClosedStorageRejectsWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	c := &closing{Storage: &certmagic.FileStorage{Path: dir}}
	if err := errors.Join(c.Store(t.Context(), "a/b", []byte("x")), c.Lock(t.Context(), "held")); err != nil {
		t.Fatal(err)
	}
	c.close()
	if err := c.Unlock(context.Background(), "held"); err != nil {
		t.Errorf("Unlock returned %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := c.Store(t.Context(), "a/b", nil); !errors.Is(err, errClosed) {
		t.Errorf("Store returned %v", err)
	}
	if err := c.Lock(t.Context(), "another"); !errors.Is(err, errClosed) {
		t.Errorf("Lock returned %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was created again: %v", err)
	}
}
