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

// keyRE is what a key may hold; parts are separated by dots, as in
// desired.replicas.us-0.
var keyRE = regexp.MustCompile(`^[A-Za-z0-9_/=-]+(\.[A-Za-z0-9_/=-]+)*$`)

// reading is what Get does, in words.
const reading = "reading"

// withBucket runs f on the bucket of state under the operation's time limit.
func (s *Store) withBucket(ctx context.Context, key, doing string, f func(context.Context, jetstream.KeyValue) error) error {
	if !keyRE.MatchString(key) {
		return fmt.Errorf("%s store key %q: want letters, digits and _/=- in parts separated by dots", doing, key)
	}
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	kv, err := s.bucket(octx)
	if err == nil {
		err = f(octx, kv)
	}
	last := &s.write
	if doing == reading {
		last = &s.read
	}
	s.note(last, err)
	return wrap(ctx, err, "%s store key %q", doing, key)
}

// Get reads a key and the revision of its value. Fails with ErrNotFound or
// ErrUnavailable.
func (s *Store) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	err = s.withBucket(ctx, key, reading, func(ctx context.Context, kv jetstream.KeyValue) error {
		e, err := kv.Get(ctx, key)
		if err != nil {
			return err
		}
		value, revision = e.Value(), e.Revision()
		return nil
	})
	return value, revision, err
}

// Put writes a key whatever it held and returns the new revision. Revisions
// grow over all keys of the service and are never used twice.
func (s *Store) Put(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	err = s.withBucket(ctx, key, "writing", func(ctx context.Context, kv jetstream.KeyValue) (err error) {
		revision, err = kv.Put(ctx, key, value)
		return err
	})
	return revision, err
}

// Create writes a key that has no value; ErrConflict when it has one.
func (s *Store) Create(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	err = s.withBucket(ctx, key, "creating", func(ctx context.Context, kv jetstream.KeyValue) (err error) {
		revision, err = kv.Create(ctx, key, value)
		return err
	})
	return revision, err
}

// CompareAndSwap writes a key whose newest revision is the given one;
// ErrConflict when it is another.
func (s *Store) CompareAndSwap(ctx context.Context, key string, value []byte, revision uint64) (next uint64, err error) {
	err = s.withBucket(ctx, key, "swapping", func(ctx context.Context, kv jetstream.KeyValue) (err error) {
		next, err = kv.Update(ctx, key, value, revision)
		return err
	})
	return next, err
}

// Delete removes a key; removing what is not there is no error.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.withBucket(ctx, key, "deleting", func(ctx context.Context, kv jetstream.KeyValue) error {
		return kv.Delete(ctx, key)
	})
}

// deleteAt removes a key whose newest revision is the given one.
func (s *Store) deleteAt(ctx context.Context, key string, revision uint64) error {
	return s.withBucket(ctx, key, "deleting", func(ctx context.Context, kv jetstream.KeyValue) error {
		return kv.Delete(ctx, key, jetstream.LastRevision(revision))
	})
}

// Keys lists the keys that have a value and begin with prefix, sorted; an empty
// prefix means all.
func (s *Store) Keys(ctx context.Context, prefix string) ([]string, error) {
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	keys := []string{}
	kv, err := s.bucket(octx)
	if err == nil {
		var all []string
		all, err = kv.Keys(octx)
		for _, k := range all {
			if strings.HasPrefix(k, prefix) {
				keys = append(keys, k)
			}
		}
		if errors.Is(err, jetstream.ErrNoKeysFound) {
			err = octx.Err() // a listing cut short looks empty
		}
	}
	s.note(&s.read, err)
	return keys, wrap(ctx, err, "listing store keys %q", prefix)
}

// Change is one change of a key.
type Change struct {
	Key      string
	Value    []byte // nil when Deleted
	Revision uint64
	Deleted  bool
}

// watchRetry is the wait before a watch that failed while connected is tried
// again.
const watchRetry = 200 * time.Millisecond

// bucketRetry is the wait before a bucket that nobody has made yet is looked for
// again: it may never be made.
const bucketRetry = time.Second

// Watch sends the present value of every key that begins with prefix, then
// every change, until ctx ends, when the channel closes. It outlives outages:
// after one it sends what changed meanwhile. Intermediate values of a key that
// changes quickly may be left out, its newest value never is.
func (s *Store) Watch(ctx context.Context, prefix string) <-chan Change {
	return s.watch(ctx, prefix, s.bucket)
}

// Follow is Watch for those who only read: it makes nothing in the store, and waits
// until somebody has written there.
func (s *Store) Follow(ctx context.Context, prefix string) <-chan Change {
	return s.watch(ctx, prefix, s.madeBucket)
}

func (s *Store) watch(ctx context.Context, prefix string, open func(context.Context) (jetstream.KeyValue, error)) <-chan Change {
	out := make(chan Change)
	go func() {
		defer close(out)
		w := watch{s: s, open: open, prefix: prefix, seen: map[string]uint64{}, out: out}
		for ctx.Err() == nil {
			w.session(ctx)
		}
	}()
	return out
}

// watch is a Watch over all its connections.
type watch struct {
	s      *Store
	open   func(context.Context) (jetstream.KeyValue, error) // the bucket
	prefix string
	seen   map[string]uint64 // newest revision sent, per key
	out    chan<- Change
}

// session watches over one connection, and returns when it is over.
func (w *watch) session(ctx context.Context) {
	_, ok, next := w.s.connection()
	if !ok {
		pause(ctx, next, time.Second)
		return
	}
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kv, err := w.open(sctx)
	if err != nil {
		w.s.forget(err)
		wait := watchRetry
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			wait = bucketRetry
		}
		pause(ctx, next, wait)
		return
	}
	kw, err := kv.Watch(sctx, w.pattern())
	if err != nil {
		w.s.forget(err)
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
			if e != nil && !w.send(ctx, e) {
				return
			}
		}
	}
}

// pattern is what the server is asked for: of a prefix that ends a part only the
// keys below it.
func (w *watch) pattern() string {
	if strings.HasSuffix(w.prefix, ".") {
		return w.prefix + ">"
	}
	return ">"
}

// send passes one entry on unless it was sent before; false when ctx ended.
func (w *watch) send(ctx context.Context, e jetstream.KeyValueEntry) bool {
	if !strings.HasPrefix(e.Key(), w.prefix) || w.seen[e.Key()] == e.Revision() {
		return true
	}
	c := Change{Key: e.Key(), Revision: e.Revision(), Deleted: e.Operation() != jetstream.KeyValuePut}
	if !c.Deleted {
		c.Value = e.Value()
	}
	select {
	case w.out <- c:
		w.seen[c.Key] = c.Revision
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
