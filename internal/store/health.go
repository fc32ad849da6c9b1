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

	"skyserve/internal/atomicfile"
)

// Limits of the store's health check.
const (
	// checkEvery is the interval of the check whether the store can write.
	checkEvery = time.Second
	// acceptTimeout is the timeout of the check whether the server accepts connections. A healthy server
	// accepts at once, but a busy machine may delay the check.
	acceptTimeout = 5 * time.Second
	// restartMax is the maximum backoff between restarts: the first is immediate, then the
	// backoff doubles.
	restartMax = 30 * time.Second
	// minFreeBytes is the free space that the store requires: with less it reports an outage before the first write
	// fails, and does not restart the server, because the disk would soon be full again. It is the size of one block of a
	// stream on disk.
	minFreeBytes = 8 << 20
)

// Outage is why a store cannot read or write, or that its disk is nearly full, and since when.
type Outage struct {
	Since time.Time
	Err   error
}

// Error returns since when there is an outage, and why.
func (o *Outage) Error() string {
	return fmt.Sprintf("outage of the store since %s: %v", o.Since.UTC().Format("2006-01-02 15:04:05 UTC"), o.Err)
}

// Unwrap returns the cause.
func (o *Outage) Unwrap() error { return o.Err }

// Outage returns why the store cannot write, or that its disk is nearly full; nil otherwise. After a failed write,
// such as on a full disk, the NATS server rejects all writes to a stream until it is restarted. The store restarts
// the server once a file can be written to the disk. Until then writes fail, and some reads. In a cluster the other
// members continue meanwhile. While a member has no majority, the outage wraps ErrNoQuorum; OnOutage is not called for
// it.
func (s *Server) Outage() *Outage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outage == nil {
		return s.quorumOutage(time.Now())
	}
	return s.outage
}

// supervise restarts a NATS server that cannot write, until ctx ends, and then stops it.
func (s *Server) supervise(ctx context.Context, ns *runningNATS) {
	defer close(s.done)
	defer s.lock.Close()
	wait, last := s.opts.checkEvery, time.Time{} // the backoff between restarts, and the time of the last restart
	for sleep(ctx, s.opts.checkEvery) {
		broken, full := checkWrites(ns), checkFreeSpace(s.opts.Dir)
		switch {
		case full != nil:
			s.recordOutage(full) // recorded before the first write fails; a restart would not help
			continue
		case broken != nil:
			s.recordOutage(broken)
		case ns != nil:
			s.recordRecovery()
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
	s.stopMaintainer()
	stopNATS(ns)
}

// checkFreeSpace returns an error if the file system of a directory is full, or nearly.
func checkFreeSpace(dir string) error {
	free, err := atomicfile.FreeBytes(dir)
	if err != nil || free >= minFreeBytes {
		return nil //nolint:nilerr // if the free space is unknown, failed writes are detected
	}
	return fmt.Errorf("%s has %d KiB of free space, the store requires %d MiB; free space or enlarge the disk: %w", dir, free>>10, minFreeBytes>>20, syscall.ENOSPC)
}

// FreeBytes returns the free bytes of the store's file system; known is false if the system does
// not report them.
func (s *Server) FreeBytes() (bytes uint64, known bool) {
	free, err := atomicfile.FreeBytes(s.opts.Dir)
	return free, err == nil
}

// restart restarts the server if its disk can be written again. It returns the server; nil if
// it could not be started.
func (s *Server) restart(ctx context.Context, ns *runningNATS) *runningNATS {
	if err := checkDisk(s.opts.Dir); err != nil {
		s.recordOutage(err)
		return ns
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	s.stopMaintainer()
	stopNATS(ns)
	ns, err := startNATS(ctx, s.opts, s.member, s.host, s.port)
	if err == nil {
		if err = s.startMaintainer(ctx, ns, map[string]time.Time{}); err != nil {
			stopNATS(ns)
		}
	}
	if err != nil {
		s.recordOutage(err)
		return nil
	}
	return ns
}

// checkWrites returns why a server cannot write; nil if it can, or if there is no server.
func checkWrites(ns *runningNATS) error {
	if ns == nil {
		return nil
	}
	accepts := func() bool { return ns.ReadyForConnections(acceptTimeout) }
	clustered := ns.JetStreamIsClustered()
	return writeError(healthReport(ns, clustered), clustered, accepts)
}

// healthReport returns the problems of a server and its streams. The report of a member omits streams that are being
// restored. Otherwise there would be a data race in NATS: it marks the end of a restore without a lock (monitorStream in
// jetstream_cluster.go of nats-server 2.15.2), and Healthz reads this mark of all streams. A stream has a Raft group once
// it is restored.
func healthReport(ns *runningNATS, clustered bool) []server.HealthzError {
	report := ns.Healthz(&server.HealthzOptions{Details: true, JSMetaOnly: clustered}).Errors
	if !clustered {
		return report
	}
	info, err := ns.Jsz(&server.JSzOptions{Accounts: true, Streams: true, RaftGroups: true})
	if err != nil {
		return report // JetStream is disabled, which the report contains
	}
	for _, account := range info.AccountDetails {
		for _, stream := range account.Streams {
			if stream.RaftGroup != "" {
				options := server.HealthzOptions{Details: true, Account: account.Id, Stream: stream.Name}
				report = append(report, ns.Healthz(&options).Errors...)
			}
		}
	}
	return report
}

// writeError returns the error in a health report because of which the server cannot write; nil if there is
// none. accepts reports whether the server accepts connections.
func writeError(report []server.HealthzError, clustered bool, accepts func() bool) error {
	for _, e := range report {
		// The report allows the check of the listeners 1 ms, which a busy machine exceeds.
		if e.Type == server.HealthzErrorConn && accepts() {
			continue
		}
		// A member without a majority, or that is not current, waits for the others.
		if clustered && !strings.Contains(e.Error, "write error") {
			continue
		}
		// While a stream is created, its directory exists before the server serves the stream, on a slow
		// disk for a long time. checkRecovered detects streams that were lost.
		if !strings.HasSuffix(e.Error, "could not be recovered") {
			return errors.New(e.Error)
		}
	}
	return nil
}

// stopNATS stops a server, if not nil.
func stopNATS(ns *runningNATS) {
	if ns != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
	}
}

// checkDisk returns why a file of minFreeBytes cannot be written to a directory.
func checkDisk(dir string) (err error) {
	f, err := os.CreateTemp(dir, "write-check.*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	chunk := make([]byte, 1<<20)
	for range minFreeBytes / len(chunk) {
		if _, err = f.Write(chunk); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// recordOutage records why the store cannot write, or that its disk is nearly full. The first reason is logged and
// passed to OnOutage; a later reason only replaces it.
func (s *Server) recordOutage(err error) {
	outage := &Outage{Since: time.Now(), Err: err}
	s.mu.Lock()
	first := s.outage == nil
	if !first {
		outage.Since = s.outage.Since
	}
	s.outage = outage
	s.mu.Unlock()
	if !first {
		return
	}
	s.log.Error("the store cannot write, or its disk is nearly full: free space or repair the disk; the store then recovers by itself", "dir", s.opts.Dir, "err", err)
	if s.opts.OnOutage != nil {
		s.opts.OnOutage(outage)
	}
}

// recordRecovery records that the store can write.
func (s *Server) recordRecovery() {
	s.mu.Lock()
	outage := s.outage
	s.outage = nil
	s.mu.Unlock()
	if outage == nil {
		return
	}
	s.log.Info("the store recovered: it can write again", "after", time.Since(outage.Since).Round(time.Second))
	if s.opts.OnOutage != nil {
		s.opts.OnOutage(nil)
	}
}

// sleep waits for d; false if ctx ended.
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
