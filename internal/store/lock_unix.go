//go:build unix

package store

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockFile locks the file at path for this process. The kernel unlocks it when the process
// ends, even after a crash.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
