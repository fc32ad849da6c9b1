package main

import (
	"fmt"
	"io"
	"strconv"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// parseService parses a service.yaml. It also checks that the service can be deployed, its local SSDs and GPUs, and that its
// budget holds the smallest service. It returns all problems at once.
func parseService(file string, text []byte) (*service.Spec, error) {
	return service.ParseWith(file, text, cloud.Problems, localNameProblems, cloud.LocalSSDProblems, cloud.GPUProblems, budgetProblems)
}

// warningsOf describes possible problems of a valid file.
func warningsOf(spec *service.Spec) []string {
	return append(spec.Warnings(), cloud.Warnings(spec)...)
}

// budgetProblems returns the problem of a budget that does not hold the smallest service, if it has one.
func budgetProblems(spec *service.Spec) service.Errors {
	problem := cloud.BudgetProblem(spec)
	if problem == "" {
		return nil
	}
	return service.Errors{{
		Path: "autoscale.budget.per_hour", Problem: problem, Found: strconv.FormatFloat(spec.BudgetPerHour(), 'f', -1, 64),
		Suggestion: "raise it, or lower replicas.min",
	}}
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
	case len(p.Held) > 0 && p.Held[0].Kind == provision.HeldByPrice:
		return usage(p.Held[0], provision.NextStepUnknownPrice+"; nothing was changed")
	case len(p.Held) > 0:
		return usage(p.Held[0], next)
	case then > budget+1e-6 && then > now:
		return usage(fmt.Errorf("the service would cost $%.2f/h, and the budget is $%.2f/h (autoscale.budget)", then, budget), next)
	}
	return nil
}

// printBudget prints the budget beside the cost.
func printBudget(w io.Writer, spec *service.Spec) {
	if budget := spec.BudgetPerHour(); budget > 0 {
		fmt.Fprintf(w, "  budget $%.2f/h (autoscale.budget)\n", budget)
	}
}
