package store

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/testkit"
)

// A stream whose only member does not respond cannot be moved: Detach fails and names it, and loses nothing. Once the
// member responds again, Detach succeeds.
func TestDetachFailsWithoutMemberOfStream(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	for how, lose := range map[string]struct{ lose, find func(*testCluster, string) }{
		"stopped": {
			func(c *testCluster, node string) { c.servers[node].Close() },
			func(c *testCluster, node string) { c.start(node) },
		},
		"cut off": { // NATS does not know for a while that it is lost
			func(c *testCluster, node string) { c.isolate(node, true) },
			func(c *testCluster, node string) { c.isolate(node, false) },
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c := newTestCluster(t, "a", "b", "c")
			c.takeTimeout = 2 * time.Second
			c.start(c.nodes...)
			c.waitReplicated()
			const name = "A" // the first of a list, which looks complete without it
			holder := c.createUnreplicated(name)
			other := map[string]string{"a": "b", "b": "c", "c": "a"}[holder]
			lose.lose(c, holder)
			var err error
			testkit.Eventually(t, "it fails because of the stream, after the others have elected their leaders", func() bool {
				err = detach(t, c.servers[other])
				return err == nil || strings.Contains(err.Error(), "moving stream "+name)
			})
			if err == nil || !strings.Contains(err.Error(), "start the members that hold it") {
				t.Fatalf("got %v, want the stream that was not moved, and the next step", err)
			}
			lose.find(c, holder)
			testkit.Eventually(t, "it is detached", func() bool {
				err = detach(t, c.servers[other])
				return err == nil
			})
			if got := storedReplicas(c.options(other).Dir, name); got != 1 {
				t.Errorf("stream %s has %d replicas on the disk of %s", name, got, other)
			}
		})
	}
}

// A member that reads the cluster's state, and only then hears that another member has taken over all data, keeps the record
// of that: with its own, outdated data it would open the former cluster again. A state that it reads later clears the record.
func TestOldStateKeepsRecordOfMovedData(t *testing.T) {
	t.Parallel()
	m := &maintainer{s: &Server{opts: Options{Dir: t.TempDir()}, member: member{Cluster: "chat", Node: "a", ID: "x"}}}
	before := m.movedMessages()
	if err := m.recordDataMoved(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		messages int
		want     bool
	}{{before, true}, {m.movedMessages(), false}, {m.movedMessages(), false}} {
		if err := m.clearDataMoved(step.messages); err != nil {
			t.Fatal(err)
		}
		if got := must[member](t)(readMember(m.s.opts.Dir)).DataMoved; got != step.want {
			t.Errorf("a state read after %d messages: moved is %t, want %t", step.messages, got, step.want)
		}
	}
}

// detach detaches a member, which ends by itself: the limit guards against hanging. Each stream that moves extends the
// wait.
func detach(t *testing.T, s *Server) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*testkit.Timeout)
	defer cancel()
	err := s.Detach(ctx)
	if ctx.Err() != nil {
		t.Fatalf("it did not end by itself: %v", err)
	}
	return err
}

// createUnreplicated creates a stream that only one member holds, and returns this member. It pretends that another
// member takes over all streams, so that the leader does not replicate the stream.
func (c *testCluster) createUnreplicated(name string) (holder string) {
	c.t.Helper()
	s := c.servers[c.leader()]
	s.mu.Lock()
	m := s.maintainer
	s.mu.Unlock()
	js := must[jetstream.JetStream](c.t)(jetstream.New(m.user))
	mark := must[jetstream.Stream](c.t)(js.Stream(c.t.Context(), clusterStream)).CachedInfo().Config
	mark.Metadata[detachedKey] = "other"
	must[jetstream.Stream](c.t)(js.UpdateStream(c.t.Context(), mark))
	stream := must[jetstream.Stream](c.t)(js.CreateStream(c.t.Context(), jetstream.StreamConfig{Name: name, Replicas: 1}))
	return nodeOf(stream.CachedInfo().Cluster.Leader)
}

// removeOnLog removes a file as soon as anything is logged.
type removeOnLog struct {
	slog.Handler
	path string
}

func (removeOnLog) Enabled(context.Context, slog.Level) bool { return true }

func (h removeOnLog) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h removeOnLog) Handle(context.Context, slog.Record) error {
	_ = os.Remove(h.path) // it is missing after the first record
	return nil
}

// If the identity of a detached member cannot be removed, its server does not start: no NATS server keeps the port.
func TestFailedDetachedStartStopsServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := (member{Cluster: "chat", Node: "a", ID: "x", Detached: true}).write(dir); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", testkit.LocalPort())
	log := slog.New(removeOnLog{slog.DiscardHandler, filepath.Join(dir, memberFile)})
	s, err := Serve(t.Context(), Options{Dir: dir, Listen: address, Logger: log})
	if err == nil {
		s.Close()
		t.Fatal("it started although the identity of the member could not be removed")
	}
	testkit.Eventually(t, "no server has the port", func() bool { // the kernel may release it later
		l, err := net.Listen("tcp", address)
		if err == nil {
			l.Close()
		}
		return err == nil
	})
}
