package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// keyRE matches valid keys: parts separated by dots, as in desired.replicas.us-0.
var keyRE = regexp.MustCompile(`^[A-Za-z0-9_/=-]+(\.[A-Za-z0-9_/=-]+)*$`)

// readOperation is the verb of Get in errors.
const readOperation = "read"

// withStateBucket runs f on the state bucket with opTimeout, and records its result. operation is
// its verb in errors.
func (s *Store) withStateBucket(ctx context.Context, key, operation string, f func(context.Context, jetstream.KeyValue) error) error {
	if !keyRE.MatchString(key) {
		return fmt.Errorf("%s store key %q: the key must be parts of letters, digits and _ / = - separated by dots", operation, key)
	}
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	kv, err := s.openStateBucket(octx)
	if err == nil {
		err = f(octx, kv)
	}
	last := &s.writeOutage
	if operation == readOperation {
		last = &s.readOutage
	}
	s.recordResult(last, err)
	return wrap(ctx, err, "%s store key %q", operation, key)
}

// Get returns the value of a key and its revision. It fails with ErrNotFound or ErrUnavailable. It sees every write that
// was acknowledged before, with one exception: a member of a cluster that is partitioned from the majority may return an
// older value for up to 4 s: quorumTimeout, and up to 1 s more until the leader checks it. Base decisions on a
// compare-and-swap or a lease.
func (s *Store) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	err = s.withStateBucket(ctx, key, readOperation, func(ctx context.Context, kv jetstream.KeyValue) error {
		return retryRead(ctx, s.newestConn(), func(ctx context.Context) error {
			e, err := kv.Get(ctx, key)
			if err == nil {
				value, revision = e.Value(), e.Revision()
			}
			return err
		})
	})
	return value, revision, err
}

// Put writes a key unconditionally and returns its new revision. All keys share one sequence of revisions, which
// increases until a backup is restored.
func (s *Store) Put(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	err = s.withStateBucket(ctx, key, "write", func(ctx context.Context, kv jetstream.KeyValue) (err error) {
		revision, err = kv.Put(ctx, key, value)
		return err
	})
	return revision, err
}

// Create writes a key that has no value; ErrConflict if it has one.
func (s *Store) Create(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	err = s.withStateBucket(ctx, key, "create", func(ctx context.Context, kv jetstream.KeyValue) (err error) {
		revision, err = kv.Create(ctx, key, value)
		return err
	})
	return revision, err
}

// CompareAndSwap writes a key if its revision is the given one; ErrConflict if not.
func (s *Store) CompareAndSwap(ctx context.Context, key string, value []byte, revision uint64) (next uint64, err error) {
	err = s.withStateBucket(ctx, key, "compare-and-swap", func(ctx context.Context, kv jetstream.KeyValue) (err error) {
		next, err = kv.Update(ctx, key, value, revision)
		return err
	})
	return next, err
}

// Delete removes a key. Removing a missing key is not an error.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.withStateBucket(ctx, key, "delete", func(ctx context.Context, kv jetstream.KeyValue) error {
		return kv.Delete(ctx, key)
	})
}

// deleteAt removes a key if its revision is the given one.
func (s *Store) deleteAt(ctx context.Context, key string, revision uint64) error {
	return s.withStateBucket(ctx, key, "delete", func(ctx context.Context, kv jetstream.KeyValue) error {
		return kv.Delete(ctx, key, jetstream.LastRevision(revision))
	})
}

// Keys lists the keys with the given prefix that have a value, sorted; an empty prefix
// means all.
func (s *Store) Keys(ctx context.Context, prefix string) ([]string, error) {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	keys := []string{}
	kv, err := s.openStateBucket(octx)
	if err == nil {
		var all []Entry
		all, err = listEntries(octx, s.newestConn(), kv, ">", jetstream.MetaOnly())
		for _, e := range all {
			if strings.HasPrefix(e.Key, prefix) {
				keys = append(keys, e.Key)
			}
		}
	}
	s.recordResult(&s.readOutage, err)
	return keys, wrap(ctx, err, "listing store keys %q", prefix)
}

// KeyChange is one change of a key.
type KeyChange struct {
	Key      string
	Value    []byte // nil if Deleted
	Revision uint64
	Deleted  bool
}

// watchRetry is the backoff of a watch that failed while connected.
const watchRetry = 200 * time.Millisecond

// bucketRetry is the interval at which a watch checks whether a missing bucket, or the stream of events, exists.
const bucketRetry = time.Second

// Watch sends the current value of every key with the given prefix, and then every change. Keys that were deleted
// earlier may be sent at first, too, as Deleted. Watch closes the channel when ctx ends. After an outage it sends the
// changes made during it. It may skip values of a key that changes quickly, but never the newest value.
func (s *Store) Watch(ctx context.Context, prefix string) <-chan KeyChange {
	return s.watchBucket(ctx, prefix, s.openStateBucket, s.dropHandles)
}

// WatchReadOnly is Watch for clients that only read: it creates nothing in the store, and waits
// until the bucket exists.
func (s *Store) WatchReadOnly(ctx context.Context, prefix string) <-chan KeyChange {
	return s.watchBucket(ctx, prefix, s.openExistingStateBucket, s.dropHandles)
}

func (s *Store) watchBucket(ctx context.Context, prefix string, open func(context.Context) (jetstream.KeyValue, error), drop func(error)) <-chan KeyChange {
	out := make(chan KeyChange)
	go func() {
		defer close(out)
		w := watch{s: s, open: open, drop: drop, prefix: prefix, sent: map[string]sentEntry{}, out: out}
		for ctx.Err() == nil {
			w.session(ctx)
		}
	}()
	return out
}

// watch is the state of a Watch across connections.
type watch struct {
	s      *Store
	open   func(context.Context) (jetstream.KeyValue, error) // the bucket
	drop   func(error)                                       // drops the handle of the bucket if it may be stale
	prefix string
	sent   map[string]sentEntry // the newest entry sent, by key
	out    chan<- KeyChange
}

// sentEntry identifies an entry. The revision alone does not: a restore lowers the revisions, so that another value may
// have the same one.
type sentEntry struct {
	revision uint64
	created  int64 // in nanoseconds since the Unix epoch
}

// session watches until the current connection or the watch ends.
func (w *watch) session(ctx context.Context) {
	_, ok, next := w.s.connectionState()
	if !ok {
		pause(ctx, next, time.Second)
		return
	}
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kv, err := w.open(sctx)
	if err != nil {
		w.drop(err)
		wait := watchRetry
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			wait = bucketRetry
		}
		pause(ctx, next, wait)
		return
	}
	kw, err := kv.Watch(sctx, w.pattern())
	if err != nil {
		w.drop(err)
		pause(ctx, next, watchRetry)
		return
	}
	defer func() { _ = kw.Stop() }() // the watch ends either way
	for {
		select {
		case <-ctx.Done():
			return
		case <-next:
			return
		case e, open := <-kw.Updates():
			if !open {
				pause(ctx, next, watchRetry)
				return
			}
			if e != nil && !w.sendEntry(ctx, e) {
				return
			}
		}
	}
}

// pattern returns the subject to watch: only the keys below the prefix if it ends with a
// dot, else all keys.
func (w *watch) pattern() string {
	if strings.HasSuffix(w.prefix, ".") {
		return w.prefix + ">"
	}
	return ">"
}

// sendEntry sends an entry unless it was sent before; false if ctx ended.
func (w *watch) sendEntry(ctx context.Context, e jetstream.KeyValueEntry) bool {
	id := sentEntry{e.Revision(), e.Created().UnixNano()}
	if !strings.HasPrefix(e.Key(), w.prefix) || w.sent[e.Key()] == id {
		return true
	}
	c := KeyChange{Key: e.Key(), Revision: e.Revision(), Deleted: e.Operation() != jetstream.KeyValuePut}
	if !c.Deleted {
		c.Value = e.Value()
	}
	select {
	case w.out <- c:
		w.sent[c.Key] = id
		return true
	case <-ctx.Done():
		return false
	}
}

// pause waits for d, a new connection or the end of ctx.
func pause(ctx context.Context, next <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-next:
	case <-t.C:
	}
}
