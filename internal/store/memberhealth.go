package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrNoQuorum means that a member of a cluster has no majority, so that nothing can be written.
var ErrNoQuorum = errors.New("no majority of the store's members responds")

const (
	// quorumGrace is how long a cluster may be without a leader before that is an outage: an election, and one
	// observation.
	quorumGrace = electionMax + maintainEvery
	// memberHealthSubject is the subject to which members publish why they cannot write. It belongs to the system
	// account, which a member with a full disk still serves.
	memberHealthSubject = "skyserve.member.health"
	// memberHealthTTL is how long a received memberHealth is valid, in multiples of maintainEvery.
	memberHealthTTL = 5
)

// memberHealth is the message of a member about its health.
type memberHealth struct {
	Node    string `json:"node"`
	Problem string `json:"problem"` // empty = it can write
	Leader  string `json:"leader"`  // the leader that it observes; empty = none
}

// receivedHealth contains the last message of each member, also of this one.
type receivedHealth struct {
	mu    sync.Mutex
	nodes map[string]receivedMessage
}

type receivedMessage struct {
	memberHealth
	at time.Time
}

// receive records the message of a member.
func (r *receivedHealth) receive(msg *nats.Msg) {
	var h memberHealth
	if json.Unmarshal(msg.Data, &h) != nil || !isNode(h.Node) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes == nil {
		r.nodes = map[string]receivedMessage{}
	}
	r.nodes[h.Node] = receivedMessage{h, time.Now()}
}

// recentMessages returns the messages that are not older than ttl, by node.
func (r *receivedHealth) recentMessages(now time.Time, ttl time.Duration) map[string]memberHealth {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes := map[string]memberHealth{}
	for node, m := range r.nodes {
		if now.Sub(m.at) <= ttl {
			nodes[node] = m.memberHealth
		}
	}
	return nodes
}

// exchangeHealth publishes why this member cannot write, and adds the messages of the other members to status. While
// JetStream of this member is disabled, status contains only what these messages report.
func (m *maintainer) exchangeHealth(now time.Time, status *ClusterStatus) {
	own := memberHealth{Node: m.s.member.Node, Leader: status.Leader}
	if p := m.s.diskOutage(); p != nil {
		own.Problem = p.Err.Error()
	}
	if data, err := json.Marshal(own); err == nil {
		_ = m.system.Publish(memberHealthSubject, data) // repeated; fails only while the server stops
	}
	others := m.received.recentMessages(now, memberHealthTTL*m.s.opts.maintainEvery)
	delete(others, own.Node)
	if status.jetStreamDisabled = !m.ns.JetStreamEnabled(); status.jetStreamDisabled {
		status.Members = []MemberStatus{{Node: own.Node, State: MemberOffline}}
		for _, node := range slices.Sorted(maps.Keys(others)) {
			status.Leader = cmp.Or(status.Leader, others[node].Leader)
			status.Members = append(status.Members, MemberStatus{Node: node, State: MemberCurrent})
		}
	}
	for i, o := range status.Members {
		if status.Members[i].Problem = others[o.Node].Problem; o.Node == own.Node {
			status.Members[i].Problem = own.Problem
		}
		if status.jetStreamDisabled && o.Node == status.Leader {
			status.Members[i].State = MemberLeader
		}
	}
}

// diskOutage is Outage, except that it ignores a missing majority.
func (s *Server) diskOutage() *Outage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outage
}

// quorumOutage returns since when a member has had no majority; nil while it has one, and for the first quorumGrace
// without. The caller holds mu.
func (s *Server) quorumOutage(now time.Time) *Outage {
	if s.leaderless.IsZero() || now.Sub(s.leaderless) < quorumGrace {
		return nil
	}
	var unresponsive []string
	for _, m := range s.cluster.Members {
		if m.State == MemberOffline && m.Node != "" {
			unresponsive = append(unresponsive, m.Node)
		}
	}
	slices.Sort(unresponsive)
	if len(unresponsive) == 0 {
		return &Outage{Since: s.leaderless, Err: ErrNoQuorum}
	}
	return &Outage{Since: s.leaderless, Err: fmt.Errorf("%w: no response from %s", ErrNoQuorum, strings.Join(unresponsive, ", "))}
}
