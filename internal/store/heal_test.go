package store

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/testkit"
)

// A stream with two members of three copies lacks one; a member that does not respond is still a member.
func TestStreamsThatLackMembers(t *testing.T) {
	stream := func(replicas int, leader string, members ...*jetstream.PeerInfo) []*jetstream.StreamInfo {
		return []*jetstream.StreamInfo{{Config: jetstream.StreamConfig{Replicas: replicas}, Cluster: &jetstream.ClusterInfo{Leader: leader, Replicas: members}}}
	}
	b, c := &jetstream.PeerInfo{Name: "b", Current: true}, &jetstream.PeerInfo{Name: "c", Offline: true}
	for name, tt := range map[string]struct {
		streams []*jetstream.StreamInfo
		want    bool
	}{
		"all":          {stream(3, "a", b, c), false},
		"one missing":  {stream(3, "a", b), true},
		"one copy":     {stream(1, "a"), false},
		"no leader":    {stream(3, "", b), false},
		"no cluster":   {[]*jetstream.StreamInfo{{Config: jetstream.StreamConfig{Replicas: 3}}}, false},
		"no stream":    {nil, false},
		"one of them":  {append(stream(3, "a", b, c), stream(3, "a", b)...), true},
		"one too many": {stream(3, "a", b, c, &jetstream.PeerInfo{Name: "d"}), false},
	} {
		if got := lacksMember(tt.streams); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The leader steps down if streams lack members for healAfter, and again if that did not help. Otherwise, after the
// second of two replacements within 20 s, streams would keep two members although three respond, and an update of three
// balancers would not end.
func TestLeaderStepsDownForMissingMembers(t *testing.T) {
	var h healing
	at := time.Unix(1000, 0)
	for _, step := range []struct {
		passed  time.Duration
		missing bool
		want    bool
	}{
		{0, true, false},
		{healAfter - time.Second, true, false},
		{time.Second, true, true},
		{time.Second, true, false}, // the new leader needs time
		{healAfter, true, true},    // it did not help
		{time.Second, false, false},
		{healAfter, true, false}, // it did
		{time.Second, false, false},
		{2 * healAfter, false, false},
		{time.Second, true, false},
	} {
		at = at.Add(step.passed)
		if got := h.isDue(at, step.missing); got != step.want {
			t.Errorf("after %v: %v, want %v", at.Sub(time.Unix(1000, 0)), got, step.want)
		}
	}
}

// The leader of a cluster steps down when it is asked to, another one begins, and all streams stay replicated.
func TestClusterHealsByAnotherLeader(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	c.waitReplicated()
	first := c.leader()
	srv := c.servers[first]
	srv.mu.Lock()
	m := srv.maintainer
	srv.mu.Unlock()
	short := []*jetstream.StreamInfo{{Config: jetstream.StreamConfig{Replicas: 3}, Cluster: &jetstream.ClusterInfo{Leader: "a"}}}
	h := &maintainer{s: m.s, system: m.system, healing: healing{since: time.Now().Add(-time.Minute)}}
	if err := h.heal(t.Context(), ClusterStatus{Members: []MemberStatus{{}, {}, {}}}, short); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "another member leads", func() bool { return c.leader() != first })
	c.waitReplicated()
}
