package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/testkit"
)

// Reads of a bucket see every write that was acknowledged before, by any client, also while a member starts again:
// a member that lags behind the others does not answer them. So do those of a bucket that an earlier version
// created, whose members all answer.
func TestBucketReadsSeeAcknowledgedWrites(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	c.waitReplicated()
	var clients []*Bucket
	for _, n := range c.nodes {
		clients = append(clients, c.client(n).BatchRecords())
	}
	earlier := clients[0].s
	testkit.Eventually(t, "an earlier version creates the bucket", func() bool {
		nc, err := earlier.conn()
		if err != nil {
			return false
		}
		js, err := jetstream.New(nc)
		if err == nil {
			_, err = js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "skyserve_chat_batches", Replicas: Replicas, Storage: jetstream.FileStorage})
		}
		return err == nil
	})
	testkit.Eventually(t, "a write succeeds", func() bool {
		_, err := clients[0].Put(t.Context(), "file.first", nil)
		return err == nil
	})
	value, restarted := []byte(strings.Repeat("x", 100_000)), 0
	for i := range 80 { // each is synced by three members
		if i%16 == 8 {
			n := c.nodes[restarted%len(c.nodes)]
			if n != c.leader() {
				c.servers[n].Close()
				c.start(n)
			}
			restarted++
		}
		key := fmt.Sprintf("file.t.%d", i)
		testkit.Eventually(t, "a write is acknowledged", func() bool {
			_, err := clients[i%3].Put(t.Context(), key, value)
			return err == nil
		})
		reader := clients[(i+1)%3]
		testkit.Eventually(t, "a read is answered", func() bool {
			_, _, err := reader.Get(t.Context(), key)
			if err != nil && errors.Is(err, ErrNotFound) {
				t.Fatalf("%s, which was written, is not found: %v", key, err)
			}
			return err == nil
		})
		testkit.Eventually(t, "a list is answered", func() bool {
			entries, err := reader.Keys(t.Context(), "file.t.")
			if err == nil && len(entries) != i+1 {
				t.Fatalf("%d keys are listed after %d writes", len(entries), i+1)
			}
			return err == nil
		})
	}
}

// stalledOnce is a bucket whose first read is lost.
type stalledOnce struct {
	jetstream.KeyValue
	reads atomic.Int32
}

func (b *stalledOnce) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	if b.reads.Add(1) == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return b.KeyValue.Get(ctx, key)
}

// A read of a bucket in a cluster is sent again if it is not answered, as a read of Store is.
func TestBucketReadIsRetried(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	b := c.client("a").BatchRecords()
	testkit.Eventually(t, "a write succeeds", func() bool {
		_, err := b.Put(t.Context(), "file.x", []byte("1"))
		return err == nil
	})
	b.mu.Lock()
	b.kv = &stalledOnce{KeyValue: b.kv}
	b.mu.Unlock()
	value, _, err := b.Get(t.Context(), "file.x")
	if err != nil || string(value) != "1" {
		t.Errorf("got %q, %v after a lost read", value, err)
	}
}

// A watch or a list creates a missing stream: that of the store's keys, and that of a bucket.
func TestMissingStreamIsCreated(t *testing.T) {
	t.Parallel()
	st := connect(t, serve(t, t.TempDir()))
	b := st.BatchRecords()
	js := must[jetstream.JetStream](t)(jetstream.New(st.newestConn()))
	for name, of := range map[string]struct {
		stream string
		put    func(context.Context, string, []byte) (uint64, error)
		use    func(context.Context)
	}{
		"watch of the store":  {"KV_" + st.stateBucketName(), st.Put, func(ctx context.Context) { st.Watch(ctx, "") }},
		"list of the store":   {"KV_" + st.stateBucketName(), st.Put, func(ctx context.Context) { _, _ = st.Keys(ctx, "file.") }},
		"watch of the bucket": {"KV_" + b.name, b.Put, func(ctx context.Context) { b.Watch(ctx, "") }},
		"list of the bucket":  {"KV_" + b.name, b.Put, func(ctx context.Context) { _, _ = b.List(ctx, "file.") }},
	} {
		must[uint64](t)(of.put(t.Context(), "file.x", []byte("1")))
		if err := js.DeleteStream(t.Context(), of.stream); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		testkit.Eventually(t, name+": the stream exists", func() bool {
			of.use(ctx)
			_, err := js.Stream(t.Context(), of.stream)
			return err == nil
		})
		cancel()
	}
}
