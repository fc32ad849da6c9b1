package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// MemberState is the state of a member of a cluster.
type MemberState string

// States of a member.
const (
	MemberLeader     MemberState = "leader"   // it places streams, and maintains the cluster
	MemberCurrent    MemberState = "current"  // it responds; if the leader observes it, it also knows all streams, but may lack messages (Unreplicated)
	MemberCatchingUp MemberState = "catching" // it responds and does not know all streams yet, which only the leader observes
	MemberOffline    MemberState = "offline"  // it does not respond
)

// MemberStatus is the state of a member of a cluster, as this member observes it.
type MemberStatus struct {
	Node       string // empty if not known: it has not responded since this member started
	State      MemberState
	OfflineFor time.Duration // 0 unless State is MemberOffline
	// Problem is why it cannot write, such as a full disk; empty if it can, or does not report it.
	Problem string
	peer    string // its id in NATS
}

// ClusterStatus is the state of a cluster as one of its members observes it.
type ClusterStatus struct {
	// Clustered is false for a single store, and for a member before its first observation. Then all other fields are
	// zero.
	Clustered bool
	Name      string
	// Leader is the node of the leader; empty = there is none, so that nothing can be written, or none is known.
	Leader string
	// Open reports whether the cluster accepts clients; before that they cannot create anything.
	Open    bool
	Members []MemberStatus // by node
	// WithoutQuorum are the streams of this member that have no leader, because no majority of their members responds,
	// or they were just created, sorted.
	WithoutQuorum []string
	// WithoutQuorumSince is when WithoutQuorum was first not empty; zero while it is empty.
	WithoutQuorumSince time.Time
	// Unreplicated are the streams that fewer than Replicas members hold with all changes, sorted.
	Unreplicated []string
	// UnreplicatedSince is when Unreplicated was first not empty; zero while it is empty.
	UnreplicatedSince time.Time
	// Problem is why the cluster could not be opened or repaired; empty if it could.
	Problem string

	jetStreamDisabled bool // of this member, because it cannot write: the status contains only reports of the others
}

// Replicated reports whether all data would survive the loss of any one member with its disk. A member that was
// replaced counts for majorities until it is removed: three responding members of four do not suffice.
func (c ClusterStatus) Replicated() bool {
	majority := len(c.Members)/2 + 1
	return c.Clustered && c.Open && c.Leader != "" && c.online() >= max(Replicas, majority+1) && len(c.WithoutQuorum)+len(c.Unreplicated) == 0
}

// lagGrace is how long streams may lack a copy or a leader before they are reported: a write reaches a majority first, and
// the last member some milliseconds later, and the members of a new stream first elect its leader.
const lagGrace = 5 * time.Second

// WithoutLag returns the status for display at now: without Unreplicated and WithoutQuorum if the list began less than
// lagGrace ago. While a member is offline the lists stay: the copies on that member do not lag but are missing.
func (c ClusterStatus) WithoutLag(now time.Time) ClusterStatus {
	if c.online() < len(c.Members) {
		return c
	}
	if now.Sub(c.UnreplicatedSince) < lagGrace {
		c.Unreplicated = nil
	}
	if now.Sub(c.WithoutQuorumSince) < lagGrace {
		c.WithoutQuorum = nil
	}
	return c
}

// NotReplicatedReason returns why a cluster is not replicated, such as "no response from c for 12s"; empty if it is.
func (c ClusterStatus) NotReplicatedReason() string {
	var problems []string
	switch {
	case c.Replicated():
		return ""
	case c.Leader == "":
		problems = append(problems, "no majority of its members responds")
	}
	for _, m := range c.Members {
		switch node := cmp.Or(m.Node, "a member"); {
		case m.Problem != "":
			problems = append(problems, fmt.Sprintf("%s cannot write: %s", node, m.Problem))
		case c.IsReplaced(m):
			problems = append(problems, "the earlier member on "+node+" is not removed yet")
		case m.State == MemberOffline && m.OfflineFor < time.Second:
			problems = append(problems, "no response from "+node)
		case m.State == MemberOffline:
			problems = append(problems, fmt.Sprintf("no response from %s for %s", node, m.OfflineFor.Round(time.Second)))
		}
	}
	if c.Problem != "" {
		problems = append(problems, c.Problem)
	}
	if len(c.WithoutQuorum) > 0 {
		problems = append(problems, "no majority for "+streamsText(c.WithoutQuorum))
	}
	if len(c.Unreplicated) > 0 {
		problems = append(problems, "fewer than three copies of "+streamsText(c.Unreplicated))
	}
	if !c.Open && len(problems) == 0 {
		problems = append(problems, "the cluster is starting")
	}
	if len(problems) == 0 {
		problems = append(problems, fmt.Sprintf("%d of %d members respond", c.online(), Replicas))
	}
	return strings.Join(problems, "; ")
}

// IsReplaced reports whether a member is offline and another one responds on its node, which has a new disk.
func (c ClusterStatus) IsReplaced(m MemberStatus) bool {
	return m.State == MemberOffline && m.Node != "" && slices.ContainsFunc(c.Members, func(o MemberStatus) bool { return o.Node == m.Node && o.State != MemberOffline })
}

// streamsText names a stream, or counts several: the text is part of a line.
func streamsText(names []string) string {
	if len(names) == 1 {
		return "stream " + names[0]
	}
	return fmt.Sprintf("%d streams", len(names))
}

// online counts the members that respond.
func (c ClusterStatus) online() (n int) {
	for _, m := range c.Members {
		if m.State != MemberOffline {
			n++
		}
	}
	return n
}

// replicas returns how many replicas of a stream the cluster can hold.
func (c ClusterStatus) replicas() int { return min(Replicas, max(c.online(), 1)) }

// Cluster returns the state of the cluster as last observed: usually in the last second, earlier while requests to the
// cluster hang or a single store is restored into it.
func (s *Server) Cluster() ClusterStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster
}

// setCluster records a complete status.
func (s *Server) setCluster(c ClusterStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.UnreplicatedSince = beginOf(c.Unreplicated, s.cluster.UnreplicatedSince)
	s.replaceCluster(c)
}

// setObserved records what observe returned. The fields that are set by the method maintain keep their last values: it
// may take minutes.
func (s *Server) setObserved(c ClusterStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := &s.cluster
	c.Open, c.Unreplicated, c.UnreplicatedSince, c.Problem = last.Open, last.Unreplicated, last.UnreplicatedSince, cmp.Or(c.Problem, last.Problem)
	s.replaceCluster(c)
}

// replaceCluster sets cluster, with WithoutQuorumSince, and leaderless. The caller holds mu.
func (s *Server) replaceCluster(c ClusterStatus) {
	c.WithoutQuorumSince = beginOf(c.WithoutQuorum, s.cluster.WithoutQuorumSince)
	s.cluster = c
	switch {
	case c.Leader != "":
		s.leaderless = time.Time{}
	case s.leaderless.IsZero():
		s.leaderless = time.Now()
	}
}

// beginOf returns since when a list of streams is not empty: now if it was empty before (last is zero), zero if it is empty.
func beginOf(streams []string, last time.Time) time.Time {
	switch {
	case len(streams) == 0:
		return time.Time{}
	case last.IsZero():
		return time.Now()
	}
	return last
}

// observe returns the state of the cluster at now, without the fields that are set by the method maintain.
func (m *maintainer) observe(now time.Time) ClusterStatus {
	c := ClusterStatus{Clustered: true, Name: m.s.member.Cluster}
	info, err := m.ns.Jsz(&server.JSzOptions{Accounts: true, Streams: true})
	if err != nil {
		c.Problem = err.Error()
		return c
	}
	routes, err := m.ns.Routez(nil)
	if err != nil {
		c.Problem = err.Error()
		return c
	}
	connected := map[string]bool{}
	for _, r := range routes.Routes {
		connected[r.RemoteName] = true
	}
	if info.Meta != nil {
		c.Leader = nodeOf(info.Meta.Leader)
		c.Members = m.observeMembers(now, info.Meta, connected)
	}
	for _, account := range info.AccountDetails {
		if account.Name == server.DEFAULT_GLOBAL_ACCOUNT {
			for _, stream := range account.Streams {
				if stream.Cluster == nil || stream.Cluster.Leader == "" {
					c.WithoutQuorum = append(c.WithoutQuorum, stream.Name)
				}
			}
		}
	}
	slices.Sort(c.WithoutQuorum)
	return c
}

// observeMembers returns the members, by node and peer. connected are the servers to which this one has a route: NATS
// reports a server as offline only after several missed heartbeats.
func (m *maintainer) observeMembers(now time.Time, meta *server.MetaClusterInfo, connected map[string]bool) []MemberStatus {
	own := MemberStatus{Node: m.s.member.Node, State: MemberCurrent}
	if meta.Leader == m.s.member.serverName() {
		own.State = MemberLeader
	}
	leads := own.State == MemberLeader
	members := []MemberStatus{own}
	for _, p := range meta.Replicas {
		if p.Name == m.s.member.serverName() {
			continue
		}
		status := MemberStatus{State: MemberCatchingUp, peer: p.Peer}
		if node, _, known := strings.Cut(p.Name, "."); known {
			status.Node = node
		}
		offline := p.Offline || status.Node != "" && !connected[p.Name]
		switch {
		case offline:
			if m.offline[p.Peer].IsZero() {
				m.offline[p.Peer] = now
			}
			status.State, status.OfflineFor = MemberOffline, now.Sub(m.offline[p.Peer])
		case p.Name == meta.Leader:
			status.State = MemberLeader
		case p.Current || !leads: // only the leader observes whether a follower is current; Unreplicated contains the streams that it lacks
			status.State = MemberCurrent
		}
		if !offline {
			delete(m.offline, p.Peer)
		}
		members = append(members, status)
	}
	slices.SortFunc(members, func(a, b MemberStatus) int { return strings.Compare(a.Node+"."+a.peer, b.Node+"."+b.peer) })
	return members
}
