package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// errLocked reports a lock that another process holds.
var errLocked = errors.New("locked by another process")

// lockFile opens path, creates it if necessary, and acquires an exclusive lock on it without waiting;
// errLocked when another process holds the lock. The lock is on the file that path names when lockFile
// returns, even if another process removed and recreated the file meanwhile.
func lockFile(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, fileMode)
		if err != nil {
			return nil, err
		}
		if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			return nil, err
		}
		if isSameFile(f, path) {
			return f, nil
		}
		f.Close()
	}
}

// lockWait acquires an exclusive lock like lockFile, and retries until timeout.
func lockWait(ctx context.Context, path string, timeout time.Duration) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		f, err := lockFile(path)
		if !errors.Is(err, errLocked) {
			return f, err
		}
		if !sleep(ctx, pollInterval) {
			return nil, err
		}
	}
}

// isLocked reports whether some process holds an exclusive lock on an open file.
func isLocked(f *os.File) bool {
	if err := flock(f, unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return errors.Is(err, errLocked)
	}
	_ = flock(f, unix.LOCK_UN) // closing the file also releases the lock
	return false
}

// flock locks an open file; it retries when a signal interrupts it.
func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return errLocked
		default:
			return fmt.Errorf("locking %s: %w", f.Name(), err)
		}
	}
}

// isSameFile reports whether path still names the open file f.
func isSameFile(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(open, named)
}

// sleep blocks for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
