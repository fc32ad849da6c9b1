package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// Intervals of standbys, with their reasons.
const (
	// standbyInterval is how often a controller without the lease announces that it is ready to take over.
	standbyInterval = 2 * time.Second
	// standbyTTL is how long an announcement counts, by the reader's clock.
	standbyTTL = 5 * standbyInterval
	// standbyGrace is how long a leader waits for announcements before it raises an alert: the other
	// controllers may be starting.
	standbyGrace = time.Minute
)

// announcements is the part of the store with which controllers find each other.
type announcements interface {
	Put(ctx context.Context, key string, value []byte) (revision uint64, err error)
	Delete(ctx context.Context, key string) error
	Watch(ctx context.Context, prefix string) <-chan store.KeyChange
}

// standbyPrefix is the prefix of the store keys of a service's standbys.
func standbyPrefix(service string) string { return "standby." + service + "." }

// standbys records the other controllers that wait for the lease. The zero value is empty.
type standbys struct {
	mu   sync.Mutex
	seen map[string]time.Time // the last announcement of each, by this process's clock
}

// track records announcements until the channel is closed.
func (s *standbys) track(prefix string, changes <-chan store.KeyChange) {
	for c := range changes {
		name, ok := strings.CutPrefix(c.Key, prefix)
		if !ok {
			continue
		}
		s.mu.Lock()
		if s.seen == nil {
			s.seen = map[string]time.Time{}
		}
		if s.seen[name] = time.Now(); c.Deleted {
			delete(s.seen, name)
		}
		s.mu.Unlock()
	}
}

// names returns the names of the standbys other than self, sorted.
func (s *standbys) names(self string, now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.seen, func(_ string, at time.Time) bool { return now.Sub(at) > standbyTTL })
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(s.seen)), func(name string) bool { return name == self })
	return append([]string{}, names...)
}

// announce announces at an interval that this controller is a standby, until ctx ends; it then removes the
// announcement. Failures are not logged: the store's client reports an outage.
func (c *Controller) announce(ctx context.Context) {
	key := standbyPrefix(c.immutable.Service) + c.name()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		_ = c.announcements.Delete(ctx, key) // otherwise it expires
	}()
	tick := time.NewTicker(standbyInterval)
	defer tick.Stop()
	for {
		_, _ = c.announcements.Put(ctx, key, []byte("{}")) // after a failure the next tick repeats it
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// acquireAsStandby waits for the lease; meanwhile it announces this controller as a standby.
func (c *Controller) acquireAsStandby(ctx context.Context) (lease, error) {
	if c.announcements == nil {
		return c.acquire(ctx)
	}
	waiting, stopAnnouncing := context.WithCancel(ctx)
	defer stopAnnouncing() // the announcement is removed while the term begins
	c.announcing.Go(func() { c.announce(waiting) })
	return c.acquire(ctx)
}

// name returns the name of this controller for other processes: the ID in its configuration, or else its host name
// and process ID.
func (c *Controller) name() string {
	if c.immutable.ID != "" {
		return c.immutable.ID
	}
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '/' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, holderName())
}

// controlPlaneState returns the state of the controllers and of the store, as this leader publishes them. The caller
// sets ControllerState.Term.
func (c *Controller) controlPlaneState(now time.Time) (telemetry.ControllerState, telemetry.StoreState) {
	return telemetry.ControllerState{Leader: c.name(), Standbys: c.standbys.names(c.name(), now)}, c.storeState()
}

// storeState returns the state of the store.
func (c *Controller) storeState() telemetry.StoreState {
	switch {
	case c.immutable.StoreListen == "":
		return telemetry.StoreState{External: true, Members: []telemetry.StoreMember{}}
	case c.health.cluster == nil:
		return telemetry.StoreState{Nodes: 1, Members: []telemetry.StoreMember{}}
	}
	return c.health.cluster()
}

// controlPlaneAlerts returns the alerts about the number of controllers and of members of the store.
func (c *Controller) controlPlaneAlerts(now time.Time) (alerts []telemetry.Alert) {
	const next = "wait: a lost machine is usually replaced automatically, a local process within seconds; if this alert stays, run 'skyserve up'"
	c.mu.Lock()
	leading, since, controllers := c.view.Leading, c.termStart, c.controllers
	c.mu.Unlock()
	if leading && controllers > 1 && now.Sub(since) > standbyGrace && len(c.standbys.names(c.name(), now)) == 0 {
		alerts = append(alerts, telemetry.Alert{
			Severity: telemetry.SeverityWarning, Kind: telemetry.AlertController, Object: "standby", NextStep: next,
			Message: fmt.Sprintf("none of the other %d controllers of the service responds: no other controller can take over if the machine of %s is lost", controllers-1, c.name()),
		})
	}
	s := c.storeState()
	starting := now.Sub(c.health.started) < storeGrace && (c.health.newMember || s.Leader != "")
	if s.External || c.health.cluster == nil || s.Replicated || starting {
		return alerts
	}
	a := telemetry.Alert{Severity: telemetry.SeverityWarning, Kind: telemetry.AlertStore, Object: "members", NextStep: next, Message: "the store is " + s.Line()}
	if s.Leader == "" {
		a.Severity = telemetry.SeverityCritical
		a.NextStep = "run 'skyserve up': nothing replaces lost members before a majority responds again; those that only restart return by themselves"
		a.Message = "no majority of the store's members responds: planning, scaling, replacement and adoption are suspended; " + s.Line()
	}
	if full := membersWithProblem(s.Members); len(full) > 0 {
		a.NextStep = fmt.Sprintf("free disk space on %s, or repair the disk; the member then returns automatically", strings.Join(full, " and "))
	}
	return append(alerts, a)
}

// membersWithProblem returns the machines of the members that report why they cannot write.
func membersWithProblem(members []telemetry.StoreMember) (nodes []string) {
	for _, m := range members {
		if m.Problem != "" {
			nodes = append(nodes, m.Node)
		}
	}
	return nodes
}
