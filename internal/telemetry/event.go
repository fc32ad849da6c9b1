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
	// RecentFailure is the time for which status shows a failure as recent.
	RecentFailure = time.Hour
)

// EventKind is what happened. Other versions may have further kinds, which are shown as they are.
type EventKind string

// The kinds of events.
const (
	EventLaunch        EventKind = "launch"          // a machine was launched, or a replica was added
	EventTermination   EventKind = "termination"     // a machine was deleted
	EventDeath         EventKind = "death"           // a machine, engine or balancer failed
	EventRecovery      EventKind = "recovery"        // a failed one works again
	EventInterruption  EventKind = "interruption"    // the cloud announced that it takes a VM
	EventAdoption      EventKind = "adoption"        // another balancer adopted a replica
	EventReturn        EventKind = "return"          // an adopted replica returned to its home balancer
	EventDonate        EventKind = "donate"          // a replica was donated to other work
	EventReclaim       EventKind = "reclaim"         // a donated replica serves again
	EventRedeploy      EventKind = "redeploy"        // a donated replica was restarted with another model
	EventReplace       EventKind = "replace"         // a replica was launched to replace another one
	EventDrain         EventKind = "drain"           // a replica receives no new requests
	EventResume        EventKind = "resume"          // a drained replica serves again
	EventAttach        EventKind = "attach"          // a replica was attached to a balancer by hand
	EventDetach        EventKind = "detach"          // a replica was detached from a balancer by hand
	EventPlan          EventKind = "plan"            // a plan was computed
	EventApply         EventKind = "apply"           // an operator applied a plan
	EventScaleToZero   EventKind = "scale-to-zero"   // the last replicas of a model drain
	EventScaleFromZero EventKind = "scale-from-zero" // the first replica of a model starts
	EventReload        EventKind = "reload"          // a configuration was reloaded
	EventKeys          EventKind = "keys"            // API keys or keys of engines changed
	EventCertificate   EventKind = "certificate"     // a certificate was obtained or renewed
	EventOperator      EventKind = "operator"        // an operator was added or revoked
	EventLeader        EventKind = "leader"          // a controller became the leader
	EventRolloutBegin  EventKind = "rollout-begin"   // up or down began to change the service
	EventRolloutEnd    EventKind = "rollout-end"     // up ended
	EventFailure       EventKind = "failure"         // an attempt failed, such as a launch without capacity
	EventLost          EventKind = "lost"            // events were dropped while the store was unavailable
)

// EventKinds returns the kinds of this version, in the order of their documentation.
func EventKinds() []EventKind {
	return []EventKind{
		EventLaunch, EventTermination, EventReplace, EventDeath, EventRecovery, EventInterruption, EventAdoption, EventReturn,
		EventDrain, EventResume, EventAttach, EventDetach, EventDonate, EventReclaim, EventRedeploy, EventScaleFromZero, EventScaleToZero,
		EventPlan, EventApply, EventRolloutBegin, EventRolloutEnd, EventReload, EventKeys, EventCertificate, EventOperator,
		EventLeader, EventFailure, EventLost,
	}
}

// The actors of events. The actor of an operator's event is OperatorActor.
const (
	ActorController = "controller" // repairs, failover, plans, and what it observed of machines
	ActorAutoscaler = "autoscaler" // the strategy of autoscale.strategy, and scaling to and from zero
	ActorCloud      = "cloud"      // interruptions of VMs
	ActorBalancer   = "balancer"   // reloads its configuration and obtains certificates
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
// used, above 70 %, 5 planned", its time in zone.
func (e Event) Line(zone *time.Location) string {
	parts := []string{e.Actor}
	if e.Region != "" {
		parts = append(parts, e.Region.Place())
	}
	parts = append(parts, e.Message)
	if e.Reason != "" {
		parts = append(parts, e.Reason)
	}
	return e.At.In(zone).Format(time.TimeOnly) + " " + strings.Join(parts, ": ")
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
		(q.Region == "" || string(e.Region) == q.Region || e.Region.Place() == q.Region)
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
