package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// EnvObject is the environment variable with the path of a background process's object file; it is
	// set for no other process.
	EnvObject = "SKYSERVE_OBJECT"
	// envRecord contains the record to write there, without the process id.
	envRecord = "SKYSERVE_OBJECT_RECORD"
)

const (
	// pollInterval is the interval of attempts to acquire a lock.
	pollInterval = 20 * time.Millisecond
	// holdTimeout is the maximum wait for the lock: longer than other processes hold it to test it.
	holdTimeout = time.Second
	// watchInterval is how often a process checks that its object file still exists.
	watchInterval = time.Second
)

// ObjectHold is a process's hold on its object file. Its methods are safe for concurrent use.
type ObjectHold struct {
	file *os.File
	path string
	stop func() // stops the watch and releases the lock; further calls have no effect

	mu   sync.Mutex
	rec  record
	text []byte // the content of the file
}

// HoldObject makes this process the object of the file at path. It locks the file and writes the process's
// record. The process holds the lock until it exits or calls Release. When the file is removed, the process
// receives a SIGTERM, because no command could find it any more. When the file is damaged, it is rewritten.
// An object that another process holds is an error.
func HoldObject(path string) (*ObjectHold, error) {
	recorded := os.Getenv(envRecord)
	for _, name := range []string{EnvObject, envRecord} { // child processes must not hold this object
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("locking the object file %s: %w", path, err)
		}
	}
	return holdFile(path, recorded, watchInterval, func() { _ = unix.Kill(os.Getpid(), unix.SIGTERM) })
}

// Release releases the lock. The file stays; without a lock it means that its process has ended. Further
// calls have no effect.
func (h *ObjectHold) Release() { h.stop() }

// write writes the record. The caller holds mu.
func (h *ObjectHold) write() error {
	text, err := json.Marshal(h.rec)
	if err != nil {
		return err
	}
	h.text = text
	return rewrite(h.file, text)
}

// holdFile is HoldObject with its dependencies as arguments.
func holdFile(path, recorded string, every time.Duration, lost func()) (*ObjectHold, error) {
	var rec record
	if err := json.Unmarshal([]byte(recorded), &rec); err != nil {
		return nil, fmt.Errorf("locking the object file %s: %s: %w", path, envRecord, err)
	}
	f, err := lockWait(context.Background(), path, holdTimeout)
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("locking the object file %s: another process has locked it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("locking the object file %s: %w", path, err)
	}
	rec.PID, rec.Started = os.Getpid(), time.Now().UTC().Truncate(time.Millisecond)
	h := &ObjectHold{file: f, path: path, rec: rec}
	if err := h.write(); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking the object file %s: %w", path, err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		h.watch(every, stop, lost)
	}()
	h.stop = sync.OnceFunc(func() { close(stop); <-done; f.Close() })
	return h, nil
}

// rewrite replaces the content of a file that others have open.
func rewrite(f *os.File, text []byte) error {
	if _, err := f.WriteAt(text, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(text))); err != nil {
		return err
	}
	return f.Sync()
}

// watch repairs the file's content and calls lost, once, when the file is removed.
func (h *ObjectHold) watch(every time.Duration, stop <-chan struct{}, lost func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if isRemoved(h.file, h.path) {
			lost()
			return
		}
		h.repair()
	}
}

// repair rewrites the content when it has changed; a failure is retried at the next tick.
func (h *ObjectHold) repair() {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := make([]byte, len(h.text)+1)
	n, err := h.file.ReadAt(found, 0)
	if (err == nil || errors.Is(err, io.EOF)) && string(found[:n]) != string(h.text) {
		_ = rewrite(h.file, h.text)
	}
}

// isRemoved reports whether path does not name the open file f any more. It ignores other errors, which must
// not stop a service.
func isRemoved(f *os.File, path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !isSameFile(f, path)
}
