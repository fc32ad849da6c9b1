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
	// EnvObject names the environment variable that holds the path of a
	// background process's object file; it is set for no other process.
	EnvObject = "SKYSERVE_OBJECT"
	// envRecord holds what the process is to write there beside its process id.
	envRecord = "SKYSERVE_OBJECT_RECORD"
)

const (
	// pollEvery is how often a lock is tried while it is waited for.
	pollEvery = 20 * time.Millisecond
	// holdTimeout outlasts those who test the lock for an instant to see
	// whether the object lives.
	holdTimeout = time.Second
	// watchEvery is how often a process looks whether its object file is still there.
	watchEvery = time.Second
)

// Holding is a process's hold of the object that it is. Its methods are safe for
// concurrent use.
type Holding struct {
	file *os.File
	path string
	stop func() // ends watching and gives the lock back, once

	mu   sync.Mutex
	rec  record
	text []byte // of the file
}

// Hold makes this process the object that the file at path stands for: it
// takes the file's lock, writes there who it is, and keeps both for the life of
// the process or until Release. When the file is removed while it is held, the
// process gets a SIGTERM, because nobody could find it any more; when the file is
// damaged, it is written again. An object that another process holds already is
// an error.
func Hold(path string) (*Holding, error) {
	recorded := os.Getenv(envRecord)
	for _, name := range []string{EnvObject, envRecord} { // a child is not this object
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("holding object %s: %w", path, err)
		}
	}
	return hold(path, recorded, watchEvery, func() { _ = unix.Kill(os.Getpid(), unix.SIGTERM) })
}

// Release ends the hold; the file stays and tells that its process is gone. Once
// more it does nothing.
func (h *Holding) Release() { h.stop() }

// write writes the record; mu is held.
func (h *Holding) write() error {
	text, err := json.Marshal(h.rec)
	if err != nil {
		return err
	}
	h.text = text
	return rewrite(h.file, text)
}

// hold is Hold with its surroundings as arguments.
func hold(path, recorded string, every time.Duration, lost func()) (*Holding, error) {
	var rec record
	if err := json.Unmarshal([]byte(recorded), &rec); err != nil {
		return nil, fmt.Errorf("holding object %s: %s: %w", path, envRecord, err)
	}
	f, err := lockWait(context.Background(), path, holdTimeout)
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("holding object %s: another process is this object already", path)
	}
	if err != nil {
		return nil, fmt.Errorf("holding object %s: %w", path, err)
	}
	rec.PID, rec.Started = os.Getpid(), time.Now().UTC().Truncate(time.Millisecond)
	h := &Holding{file: f, path: path, rec: rec}
	if err := h.write(); err != nil {
		f.Close()
		return nil, fmt.Errorf("holding object %s: %w", path, err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		h.watch(every, stop, lost)
	}()
	h.stop = sync.OnceFunc(func() { close(stop); <-done; f.Close() })
	return h, nil
}

// rewrite replaces the text of a file that others have open.
func rewrite(f *os.File, text []byte) error {
	if _, err := f.WriteAt(text, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(text))); err != nil {
		return err
	}
	return f.Sync()
}

// watch mends the file's text and tells, once, when the file is gone.
func (h *Holding) watch(every time.Duration, stop <-chan struct{}, lost func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if removed(h.file, h.path) {
			lost()
			return
		}
		h.mend()
	}
}

// mend writes the text again where another one stands; what fails is tried again
// at the next tick.
func (h *Holding) mend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := make([]byte, len(h.text)+1)
	n, err := h.file.ReadAt(found, 0)
	if (err == nil || errors.Is(err, io.EOF)) && string(found[:n]) != string(h.text) {
		_ = rewrite(h.file, h.text)
	}
}

// removed tells whether path no longer names the open file f. Any other
// trouble with looking is no reason to stop a service.
func removed(f *os.File, path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !isAt(f, path)
}
