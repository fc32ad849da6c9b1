package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"skyserve/internal/atomicfile"
)

// Claim acquires an exclusive lock with a name, relative to the state directory, without waiting. The
// operating system releases it when the process ends, even if it is killed. ok is false while another
// process holds it. The file of the lock remains.
func (h Home) Claim(name string) (release func(), ok bool, err error) {
	path := filepath.Join(h.dir, name)
	if err := atomicfile.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, false, fmt.Errorf("locking %s: %w", path, err)
	}
	f, err := lockFile(path)
	switch {
	case errors.Is(err, errLocked):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { f.Close() }, true, nil
}

// IsClaimed reports whether a process holds the lock of Claim with a name.
func (h Home) IsClaimed(name string) (bool, error) {
	f, err := os.Open(filepath.Join(h.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading a lock: %w", err)
	}
	defer f.Close()
	return isLocked(f), nil
}
