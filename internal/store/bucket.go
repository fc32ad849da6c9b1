package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bucket is a key-value bucket of NATS, not a bucket of a cloud (see CloudBucket). Its keys are separate from those
// of Store; its methods have the guarantees and errors of those of Store. It is safe for concurrent use. Its failures
// do not change Store.Outage: a full bucket is no outage of the store.
type Bucket struct {
	s                 *Store
	name, description string
	maxBytes          int64
	creation          createBackoff

	mu              sync.Mutex
	connectionCount uint64
	kv              jetstream.KeyValue
}

// Limits of the buckets of batches, each with its reason.
const (
	// recordsMaxBytes limits the records of files and batches: 10,000 batches of 25 KB.
	recordsMaxBytes = 256 << 20
	// resultsMaxBytes limits the results of batches that have not ended: 50 batches of 50,000 answers of
	// 1 KB.
	resultsMaxBytes = 3 << 30
	// MaxBucketValue is the maximum size of a value in bytes, which callers must observe: NATS's default maximum of a
	// message is 1 MB.
	MaxBucketValue = 900 << 10
)

func (s *Store) newBucket(name, description string, maxBytes int64) *Bucket {
	return &Bucket{s: s, name: s.namespace + "_" + name, description: "skyserve: " + description, maxBytes: maxBytes}
}

// bucketStream returns the stream of a bucket of keys with one value each. Without AllowDirect only the leader of
// the stream responds to reads, so that they see every write that was acknowledged before.
func bucketStream(bucket, description string, maxBytes int64) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + bucket, Description: description, Subjects: []string{"$KV." + bucket + ".>"},
		Storage: jetstream.FileStorage, MaxMsgsPerSubject: 1, MaxBytes: maxBytes, Discard: jetstream.DiscardNew,
		AllowRollup: true, DenyDelete: true,
	}
}

// BatchRecords returns the bucket of the records of files and batches.
func (s *Store) BatchRecords() *Bucket {
	return s.newBucket("batches", "files and batches", recordsMaxBytes)
}

// BatchResults returns the bucket of the results of batches that have not ended.
func (s *Store) BatchResults() *Bucket {
	return s.newBucket("results", "results of batches", resultsMaxBytes)
}

// openRetry is the interval of attempts to open a bucket while the store's cluster is not open yet, which takes seconds
// after the start of a service.
const openRetry = 100 * time.Millisecond

// open opens the bucket and creates it on first use of a connection.
func (b *Bucket) open(ctx context.Context) (jetstream.KeyValue, error) {
	nc, err := b.s.conn()
	if err != nil {
		return nil, err
	}
	connectionCount, _, _ := b.s.connectionState()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kv != nil && b.connectionCount == connectionCount {
		return b.kv, nil
	}
	if err := b.creation.recentFailure(b.s.now()); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	var kv jetstream.KeyValue
	for {
		_, err = ensureStream(ctx, nc, js, bucketStream(b.name, b.description, b.maxBytes), nil)
		if !errors.Is(err, ErrUnavailable) || ctx.Err() != nil || !nc.IsConnected() {
			break
		}
		pause(ctx, nil, openRetry) // until the cluster is open
	}
	if err == nil {
		err = retryRead(ctx, nc, func(ctx context.Context) (err error) {
			kv, err = js.KeyValue(ctx, b.name)
			return err
		})
	}
	b.creation.recordResult(b.s.now(), creationFailure(nc, err))
	if err != nil {
		return nil, err
	}
	b.kv, b.connectionCount = kv, connectionCount
	return kv, nil
}

// withBucket runs f on the bucket with opTimeout. operation is its verb in errors.
func (b *Bucket) withBucket(ctx context.Context, key, operation string, f func(context.Context, jetstream.KeyValue) error) error {
	if !keyRE.MatchString(key) {
		return fmt.Errorf("%s store key %q: the key must be parts of letters, digits and _ / = - separated by dots", operation, key)
	}
	octx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	kv, err := b.open(octx)
	if err == nil {
		err = f(octx, kv)
	}
	b.dropHandle(err)
	return wrap(ctx, err, "%s key %q of bucket %s", operation, key, b.name)
}

// dropHandle drops the cached handle after an error that may be due to a missing stream.
func (b *Bucket) dropHandle(err error) {
	if err == nil || !isOutage(err) {
		return
	}
	b.mu.Lock()
	b.kv = nil
	b.mu.Unlock()
}

// Get returns the value of a key and its revision.
func (b *Bucket) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	err = b.withBucket(ctx, key, readOperation, func(ctx context.Context, kv jetstream.KeyValue) error {
		return retryRead(ctx, b.s.newestConn(), func(ctx context.Context) error {
			e, err := kv.Get(ctx, key)
			if err == nil {
				value, revision = e.Value(), e.Revision()
			}
			return err
		})
	})
	return value, revision, err
}

// Put writes a key unconditionally.
func (b *Bucket) Put(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	err = b.withBucket(ctx, key, "write", func(ctx context.Context, kv jetstream.KeyValue) (err error) {
		revision, err = kv.Put(ctx, key, value)
		return err
	})
	return revision, err
}

// Create writes a key that has no value; ErrConflict if it has one.
func (b *Bucket) Create(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	err = b.withBucket(ctx, key, "create", func(ctx context.Context, kv jetstream.KeyValue) (err error) {
		revision, err = kv.Create(ctx, key, value)
		return err
	})
	return revision, err
}

// CompareAndSwap writes a key if its revision is the given one; ErrConflict if not.
func (b *Bucket) CompareAndSwap(ctx context.Context, key string, value []byte, revision uint64) (next uint64, err error) {
	err = b.withBucket(ctx, key, "compare-and-swap", func(ctx context.Context, kv jetstream.KeyValue) (err error) {
		next, err = kv.Update(ctx, key, value, revision)
		return err
	})
	return next, err
}

// Delete removes a key. It leaves a tombstone, from which watches learn of the removal. Removing a missing key is not an
// error.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	return b.withBucket(ctx, key, "delete", func(ctx context.Context, kv jetstream.KeyValue) error {
		return kv.Purge(ctx, key)
	})
}

// Clear removes all keys below prefix, which must end with a dot. It leaves no tombstones, so watches do not learn of the
// removal.
func (b *Bucket) Clear(ctx context.Context, prefix string) error {
	return b.withBucket(ctx, strings.TrimSuffix(prefix, "."), "clear all below", func(ctx context.Context, _ jetstream.KeyValue) error {
		nc, err := b.s.conn()
		if err != nil {
			return err
		}
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		stream, err := js.Stream(ctx, "KV_"+b.name)
		if err != nil {
			return err
		}
		return stream.Purge(ctx, jetstream.WithPurgeSubject("$KV."+b.name+"."+prefix+">"))
	})
}

// Entry is a key with its value.
type Entry struct {
	Key      string
	Value    []byte // nil from Keys
	Revision uint64
}

// List returns the keys below prefix, which must end with a dot, with their values, sorted by key.
func (b *Bucket) List(ctx context.Context, prefix string) ([]Entry, error) {
	return b.list(ctx, prefix)
}

// Keys is List without the values.
func (b *Bucket) Keys(ctx context.Context, prefix string) ([]Entry, error) {
	return b.list(ctx, prefix, jetstream.MetaOnly())
}

// listTimeout is the timeout of a list, also of the largest bucket.
const listTimeout = 30 * time.Second

// cancelWhenLost calls cancel when the connection is lost: NATS's client would wait for the next one.
func (b *Bucket) cancelWhenLost(ctx context.Context, cancel context.CancelFunc) {
	check := time.NewTicker(listCheck)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			if !b.s.Connected() {
				cancel()
				return
			}
		}
	}
}

// listCheck is the interval at which a list checks the connection.
const listCheck = 200 * time.Millisecond

func (b *Bucket) list(ctx context.Context, prefix string, options ...jetstream.WatchOpt) ([]Entry, error) {
	octx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	go b.cancelWhenLost(octx, cancel)
	var entries []Entry
	nc, err := b.s.conn()
	if err == nil {
		var kv jetstream.KeyValue
		if kv, err = b.open(octx); err == nil {
			entries, err = listEntries(octx, nc, kv, prefix+">", options...)
		}
	}
	if _, lost := b.s.conn(); err != nil && lost != nil && ctx.Err() == nil {
		err = lost
	}
	b.dropHandle(err)
	return entries, wrap(ctx, err, "listing keys %q of bucket %s", strings.TrimSuffix(prefix, "."), b.name)
}

// lagTimeout is how long a list waits, after the last change that it received, for the newest change that the stream's
// leader knew. Then the list starts again: a later change may have replaced the one that it waits for.
const lagTimeout = time.Second

// listEntries returns the keys of a pattern that have a value, sorted by key. The list contains every write that was
// acknowledged before. A member that lags behind may serve it, so it ends only after the newest change that the stream's
// leader knew at the start.
func listEntries(ctx context.Context, nc *nats.Conn, kv jetstream.KeyValue, pattern string, options ...jetstream.WatchOpt) ([]Entry, error) {
	for {
		newest, err := newestRevision(ctx, nc, kv.Bucket(), pattern)
		if err != nil {
			return nil, err
		}
		entries, complete, err := listUpTo(ctx, kv, pattern, newest, options...)
		if complete || err != nil {
			return entries, err
		}
	}
}

// newestRevision returns the revision of the newest change of the keys of a pattern that the leader of the stream knows;
// 0 = none.
func newestRevision(ctx context.Context, nc *nats.Conn, bucket, pattern string) (revision uint64, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	err = retryRead(ctx, nc, func(ctx context.Context) error {
		stream, err := js.Stream(ctx, "KV_"+bucket)
		if err != nil {
			return err
		}
		last, err := stream.GetLastMsgForSubject(ctx, "$KV."+bucket+"."+pattern)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err == nil {
			revision = last.Sequence
		}
		return err
	})
	return revision, err
}

// listUpTo lists the keys of a pattern. complete is false if the change with the revision newest was not received within
// lagTimeout.
func listUpTo(ctx context.Context, kv jetstream.KeyValue, pattern string, newest uint64, options ...jetstream.WatchOpt) (entries []Entry, complete bool, err error) {
	w, err := kv.WatchFiltered(ctx, []string{pattern}, options...)
	if err != nil {
		return nil, false, err
	}
	defer w.Stop() //nolint:errcheck // it ends with ctx
	byKey, initial, received := map[string]Entry{}, false, uint64(0)
	lag := time.NewTimer(lagTimeout)
	defer lag.Stop()
	for !initial || received < newest {
		select {
		case <-ctx.Done():
			return nil, false, ctx.Err()
		case <-lag.C:
			if initial {
				return nil, false, nil
			}
		case e, open := <-w.Updates():
			lag.Reset(lagTimeout)
			switch {
			case !open:
				return nil, false, fmt.Errorf("%w: the list ended early", ErrUnavailable)
			case e == nil:
				initial = true
				continue
			case e.Operation() == jetstream.KeyValuePut:
				byKey[e.Key()] = Entry{e.Key(), e.Value(), e.Revision()}
			default:
				delete(byKey, e.Key())
			}
			received = e.Revision()
		}
	}
	return slices.SortedFunc(maps.Values(byKey), func(x, y Entry) int { return cmp.Compare(x.Key, y.Key) }), true, nil
}

// Watch is Store.Watch for the keys of the bucket.
func (b *Bucket) Watch(ctx context.Context, prefix string) <-chan KeyChange {
	return b.s.watchBucket(ctx, prefix, b.open, b.dropHandle)
}
