package store

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// delayedBucket is a state bucket with one record of a cluster, which rejects a write to a key while it processes
// another.
type delayedBucket struct {
	jetstream.KeyValue
	status  jetstream.KeyValueStatus
	answers func(write int) delayedAnswer

	mu         sync.Mutex
	value      []byte
	revision   uint64
	writes     int
	processing bool
}

// delayedAnswer is what happens to a write.
type delayedAnswer struct {
	transit, process   time.Duration // until it reaches the store, and until it is applied
	lost, unanswered   bool          // it does not reach the store; its answer does not reach the client
	byAnother, removed bool          // before that, another holder acquires the lease; it is released
	busy               bool          // the store still processes a request of an earlier renewal
}

func (b *delayedBucket) Status(context.Context) (jetstream.KeyValueStatus, error) {
	return b.status, nil
}

func (b *delayedBucket) Get(context.Context, string) (jetstream.KeyValueEntry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.value == nil {
		return nil, jetstream.ErrKeyNotFound
	}
	return delayedEntry{value: b.value, revision: b.revision}, nil
}

// Update implements jetstream.KeyValue. What has reached the store is applied also if the client no longer waits.
func (b *delayedBucket) Update(ctx context.Context, _ string, value []byte, last uint64) (uint64, error) {
	b.mu.Lock()
	b.writes++
	a := b.answers(b.writes)
	b.mu.Unlock()
	answered := make(chan error, 1)
	var revision uint64
	go func() {
		time.Sleep(a.transit)
		if a.lost {
			return
		}
		var err error
		if revision, err = b.apply(a, value, last); !a.unanswered {
			answered <- err
		}
	}()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case err := <-answered:
		return revision, err
	}
}

// apply applies a write if the record has the revision last.
func (b *delayedBucket) apply(a delayedAnswer, value []byte, last uint64) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.byAnother || a.removed {
		b.value, b.revision = []byte("another"), b.revision+1
	}
	if a.removed {
		b.value = nil
	}
	if last != b.revision || b.processing || a.busy {
		return 0, jetstream.ErrKeyRevisionMismatch
	}
	b.processing = true
	b.mu.Unlock()
	time.Sleep(a.process)
	b.mu.Lock()
	b.processing = false
	b.value, b.revision = value, b.revision+1
	return b.revision, nil
}

type delayedEntry struct {
	jetstream.KeyValueEntry
	value    []byte
	revision uint64
}

func (e delayedEntry) Value() []byte    { return e.value }
func (e delayedEntry) Revision() uint64 { return e.revision }

// A lost or slow request does not end a lease if a later request is answered. The lease counts at the latest from the
// request that was applied.
func TestRenewalIsRepeatedWhileLeaseIsValid(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	kv := must[jetstream.KeyValue](t)(st.openStateBucket(t.Context()))
	status := must[jetstream.KeyValueStatus](t)(kv.Status(t.Context()))
	const ttl = 3 * time.Second
	ms := time.Millisecond
	fast := delayedAnswer{transit: 10 * ms}
	for name, tt := range map[string]struct {
		answers []delayedAnswer // the last one is that of all further writes
		took    time.Duration   // of Renew
		counts  time.Duration   // the lease counts from this time after the call of Renew
		err     error
	}{
		"all are answered":              {[]delayedAnswer{fast}, 10 * ms, 0, nil},
		"the first is lost":             {[]delayedAnswer{{lost: true}, fast}, 760 * ms, 750 * ms, nil},
		"two are lost":                  {[]delayedAnswer{{lost: true}, {lost: true}, fast}, 1510 * ms, 1500 * ms, nil},
		"its answer is lost":            {[]delayedAnswer{{unanswered: true}, fast}, 770 * ms, 760 * ms, nil},
		"writes are slow":               {[]delayedAnswer{{process: 2500 * ms}}, 2500 * ms, 0, nil},
		"the network is slow":           {[]delayedAnswer{{transit: 1800 * ms}}, 1800 * ms, 0, nil},
		"a request overtakes":           {[]delayedAnswer{{transit: 1800 * ms}, fast}, 760 * ms, 750 * ms, nil},
		"slow, and its answer lost":     {[]delayedAnswer{{process: 800 * ms, unanswered: true}, fast}, 1520 * ms, 1510 * ms, nil},
		"none is answered":              {[]delayedAnswer{{lost: true}}, opTimeout, 0, ErrUnavailable},
		"none is, although applied":     {[]delayedAnswer{{unanswered: true}}, opTimeout, 0, ErrUnavailable},
		"another holder":                {[]delayedAnswer{{byAnother: true}}, 0, 0, ErrLeaseLost},
		"another holder meanwhile":      {[]delayedAnswer{{lost: true}, {transit: 10 * ms, byAnother: true}}, 760 * ms, 0, ErrLeaseLost},
		"released":                      {[]delayedAnswer{{removed: true}}, 0, 0, ErrLeaseLost},
		"slow, then of another":         {[]delayedAnswer{{transit: 2900 * ms, byAnother: true}, {lost: true}}, 2900 * ms, 0, ErrLeaseLost},
		"answered after it expired":     {[]delayedAnswer{{process: 4 * time.Second}}, 4 * time.Second, 0, nil},
		"after an earlier one":          {[]delayedAnswer{{transit: 10 * ms, busy: true}, fast}, 760 * ms, 750 * ms, nil},
		"an earlier one is not applied": {[]delayedAnswer{{transit: 10 * ms, busy: true}}, 2250 * ms, 0, ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				b := &delayedBucket{KeyValue: kv, status: status, value: []byte("own"), revision: 7, answers: func(n int) delayedAnswer { return tt.answers[min(n, len(tt.answers))-1] }}
				st.mu.Lock()
				st.now, st.state = time.Now, b
				st.mu.Unlock()
				l := &Lease{s: st, key: LeaseKey("controller"), value: []byte("own"), ttl: ttl, revision: 7, until: start.Add(2 * ttl / 3)}
				defer time.Sleep(time.Minute) // the store processes the remaining requests
				err := l.Renew(t.Context())
				if took := time.Since(start); !errors.Is(err, tt.err) || took != tt.took {
					t.Errorf("Renew returned %v after %s, want %v after %s", err, took, tt.err, tt.took)
				}
				switch {
				case errors.Is(err, ErrLeaseLost):
					if l.Valid() || !l.Expires().IsZero() {
						t.Error("the lease is not lost")
					}
				case err != nil:
					if l.Valid() || !l.Expires().Equal(start.Add(2*ttl/3)) {
						t.Errorf("the lease counts until %s without an answer", l.Expires().Sub(start))
					}
				case l.Expires().Sub(start) != tt.counts+ttl || l.revision != b.revision:
					t.Errorf("the lease expires after %s at revision %d of %d, want after %s", l.Expires().Sub(start), l.revision, b.revision, tt.counts+ttl)
				}
			})
		})
	}
}

// A write that its caller cancels tells nothing about the store: a recorded outage continues.
func TestCancelledWriteIsNoAnswer(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	st.recordResult(&st.writeOutage, errOutage)
	st.recordResult(&st.writeOutage, context.Canceled)
	if o := st.Outage(); o == nil || !errors.Is(o, errOutage) {
		t.Errorf("outage: %v, want that of the last answer", o)
	}
}

var errOutage = &jetstream.APIError{Code: 503}
