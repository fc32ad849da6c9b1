package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// The store's own check of itself.
const (
	// checkEvery is how often the store looks whether it can still write.
	checkEvery = time.Second
	// restartMax bounds the wait between attempts to start again: the first comes at once,
	// and each later one after twice the time.
	restartMax = 30 * time.Second
	// roomBytes must fit on the disk before the store starts again: with less it would be
	// full again at once. It is the size of one block of a stream on disk.
	roomBytes = 8 << 20
)

// Problem is why a store does not work.
type Problem struct {
	Since time.Time
	Err   error
}

// Error says since when, and why.
func (p *Problem) Error() string {
	return fmt.Sprintf("the store has failed since %s: %v", p.Since.UTC().Format("2006-01-02 15:04:05 UTC"), p.Err)
}

// Unwrap gives the cause.
func (p *Problem) Unwrap() error { return p.Err }

// Health is why the store cannot write; nil while it can. The NATS server refuses all
// writes of a stream after one that failed, such as on a full disk, until it is started
// anew. The store does that by itself once its disk takes files again; reads are answered
// meanwhile where the server can.
func (s *Server) Health() *Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// supervise keeps a NATS server writing until ctx ends, and then ends it.
func (s *Server) supervise(ctx context.Context, ns *server.Server) {
	defer close(s.done)
	defer s.lock.Close()
	wait, last := s.opts.checkEvery, time.Time{} // between starts, and when the last one was
	for sleep(ctx, s.opts.checkEvery) {
		broken, full := check(ns), lacksRoom(s.opts.Dir)
		switch {
		case full != nil:
			s.report(full) // it may write still, and no start would last
			continue
		case broken != nil:
			s.report(broken)
		case ns != nil:
			s.recovered()
			if time.Since(last) > restartMax {
				wait = s.opts.checkEvery
			}
			continue
		}
		if time.Since(last) >= wait {
			last, wait = time.Now(), min(2*wait, restartMax)
			ns = s.restart(ctx, ns)
		}
	}
	stopNATS(ns)
}

// lacksRoom says that the file system of a directory is full, or about to be.
func lacksRoom(dir string) error {
	free, err := freeBytes(dir)
	if err != nil || free >= roomBytes {
		return nil //nolint:nilerr // where it cannot be asked, failed writes tell
	}
	return fmt.Errorf("%s has %d KiB left of the %d MiB that the store needs: %w", dir, free>>10, roomBytes>>20, syscall.ENOSPC)
}

// Free is how many bytes the file system of the store has left; false where that is not
// known.
func (s *Server) Free() (bytes uint64, known bool) {
	free, err := freeBytes(s.opts.Dir)
	return free, err == nil
}

// restart starts the server anew if its disk takes files again. It returns the server; nil
// where it could not be started.
func (s *Server) restart(ctx context.Context, ns *server.Server) *server.Server {
	if err := tryDisk(s.opts.Dir); err != nil {
		s.report(err)
		return ns
	}
	stopNATS(ns)
	ns, err := startNATS(ctx, s.opts, s.host, s.port)
	if err != nil {
		s.report(err)
		return nil
	}
	return ns
}

// check is why a server cannot write; nil where it can, or there is none.
func check(ns *server.Server) error {
	if ns == nil {
		return nil
	}
	for _, e := range ns.Healthz(&server.HealthzOptions{Details: true}).Errors {
		// A stream that is being made, which takes long on a slow disk, has a directory
		// before it is served; checkRecovered tells of those that were lost.
		if !strings.HasSuffix(e.Error, "could not be recovered") {
			return errors.New(e.Error)
		}
	}
	return nil
}

// stopNATS ends a server; nil is none.
func stopNATS(ns *server.Server) {
	if ns != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
	}
}

// tryDisk is why a directory takes no file of a useful size.
func tryDisk(dir string) (err error) {
	f, err := os.CreateTemp(dir, "room.*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	chunk := make([]byte, 1<<20)
	for range roomBytes / len(chunk) {
		if _, err = f.Write(chunk); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// report notes why the store cannot write: its first reason is logged and told, later
// ones take its place.
func (s *Server) report(err error) {
	p := &Problem{Since: time.Now(), Err: err}
	s.mu.Lock()
	first := s.problem == nil
	if !first {
		p.Since = s.problem.Since
	}
	s.problem = p
	s.mu.Unlock()
	if !first {
		return
	}
	s.log.Error("the store cannot write; it starts again by itself once its disk takes files", "dir", s.opts.Dir, "err", err)
	if s.opts.OnHealth != nil {
		s.opts.OnHealth(p)
	}
}

// recovered notes that the store can write.
func (s *Server) recovered() {
	s.mu.Lock()
	p := s.problem
	s.problem = nil
	s.mu.Unlock()
	if p == nil {
		return
	}
	s.log.Info("the store can write again", "after", time.Since(p.Since).Round(time.Second))
	if s.opts.OnHealth != nil {
		s.opts.OnHealth(nil)
	}
}

// sleep waits; false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
