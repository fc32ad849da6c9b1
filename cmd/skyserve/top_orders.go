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

// Do carries an order out as the verb does that has its name: it lasts, whoever starts
// a balancer again.
func (o *topOperator) Do(ctx context.Context, order tui.Order) (string, error) {
	if order.Verb == tui.VerbApply {
		return o.apply(ctx, order.Plan)
	}
	verb, known := replicaOrders[order.Verb]
	if !known {
		return "", fmt.Errorf("there is no order %q", order.Verb)
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

// replicaOrder is an order about one replica.
type replicaOrder struct {
	decide  func(id string) decision
	doing   string // with the replica
	command string // of the command line, with the replica
	done    string // what is so of the replica then
}

var replicaOrders = map[tui.Verb]replicaOrder{
	tui.VerbDrain:   {func(id string) decision { return drained(id, true) }, "draining %s", "replica drain %s", "finished what it had and gets nothing more"},
	tui.VerbUndrain: {func(id string) decision { return drained(id, false) }, "undraining %s", "replica drain %s --undo", "gets requests again"},
	tui.VerbDonate:  {donated, "donating %s", "replica donate %s", "is lent"},
	tui.VerbReclaim: {reclaimed, "reclaiming %s", "replica reclaim %s", "is back and serves"},
}

// serviceFlag is a command with the service that it is for, where its name is known.
func serviceFlag(command, name string) string {
	if name == "" {
		return command
	}
	return command + " --service " + name
}

// apply makes the service what the proposal says that the user agreed to: that one, and
// not what a review would propose now.
func (o *topOperator) apply(ctx context.Context, p *telemetry.PlanSummary) (string, error) {
	const doing = "applying the plan"
	if p == nil {
		return "", errors.New(doing + ": there is none yet")
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

// follow carries a summary of a plan out while nobody else changes the service.
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
		return false, failed(err, "the next plan takes that into account")
	}
	if err != nil {
		return false, err
	}
	err = s.end(ctx, s.follow(ctx, fleet.WantedBy(s.spec, p)))
	return s.Changed, err
}
