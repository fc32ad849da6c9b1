package main

import (
	"fmt"
	"io"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision/cloud"
)

// parseService parses a service.yaml, and checks its local SSDs and that its budget holds the smallest service.
func parseService(file string, text []byte) (*service.Spec, error) {
	spec, err := service.Parse(file, text)
	if err != nil {
		return nil, err
	}
	if at, problem := cloud.LocalSSDConflict(spec); problem != "" {
		return nil, service.NewErrorAt(file, text, at, problem, "docs/engines.md lists the numbers by machine type")
	}
	if conflict := cloud.BudgetConflict(spec); conflict != "" {
		return nil, service.NewErrorAt(file, text, "autoscale.budget.per_hour", conflict, "raise it, or lower replicas.min")
	}
	return spec, nil
}

// checkBudget returns an error where changes make a service cost more than its budget, or where the budget
// does not admit one of its launches.
func checkBudget(spec *service.Spec, p *deploy.MachinePlan) error {
	budget := spec.BudgetPerHour()
	now, then := p.CostPerHour()
	const next = "raise autoscale.budget.per_hour, or lower replicas.min or the number of replicas; nothing was changed"
	switch {
	case budget == 0:
		return nil
	case len(p.Held) > 0:
		return usage(p.Held[0], next)
	case then > budget+1e-6 && then > now:
		return usage(fmt.Errorf("the changes cost $%.2f/h, and the budget is $%.2f/h (autoscale.budget)", then, budget), next)
	}
	return nil
}

// printBudget prints the budget beside the cost.
func printBudget(w io.Writer, spec *service.Spec) {
	if budget := spec.BudgetPerHour(); budget > 0 {
		fmt.Fprintf(w, "  budget $%.2f/h (autoscale.budget)\n", budget)
	}
}
