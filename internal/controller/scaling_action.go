package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// scalingAction is one action of a change: what happens to replicas of a model in a region.
type scalingAction struct {
	at     time.Time
	kind   telemetry.EventKind
	model  string
	region service.Region
	// replicas are the IDs of the affected replicas.
	replicas []string
	// active is the number of active replicas before the action.
	active int
	reason string
	// plan identifies the plan in force, see planTime.
	plan *time.Time
}

// actionText describes an action in events: done begins the message of a completed action, attempt the reason of a failed
// one.
type actionText struct{ done, attempt string }

var actionTexts = map[telemetry.EventKind]actionText{
	telemetry.EventLaunch:        {"launched", "launching replicas"},
	telemetry.EventReclaim:       {"reclaimed", "reclaiming replicas"},
	telemetry.EventRedeploy:      {"redeployed", "redeploying donated replicas"},
	telemetry.EventReplace:       {"launched replacement", "launching a replacement"},
	telemetry.EventDonate:        {"donated", "donating replicas"},
	telemetry.EventTermination:   {"removed", "removing replicas"},
	telemetry.EventDrain:         {"draining before removal:", "draining replicas"},
	telemetry.EventScaleToZero:   {"scaling to zero, draining", "draining the last replicas"},
	telemetry.EventScaleFromZero: {"scaling from zero, starting", "starting the first replica"},
}

// events returns an event for each replica of the action, or one for the model.
func (a scalingAction) events() []telemetry.Event {
	objects := a.replicas
	if len(objects) == 0 {
		objects = []string{a.model}
	}
	var out []telemetry.Event
	for _, object := range objects {
		out = append(out, telemetry.Event{
			At: a.at, Actor: telemetry.ActorAutoscaler, Kind: a.kind, Region: a.region, Object: object, Model: a.model, Plan: a.plan,
			Message: actionTexts[a.kind].done + " " + object, Reason: fmt.Sprintf("%s; replicas before: %d", a.reason, a.active),
		})
	}
	return out
}

// launches reports whether an action may launch replicas.
func (a scalingAction) launches() bool {
	switch a.kind {
	case telemetry.EventRedeploy, telemetry.EventLaunch, telemetry.EventReplace, telemetry.EventScaleFromZero:
		return true
	}
	return false
}

// actionsAfter returns the actions of an applied change, with the launched replicas. The first launched replicas
// belong to redeployments: in these actions they replace the removed replicas.
func (c scalingChange) actionsAfter(launched []string) []scalingAction {
	actions := slices.Clone(c.actions)
	for i := range actions {
		a := &actions[i]
		switch a.kind {
		case telemetry.EventRedeploy:
			n := min(len(a.replicas), len(launched))
			a.reason += "; replaces " + strings.Join(a.replicas, ", ")
			a.replicas, launched = launched[:n], launched[n:]
		case telemetry.EventLaunch, telemetry.EventReplace, telemetry.EventScaleFromZero:
			a.replicas, launched = append(slices.Clone(a.replicas), launched...), nil
		}
	}
	return actions
}

// failureEvents returns the event of a failed change, or none for a repeated failure.
func (s *scaler) failureEvents(c scalingChange, err error) []telemetry.Event {
	if len(c.actions) == 0 {
		return nil
	}
	a := c.actions[0]
	for _, old := range slices.Backward(s.events) {
		if old.Model == a.model && old.Region == a.region {
			if old.Kind == telemetry.EventFailure && strings.HasSuffix(old.Reason, err.Error()) {
				return nil
			}
			break
		}
	}
	return []telemetry.Event{{
		At: a.at, Actor: telemetry.ActorAutoscaler, Kind: telemetry.EventFailure, Region: a.region, Object: a.model, Model: a.model, Plan: a.plan,
		Message: "scaling failed", Reason: fmt.Sprintf("%s failed (requested because: %s): %v", actionTexts[a.kind].attempt, a.reason, err),
	}}
}

// planTime returns the time of the plan that a strategy's event refers to; nil if the strategy follows no plan. It is
// the plan in force, or an earlier one with the same capacity that was recorded as an event in its place.
func (in *scalingInputs) planTime() *time.Time {
	if len(in.targets) == 0 || in.review == nil || in.review.Plan == nil || !plan.UsesPlan(in.current.Spec.Autoscale.Strategy) {
		return nil
	}
	at := in.review.PlanEvent
	if at.IsZero() {
		at = in.review.Plan.At
	}
	return &at
}
