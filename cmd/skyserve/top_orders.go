package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"skyserve/internal/controller"
	"skyserve/internal/controller/fleet"
	"skyserve/internal/telemetry"
	"skyserve/tui"
)

// Do executes an action as the command of the same name does. The change persists when a balancer
// restarts.
func (o *topOperator) Do(ctx context.Context, order tui.Order) (string, error) {
	if order.Verb == tui.VerbApply {
		return o.apply(ctx, order.Plan)
	}
	verb, known := replicaOrders[order.Verb]
	if !known {
		return "", fmt.Errorf("unknown action %q", order.Verb)
	}
	svc, err := o.here()
	if err != nil {
		words := fmt.Sprintf(verb.command, order.Replica)
		return "", o.elsewhere(err, fmt.Sprintf(verb.doing, order.Replica), serviceFlag(words, o.serviceName()))
	}
	changed, err := decide(ctx, svc.Name(), nil, io.Discard, false, o.clouds, verb.decide(order.Replica))
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", fmt.Sprintf(verb.doing, order.Replica), inOneLine(err))
	case !changed:
		return order.Replica + ": no change", nil
	}
	return order.Replica + " " + verb.done, nil
}

// replicaOrder is an action on one replica.
type replicaOrder struct {
	decide  func(id string) decision
	doing   string // format of the action in progress, for errors
	command string // format of the equivalent command line
	done    string // past participle of the action, for the result
}

var replicaOrders = map[tui.Verb]replicaOrder{
	tui.VerbDrain:   {func(id string) decision { return drained(id, true) }, "draining %s", "replica drain %s", "drained"},
	tui.VerbUndrain: {func(id string) decision { return drained(id, false) }, "undraining %s", "replica drain %s --undo", "receives requests again"},
	tui.VerbDonate:  {donated, "donating %s", "replica donate %s", "donated"},
	tui.VerbReclaim: {reclaimed, "reclaiming %s", "replica reclaim %s", "reclaimed"},
}

// serviceFlag appends --service to a command if the service's name is known.
func serviceFlag(command, name string) string {
	if name == "" {
		return command
	}
	return command + " --service " + name
}

// apply applies the plan that the user confirmed, not the one that the planner would compute now.
func (o *topOperator) apply(ctx context.Context, p *telemetry.PlanSummary) (string, error) {
	const doing = "applying the plan"
	if p == nil {
		return "", errors.New(doing + ": there is no plan yet")
	}
	svc, err := o.here()
	if err != nil {
		return "", o.elsewhere(err, doing, "plan "+o.serviceName()+" --apply")
	}
	changed, err := o.follow(ctx, svc.Name(), p)
	if err != nil {
		return "", fmt.Errorf("%s: %w", doing, inOneLine(err))
	}
	return applied(svc.Name(), changed), nil
}

// follow applies the displayed plan while it holds the service's lock.
func (o *topOperator) follow(ctx context.Context, name string, shown *telemetry.PlanSummary) (changed bool, err error) {
	s, unlock, err := openScaling(ctx, name, nil, io.Discard, true, o.clouds)
	if err != nil {
		return false, err
	}
	defer unlock()
	observed, err := controller.Observe(ctx, o.admins, 0, false)
	if err != nil {
		return false, err
	}
	p, err := controller.Restore(s.spec, observed.Counts, shown)
	var other *controller.ChangedError
	if errors.As(err, &other) {
		return false, failed(err, "wait for the next plan, which takes the change into account")
	}
	if err != nil {
		return false, err
	}
	err = s.end(ctx, s.follow(ctx, fleet.WantedBy(s.spec, p)))
	return s.Changed, err
}
