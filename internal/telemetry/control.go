package telemetry

import (
	"fmt"
	"strings"
)

// ControllerState is which controller of a service leads, and which ones are ready to take over.
type ControllerState struct {
	// Leader is the name of the leader: the machine that it runs on, or its host and process. It is
	// empty while no controller renews the lease.
	Leader string `json:"leader"`
	// Term counts the terms of leadership. It is one more than that of the leader before; a restore of an older backup
	// lowers it. Fencing uses the token of the lease, not this count.
	Term uint64 `json:"term"`
	// Standbys are the names of the other controllers that wait for the lease, sorted.
	Standbys []string `json:"standbys"`
}

// Line returns one line about the controllers; empty for nil.
func (c *ControllerState) Line() string {
	switch {
	case c == nil:
		return ""
	case c.Leader == "":
		return "controller: no leader"
	case len(c.Standbys) == 0:
		return fmt.Sprintf("controller: leader %s, term %d, no standby", c.Leader, c.Term)
	}
	return fmt.Sprintf("controller: leader %s, term %d, standby %s", c.Leader, c.Term, strings.Join(c.Standbys, ", "))
}

// StoreState is the state of a service's store as the leader observes it.
type StoreState struct {
	// External is true for an existing NATS server or cluster (store.url); the rest is then unknown.
	External bool `json:"external"`
	// Nodes is the number of members; 1 without a cluster, 0 for an external store.
	Nodes int `json:"nodes"`
	// Replicated reports whether any one member may be lost with its disk now, without loss of data.
	Replicated bool `json:"replicated"`
	// Leader is the member that leads the cluster; empty without a cluster, and while no majority of its
	// members responds.
	Leader string `json:"leader"`
	// Members are the members of a cluster, sorted; empty without one.
	Members []StoreMember `json:"members"`
	// Problem is why a cluster is not replicated; empty if it is.
	Problem string `json:"problem"`
}

// StoreMember is a member of the store's cluster.
type StoreMember struct {
	Node string `json:"node"`
	// State is leader, current, catching (up) or offline.
	State string `json:"state"`
	// Problem is why it cannot write, such as a full disk; empty if it can, or does not report it.
	Problem string `json:"problem,omitempty"`
}

// Line returns the state in one line, such as "not replicated" or "replicated (lb-eu-0 store leader, ...)";
// empty for nil.
func (s *StoreState) Line() string {
	if s == nil {
		return ""
	}
	var members []string
	for _, m := range s.Members {
		members = append(members, m.Node+" "+m.text(s.Leader != ""))
	}
	text := "not replicated"
	switch {
	case s.External:
		return "external"
	case s.Replicated:
		text = "replicated"
	case s.Problem != "":
		text += ": " + s.Problem
	}
	if len(members) > 0 {
		text += " (" + strings.Join(members, ", ") + ")"
	}
	return text
}

// text returns a member's state as people read it. Only a leader of the store knows whether another member is in sync.
func (m StoreMember) text(led bool) string {
	switch {
	case m.Problem != "" && m.State != "offline":
		return "cannot write"
	case m.State == "catching":
		return "catching up"
	case m.State == "current" && !led:
		return "responds"
	case m.State == "current":
		return "in sync"
	case m.State == "leader": // not to be confused with that of the controllers, which is often another machine
		return "store leader"
	}
	return m.State
}

// StoreOutdated reports whether the state of the store is that before the leader of the controllers stopped: the present one
// is unknown.
func (s *Snapshot) StoreOutdated() bool {
	return s.Store != nil && !s.Store.External && s.Controller != nil && s.Controller.Leader == ""
}

// StoreLine returns the state of the store in one line; empty before a controller reported it.
func (s *Snapshot) StoreLine() string {
	if s.StoreOutdated() {
		return "unknown, because no controller leads"
	}
	return s.Store.Line()
}

// ControlLine returns the lines about the controllers and the store as one; empty while both are unknown.
func (s *Snapshot) ControlLine() string {
	line := s.Controller.Line()
	if s.Store != nil {
		line += "; store: " + s.StoreLine()
	}
	return strings.TrimPrefix(line, "; ")
}
