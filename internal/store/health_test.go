package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/identity"
	"skyserve/internal/testkit"
)

// A store is restarted when it cannot write, not because a busy machine delays the server's check of its
// listeners beyond 1 ms.
func TestBusyMachineIsNoOutage(t *testing.T) {
	busy := server.HealthzError{Type: server.HealthzErrorConn, Error: "failed to be ready for connections after 1ms: "}
	broken := server.HealthzError{Type: server.HealthzErrorStream, Error: "stream 'KV_x' write error: no space left on device"}
	creating := server.HealthzError{Type: server.HealthzErrorStream, Error: "stream 'KV_x' could not be recovered"}
	behind := server.HealthzError{Type: server.HealthzErrorStream, Error: "stream 'KV_x' is not current"}
	for _, c := range []struct {
		report             []server.HealthzError
		clustered, accepts bool
		want               string
	}{
		{report: nil},
		{report: []server.HealthzError{busy}, accepts: true},
		{report: []server.HealthzError{busy}, want: busy.Error},
		{report: []server.HealthzError{busy, broken}, accepts: true, want: broken.Error},
		{report: []server.HealthzError{creating}, accepts: true},
		{report: []server.HealthzError{behind}, clustered: true, accepts: true},
		{report: []server.HealthzError{behind, broken}, clustered: true, accepts: true, want: broken.Error},
	} {
		got := ""
		if err := writeError(c.report, c.clustered, func() bool { return c.accepts }); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
}

// A client reports why it cannot write until a write succeeds. A successful read does not clear the
// problem.
func TestOutageLastsUntilAWriteSucceeds(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	srv := serve(t, t.TempDir())
	st := connect(t, srv)
	must[uint64](t)(st.Put(t.Context(), "key", nil))
	if p := st.Outage(); p != nil {
		t.Fatal(p)
	}
	full := &jetstream.APIError{Code: 500, ErrorCode: 10077, Description: "no space left on device"}
	st.recordResult(&st.writeOutage, full)
	first := st.Outage()
	if first == nil || !errors.Is(first, full) {
		t.Fatalf("got %v", first)
	}
	if _, _, err := st.Get(t.Context(), "key"); err != nil {
		t.Fatal(err)
	}
	st.recordResult(&st.writeOutage, fmt.Errorf("again: %w", full))
	if p := st.Outage(); p == nil || !p.Since.Equal(first.Since) {
		t.Errorf("the problem is %v, want the time of the first one: %v", p, first)
	}
	if _, err := st.Create(t.Context(), "key", nil); !errors.Is(err, ErrConflict) {
		t.Fatal(err)
	}
	if p := st.Outage(); p != nil {
		t.Errorf("after a successful write: %v", p)
	}
	srv.Close()
	if _, _, err := st.Get(t.Context(), "key"); err == nil || st.Outage() == nil {
		t.Errorf("without a server: got %v and %v", err, st.Outage())
	}
}

// A 5xx error of the server is an outage.
func TestServerFailuresAreOutages(t *testing.T) {
	for code, outage := range map[int]bool{500: true, 503: true, 400: false, 404: false} {
		err := wrap(t.Context(), &jetstream.APIError{Code: code}, "writing")
		if errors.Is(err, ErrUnavailable) != outage {
			t.Errorf("%d: got %v", code, err)
		}
	}
}

func TestStreamCreationBacksOff(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	failure := &jetstream.APIError{Code: 500}
	var b createBackoff
	attempts := 0
	for range 3600 {
		if b.recentFailure(now) == nil {
			attempts++
			b.recordResult(now, failure)
		}
		now = now.Add(time.Second)
	}
	if attempts < 60 || attempts > 150 {
		t.Errorf("%d attempts in an hour", attempts)
	}
	if b.recordResult(now, nil); b.recentFailure(now) != nil {
		t.Error("an attempt is rejected after a successful one")
	}
}

func TestOutageText(t *testing.T) {
	p := &Outage{Since: time.Date(2026, 11, 22, 20, 3, 12, 0, time.UTC), Err: errors.New("no space left on device")}
	if got := p.Error(); got != "outage of the store since 2026-11-22 20:03:12 UTC: no space left on device" {
		t.Errorf("got %q", got)
	}
}

// A process that is killed while its disk is full leaves the directory of a stream that was never
// created. It contains no data, so it is not a damaged stream.
func TestUnfinishedStreamIsNotDamaged(t *testing.T) {
	dir := t.TempDir()
	stream := filepath.Join(dir, "jetstream", "$G", "streams", "KV_skyserve_state")
	for name, text := range map[string]string{"msgs/1.blk": "", "meta.inf.tmp": `{"na`} {
		path := filepath.Join(stream, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	srv := serve(t, dir)
	must[uint64](t)(connect(t, srv).Put(t.Context(), "key", []byte("value")))
	srv.Close()
	if _, _, err := connect(t, serve(t, dir)).Get(t.Context(), "key"); err != nil {
		t.Fatal(err)
	}
}

// logged stores a log in memory.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), "\n")
}

// Warnings of every healthy store are logged at a lower level: that members are not verified, which would mislead, as
// they are verified by role; and, while a cluster starts, that the other members do not run yet. Other warnings remain.
func TestWarningsOfHealthyStoresAreLowered(t *testing.T) {
	for text, levels := range map[string][2]slog.Level{ // at the start, and later
		"TLS certificate chain and hostname of solicited routes will not be verified. DO NOT USE IN PRODUCTION!": {slog.LevelDebug, slog.LevelDebug},
		"Waiting for routing to be established...":                                                               {slog.LevelInfo, slog.LevelWarn},
		"JetStream has not established contact with a meta leader":                                               {slog.LevelInfo, slog.LevelWarn},
		"another warning": {slog.LevelWarn, slog.LevelWarn},
	} {
		for i, after := range []time.Duration{0, startTime} {
			var logs logged
			l := newLogger(slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug})))
			l.now = func() time.Time { return l.started.Add(after) }
			l.Warnf("%s", text)
			if got := logs.text.String(); !strings.Contains(got, "level="+levels[i].String()) {
				t.Errorf("after %s: not logged at level %s: %s", after, levels[i], got)
			}
		}
	}
}

// A store that is configured as that of a service starts without a warning.
func TestHealthyStoreLogsNoWarning(t *testing.T) {
	t.Parallel()
	var logs logged
	ours := must[*identity.Authority](t)(identity.NewAuthority("chat", time.Now()))
	srv := must[*Server](t)(Serve(t.Context(), Options{
		Dir: t.TempDir(), Listen: "127.0.0.1:0", TLS: party(t, ours, identity.Controller).Server(identity.Balancer),
		Logger: slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}))
	srv.Close()
	if got := logs.text.String(); !strings.Contains(got, "TLS Handshake First") || strings.Contains(got, "level=WARN") {
		t.Errorf("the store logged\n%s", got)
	}
}

// A write reaches the last member after the others: a stream that lacks a copy for a moment is not reported.
func TestLagIsReportedOnlyIfItLasts(t *testing.T) {
	members := []MemberStatus{{Node: "a", State: MemberLeader}, {Node: "b", State: MemberCurrent}, {Node: "c", State: MemberCurrent}}
	since := time.Unix(1_800_000_000, 0)
	lacking := ClusterStatus{Clustered: true, Open: true, Leader: "a", Members: members, Unreplicated: []string{"state"}, UnreplicatedSince: since}
	for after, replicated := range map[time.Duration]bool{0: true, 4 * time.Second: true, 6 * time.Second: false} {
		if got := lacking.WithoutLag(since.Add(after)); got.Replicated() != replicated || (got.NotReplicatedReason() == "") != replicated {
			t.Errorf("after %s: replicated %t (%s), want %t", after, got.Replicated(), got.NotReplicatedReason(), replicated)
		}
	}
	lacking.Members[2].State = MemberOffline
	if got := lacking.WithoutLag(since); got.Replicated() {
		t.Error("a member that is offline is not reported at once")
	}
	s := &Server{}
	for _, names := range [][]string{{"state"}, {"state", "events"}, nil, {"state"}} {
		before := s.cluster.UnreplicatedSince
		s.setCluster(ClusterStatus{Unreplicated: names})
		switch since := s.cluster.UnreplicatedSince; {
		case since.IsZero() != (len(names) == 0):
			t.Errorf("%v: since %s", names, since)
		case !before.IsZero() && len(names) > 0 && !since.Equal(before):
			t.Errorf("%v: the time was replaced", names)
		}
	}
}

// A stream has no leader in the first moments after its creation, which is no fault while all members respond. One that
// stays without a leader is reported.
func TestNewStreamWithoutLeaderIsNoFault(t *testing.T) {
	members := []MemberStatus{{Node: "a", State: MemberLeader}, {Node: "b", State: MemberCurrent}, {Node: "c", State: MemberCurrent}}
	created := ClusterStatus{Clustered: true, Open: true, Leader: "a", Members: members, WithoutQuorum: []string{"OBJ_files"}}
	synctest.Test(t, func(t *testing.T) {
		s := &Server{}
		s.setObserved(ClusterStatus{Leader: "a"})
		s.cluster.Open = true
		time.Sleep(time.Minute)
		for after, replicated := range []bool{true, true, true, true, true, false, false} { // seconds
			s.setObserved(created)
			if got := s.Cluster().WithoutLag(time.Now()); got.Replicated() != replicated || (got.NotReplicatedReason() == "") != replicated {
				t.Errorf("after %d s: replicated %t (%s), want %t", after, got.Replicated(), got.NotReplicatedReason(), replicated)
			}
			time.Sleep(time.Second)
		}
		s.setCluster(ClusterStatus{Clustered: true, Open: true, Leader: "a", Members: members})
		s.setObserved(created)
		if got := s.Cluster().WithoutLag(time.Now()); !got.Replicated() {
			t.Errorf("a later stream is reported at once: %s", got.NotReplicatedReason())
		}
		created.Members[2].State = MemberOffline
		s.setObserved(created)
		if got := s.Cluster().WithoutLag(time.Now()); !strings.Contains(got.NotReplicatedReason(), "no majority for stream OBJ_files") {
			t.Errorf("a member that is offline is not reported at once: %s", got.NotReplicatedReason())
		}
	})
}

// Repeated messages of the server are logged once per relogAfter.
func TestRepeatedErrorsAreLoggedOnce(t *testing.T) {
	var text logged
	l := newLogger(slog.New(slog.NewTextHandler(&text, nil)))
	now := time.Unix(1_800_000_000, 0)
	l.now = func() time.Time { return now }
	for range 3600 {
		l.Errorf("write %d.blk: no space left on device", 1)
		l.Warnf("write %d.blk: no space left on device", 2)
		now = now.Add(time.Second)
	}
	if n := text.lines(); n != 12 {
		t.Errorf("%d lines in an hour, want 12", n)
	}
	for i := range 10_000 {
		l.Errorf("error %d", i)
	}
	if len(l.lastLogged) > maxLogged {
		t.Errorf("%d messages are remembered", len(l.lastLogged))
	}
}

// A member that rejoined under its name with an empty disk has none of the data: its old identity is offline until it is
// removed, and the status reports at once that streams lack a copy. Only members that respond may lag.
func TestOfflineMemberIsNoLag(t *testing.T) {
	since := time.Unix(1000, 0)
	members := []MemberStatus{{Node: "a", State: MemberLeader}, {Node: "b", State: MemberCurrent}, {Node: "c", State: MemberCurrent}}
	for name, tt := range map[string]struct {
		members []MemberStatus
		want    bool
	}{
		"all respond": {members, true}, "the former c is offline": {append(slices.Clone(members), MemberStatus{Node: "c", State: MemberOffline}), false},
	} {
		c := ClusterStatus{Clustered: true, Open: true, Leader: "a", Members: tt.members, Unreplicated: []string{"kv"}, UnreplicatedSince: since}
		if got := c.WithoutLag(since.Add(time.Second)).Replicated(); got != tt.want {
			t.Errorf("%s: replicated %v, want %v", name, got, tt.want)
		}
	}
}
