package telemetry

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// Limits of events, each with its reason.
const (
	// MaxEventText is the maximum length of a message or reason in bytes; longer ones are truncated.
	// Errors of clouds have a few hundred bytes.
	MaxEventText = 1000
	// MaxEventName is the maximum length of the other texts in bytes: names of replicas, regions and
	// operators are shorter.
	MaxEventName = 200
	// MaxEvents is the maximum number of events in one response: a week of a busy service.
	MaxEvents = 10_000
	// SnapshotEvents is the number of events in a snapshot: more than a busy service has in an hour,
	// and few enough for every snapshot.
	SnapshotEvents = 50
	// MaxPendingEvents is the number of events in one report of a controller: the newest of a long outage of the store, in
	// which a controller changes little.
	MaxPendingEvents = 200
	// PendingInterval is the interval of these reports.
	PendingInterval = time.Second
	// PendingTTL is how long a balancer keeps a report: some may be lost.
	PendingTTL = 5 * time.Second
	// RecentFailure is the time for which status shows a failure as recent.
	RecentFailure = time.Hour
)

// EventKind is what happened. Other versions may have further kinds, which are shown as they are.
type EventKind string

// The kinds of events; Meaning explains them.
const (
	EventLaunch        EventKind = "launch"
	EventTermination   EventKind = "termination"
	EventDeath         EventKind = "death"
	EventRecovery      EventKind = "recovery"
	EventInterruption  EventKind = "interruption"
	EventAdoption      EventKind = "adoption"
	EventReturn        EventKind = "return"
	EventDonate        EventKind = "donate"
	EventReclaim       EventKind = "reclaim"
	EventRedeploy      EventKind = "redeploy"
	EventReplace       EventKind = "replace"
	EventDrain         EventKind = "drain"
	EventResume        EventKind = "resume"
	EventAttach        EventKind = "attach"
	EventDetach        EventKind = "detach"
	EventPlan          EventKind = "plan"
	EventApply         EventKind = "apply"
	EventScaleToZero   EventKind = "scale-to-zero"
	EventScaleFromZero EventKind = "scale-from-zero"
	EventReload        EventKind = "reload"
	EventKeys          EventKind = "keys"
	EventCertificate   EventKind = "certificate"
	EventOperator      EventKind = "operator"
	EventLeader        EventKind = "leader"
	EventRolloutBegin  EventKind = "rollout-begin"
	EventRolloutEnd    EventKind = "rollout-end"
	EventFailure       EventKind = "failure"
	EventLost          EventKind = "lost"
)

// eventKinds are the kinds of this version with their meanings, in the order of their documentation.
var eventKinds = []struct {
	kind    EventKind
	meaning string
}{
	{EventLaunch, "a machine was launched: a VM, or a local process; also in place of one that ended"},
	{EventTermination, "a machine was deleted"},
	{EventReplace, "a running machine was replaced (in place of one that ended: launch)"},
	{EventDeath, "a machine, engine or balancer failed or ended unexpectedly (an engine of a static region only raises an alert)"},
	{EventRecovery, "a failed machine, engine or balancer works again"},
	{EventInterruption, "the cloud announced that it will terminate a VM"},
	{EventAdoption, "a balancer took over a replica whose own balancer does not respond"},
	{EventReturn, "an adopted replica returned to its own balancer"},
	{EventDrain, "a replica receives no new requests"},
	{EventResume, "a replica was undrained (replica drain --undo): it serves again"},
	{EventAttach, "a running replica was attached to a balancer, through the balancer's admin API or by a reload"},
	{EventDetach, "a running replica was detached from a balancer, through the balancer's admin API"},
	{EventDonate, "a replica was donated to other work"},
	{EventReclaim, "a donated replica serves again"},
	{EventRedeploy, "a donated replica was replaced by a replica of another model"},
	{EventScaleFromZero, "the first replica of a model starts"},
	{EventScaleToZero, "the last replicas of a model drain"},
	{EventPlan, "the first plan was computed, or one with other counts than the plan before"},
	{EventApply, "an operator applied a plan"},
	{EventRolloutBegin, "'skyserve up' or 'skyserve down' began to change the service"},
	{EventRolloutEnd, "'skyserve up' ended or failed; after 'skyserve down' no balancer can record it"},
	{EventReload, "a balancer reloaded its configuration file, whose settings had changed"},
	{EventKeys, "API keys of clients or engines changed"},
	{EventCertificate, "a certificate was obtained or renewed"},
	{EventOperator, "an operator was added or revoked"},
	{EventLeader, "a controller became the leader"},
	{EventFailure, "an attempt failed, such as a launch without capacity (a machine that failed: death)"},
	{EventLost, "events themselves are missing: they were dropped while the store was unavailable"},
}

// EventKinds returns the kinds of this version, in the order of their documentation.
func EventKinds() []EventKind {
	kinds := make([]EventKind, len(eventKinds))
	for i, k := range eventKinds {
		kinds[i] = k.kind
	}
	return kinds
}

// Meaning returns what a kind means, in a line; empty for a kind of another version.
func (k EventKind) Meaning() string {
	for _, known := range eventKinds {
		if known.kind == k {
			return known.meaning
		}
	}
	return ""
}

// The actors of events. The actor of an operator's event is OperatorActor.
const (
	ActorController = "controller" // repairs, failover, plans, and what it observed of machines
	ActorAutoscaler = "autoscaler" // the strategy of autoscale.strategy, and scaling to and from zero
	ActorCloud      = "cloud"      // interruptions of VMs
	ActorBalancer   = "balancer"   // reloads its configuration, obtains certificates, and what it dropped
	actorOperator   = "operator:"
)

// OperatorActor returns the actor of an operator's events. The name is that of the certificate.
func OperatorActor(name string) string { return actorOperator + name }

// Event is one change of a service: what changed, and who or what changed it, when and why.
type Event struct {
	// ID identifies the event: an event that is stored twice has the same ID.
	ID string    `json:"id"`
	At time.Time `json:"at"`
	// Actor is who or what made the change: one of the actors above.
	Actor string    `json:"actor"`
	Kind  EventKind `json:"kind"`
	// Region is empty for the whole service.
	Region service.Region `json:"region"`
	// Object is what was changed: the ID of a replica or balancer, a model, or the name of an operator.
	Object string `json:"object"`
	// Message says in one line what happened, Reason why. Neither contains a secret.
	Message string `json:"message"`
	Reason  string `json:"reason"`
	// Model is the affected model; empty if it is unknown.
	Model string `json:"model,omitempty"`
	// Plan is the time of the plan that required the change, which identifies it; nil = no plan did.
	Plan *time.Time `json:"plan,omitempty"`
}

// Failed reports whether the event is a failure that an operator may want to know about.
func (e Event) Failed() bool {
	return e.Kind == EventFailure || e.Kind == EventDeath || e.Kind == EventInterruption || e.Kind == EventLost
}

// Clean returns the event with texts of one line and bounded length.
func (e Event) Clean() Event {
	name := func(s string) string { return truncate(printable.Line(s), MaxEventName) }
	text := func(s string) string { return truncate(printable.Line(s), MaxEventText) }
	e.ID, e.Actor, e.Kind = name(e.ID), name(e.Actor), EventKind(name(string(e.Kind)))
	e.Region, e.Object, e.Model = service.Region(name(string(e.Region))), name(e.Object), name(e.Model)
	e.Message, e.Reason, e.At = text(e.Message), text(e.Reason), e.At.UTC()
	return e
}

// truncate shortens a text to a number of bytes.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-len("...")], "") + "..."
}

// Line returns the event in one line, such as "14:02:05 autoscaler: us: launched us-3: memory 71 %
// used, above 70 %, 5 replicas planned", its time in zone.
func (e Event) Line(zone *time.Location) string {
	parts := []string{e.Actor}
	if e.Region != "" {
		parts = append(parts, e.Region.ShortName())
	}
	parts = append(parts, e.Message)
	if e.Reason != "" {
		parts = append(parts, e.Reason)
	}
	return e.At.In(zone).Format(time.TimeOnly) + " " + strings.Join(parts, ": ")
}

// FailureLine returns the event in one line, such as "14:02:05 in us: us-0 ended, process exited (pid 7)". It omits the
// actor, who only recorded the failure.
func (e Event) FailureLine(zone *time.Location) string {
	line := e.At.In(zone).Format(time.TimeOnly)
	if e.Region != "" {
		line += " in " + e.Region.ShortName()
	}
	line += ": " + e.Message
	if e.Reason != "" {
		line += ", " + e.Reason
	}
	return line
}

// EventLines returns the last n scaling actions, newest last.
func (s *Snapshot) EventLines(zone *time.Location, n int) []string {
	var lines []string
	for _, e := range s.Events {
		if e.Actor == ActorAutoscaler {
			lines = append(lines, e.Line(zone))
		}
	}
	return lines[max(0, len(lines)-n):]
}

// LastFailure returns the newest failure in the RecentFailure before the snapshot; nil if there is none.
func (s *Snapshot) LastFailure() *Event {
	for i := range slices.Backward(s.Events) {
		if e := &s.Events[i]; e.Failed() && s.At.Sub(e.At) <= RecentFailure {
			return e
		}
	}
	return nil
}

// EventQuery selects events. Zero fields select all.
type EventQuery struct {
	Since time.Time
	Kinds []EventKind
	// Region is a region or its place, such as us.
	Region string
	// Limit is the maximum number of events, of which the newest are returned; 0 means MaxEvents.
	Limit int
}

// Matches reports whether an event is selected.
func (q EventQuery) Matches(e Event) bool {
	return !e.At.Before(q.Since) && (len(q.Kinds) == 0 || slices.Contains(q.Kinds, e.Kind)) &&
		(q.Region == "" || string(e.Region) == q.Region || e.Region.ShortName() == q.Region)
}

// Select returns the selected events, the newest up to the limit, in their order. It omits repeated
// IDs.
func (q EventQuery) Select(events []Event) []Event {
	seen := map[string]bool{}
	out := []Event{}
	for _, e := range events {
		if q.Matches(e) && !seen[e.ID] {
			seen[e.ID] = true
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return a.At.Compare(b.At) })
	return out[max(0, len(out)-q.Max()):]
}

// Max returns the maximum number of events.
func (q EventQuery) Max() int {
	if q.Limit <= 0 {
		return MaxEvents
	}
	return min(q.Limit, MaxEvents)
}

// EventReport is the response of GET /v1/service/events.
type EventReport struct {
	// Complete is false if the store did not respond: the events are then those that the balancer has
	// in memory, and Problem is the error.
	Complete bool    `json:"complete"`
	Problem  string  `json:"problem"`
	Events   []Event `json:"events"`
}

// PendingEvents are the newest events of a process that wait for the store, at most MaxPendingEvents. A controller reports
// them to balancers, which show them until it has stored them.
type PendingEvents struct {
	// Source is the name of the controller. A report replaces the one before of the same source.
	Source string  `json:"source"`
	Events []Event `json:"events"`
}

// Validate returns an error for an event that an operator cannot record.
func (e Event) Validate() error {
	switch {
	case e.Kind == "":
		return fmt.Errorf("kind: missing")
	case e.Message == "":
		return fmt.Errorf("message: missing")
	}
	return nil
}
