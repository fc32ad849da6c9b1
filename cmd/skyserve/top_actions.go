package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"skyserve/internal/controller"
	"skyserve/internal/telemetry"
	"skyserve/tui"
)

// Perform executes an action as the command of the same name does. The change persists when
// a balancer restarts.
func (o *topOperator) Perform(ctx context.Context, order tui.Action) (string, error) {
	if order.Verb == tui.VerbApply {
		return o.applyPlan(ctx, order.Plan)
	}
	verb, known := replicaActions[order.Verb]
	if !known {
		return "", fmt.Errorf("unknown action %q", order.Verb)
	}
	svc, err := o.localService()
	if err != nil {
		return "", o.withCommand(err, fmt.Sprintf(verb.doing, order.Replica), order.CommandLine(o.serviceName()))
	}
	changed, err := applyDecision(ctx, svc.Name(), nil, io.Discard, false, "skyserve top", o.clouds, verb.decision(order.Replica))
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", fmt.Sprintf(verb.doing, order.Replica), withHint(err))
	case !changed:
		return order.Replica + ": no change", nil
	}
	return order.Replica + " " + verb.done, nil
}

// replicaAction is an action on one replica.
type replicaAction struct {
	decision func(id string) decision
	doing    string // format of the action in progress, for errors
	done     string // past participle of the action, for the result
}

var replicaActions = map[tui.Verb]replicaAction{
	tui.VerbDrain:   {func(id string) decision { return drainDecision(id, true) }, "draining %s", "receives no new requests"},
	tui.VerbUndrain: {func(id string) decision { return drainDecision(id, false) }, "undraining %s", "receives requests again"},
	tui.VerbDonate:  {donateDecision, "donating %s", "donated"},
	tui.VerbReclaim: {reclaimDecision, "reclaiming %s", "reclaimed"},
}

// applyPlan applies the plan that the user confirmed, not the one that the planner would compute now.
func (o *topOperator) applyPlan(ctx context.Context, p *telemetry.PlanSummary) (string, error) {
	const doing = "applying the plan"
	if p == nil {
		return "", errors.New(doing + ": there is no plan yet")
	}
	svc, err := o.localService()
	if err != nil {
		return "", o.withCommand(err, doing, tui.Action{Verb: tui.VerbApply}.CommandLine(o.serviceName()))
	}
	message, err := o.applySummary(ctx, svc.Name(), p)
	if err != nil {
		return "", fmt.Errorf("%s: %w", doing, withHint(err))
	}
	return message, nil
}

// applySummary applies the displayed plan while it holds the service's lock, and returns what to display.
func (o *topOperator) applySummary(ctx context.Context, name string, shown *telemetry.PlanSummary) (message string, err error) {
	s, unlock, err := openScaling(ctx, name, nil, io.Discard, true, o.clouds)
	if err != nil {
		return "", err
	}
	defer unlock()
	observed, err := controller.Observe(ctx, o.admins, 0, false)
	if err != nil {
		return "", err
	}
	p, err := controller.RebuildProposal(s.spec, observed.Counts, shown)
	var other *controller.StalePlanError
	if errors.As(err, &other) {
		return "", failed(err, "wait for the next plan, which takes the change into account")
	}
	if err == nil {
		err = hintAtPlan(s.applyPlan(ctx, p, "skyserve top"), name)
	}
	if err != nil {
		return "", err
	}
	return s.applied(), nil
}

// hintAtPlan replaces a hint about what a command printed and what it asks: the dashboard prints no quotas and has no
// prompt, and the command of the same name has both.
func hintAtPlan(err error, service string) error {
	for _, refusal := range []error{errOverQuota, errUnusableReservations} {
		if errors.Is(err, refusal) {
			command := tui.Action{Verb: tui.VerbApply}.CommandLine(service)
			return failed(refusal, "run 'skyserve "+command+"' in a shell: it shows the quotas and reservations, and asks whether to apply the plan anyway")
		}
	}
	return err
}
