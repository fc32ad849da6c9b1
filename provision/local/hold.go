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
	// holdPatience outlasts those who test the lock for an instant to see
	// whether the object lives.
	holdPatience = time.Second
	// watchEvery is how often a process looks whether its object file is still there.
	watchEvery = time.Second
)

// Hold makes this process the object that the file at path stands for: it
// takes the file's lock, writes there who it is, and keeps both for the life of
// the process or until release is called. When the file is removed while it is
// held, the process gets a SIGTERM, because nobody could find it any more; when
// the file is damaged, it is written again. An object that another process
// holds already is an error.
func Hold(path string) (release func(), err error) {
	recorded := os.Getenv(envRecord)
	for _, name := range []string{EnvObject, envRecord} { // a child is not this object
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("holding object %s: %w", path, err)
		}
	}
	return hold(path, recorded, watchEvery, func() { _ = unix.Kill(os.Getpid(), unix.SIGTERM) })
}

// hold is Hold with its surroundings as arguments.
func hold(path, recorded string, every time.Duration, lost func()) (release func(), err error) {
	var rec record
	if err := json.Unmarshal([]byte(recorded), &rec); err != nil {
		return nil, fmt.Errorf("holding object %s: %s: %w", path, envRecord, err)
	}
	f, err := lockWait(context.Background(), path, holdPatience)
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("holding object %s: another process is this object already", path)
	}
	if err != nil {
		return nil, fmt.Errorf("holding object %s: %w", path, err)
	}
	rec.PID, rec.Started = os.Getpid(), time.Now().UTC().Truncate(time.Millisecond)
	text, err := json.Marshal(rec)
	if err == nil {
		err = rewrite(f, text)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("holding object %s: %w", path, err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		watch(f, path, text, every, stop, lost)
	}()
	var once sync.Once
	return func() { once.Do(func() { close(stop); <-done; f.Close() }) }, nil
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
func watch(f *os.File, path string, text []byte, every time.Duration, stop <-chan struct{}, lost func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if removed(f, path) {
			lost()
			return
		}
		found := make([]byte, len(text)+1)
		n, err := f.ReadAt(found, 0)
		if (err == nil || errors.Is(err, io.EOF)) && string(found[:n]) != string(text) {
			_ = rewrite(f, text) // tried again at the next tick
		}
	}
}

// removed tells whether path no longer names the open file f. Any other
// trouble with looking is no reason to stop a service.
func removed(f *os.File, path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !isAt(f, path)
}
