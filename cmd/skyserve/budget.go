package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// leadingKey matches the key with which an error of cloud.Validate or checkLocalName begins.
var leadingKey = regexp.MustCompile(`^[a-z_.\[\]0-9]+`)

// parseService parses a service.yaml. It also checks that the service can be deployed, its local SSDs, and that its
// budget holds the smallest service.
func parseService(file string, text []byte) (*service.Spec, error) {
	spec, err := service.Parse(file, text)
	if err != nil {
		return nil, err
	}
	for _, check := range []func(*service.Spec) error{cloud.Validate, checkLocalName} {
		if err := check(spec); err != nil {
			return nil, locate(file, text, err)
		}
	}
	if at, problem := cloud.LocalSSDProblem(spec); problem != "" {
		return nil, service.NewErrorAt(file, text, at, problem, "docs/engines.md lists the numbers by machine type")
	}
	if conflict := cloud.BudgetProblem(spec); conflict != "" {
		return nil, service.NewErrorAt(file, text, "autoscale.budget.per_hour", conflict, "raise it, or lower replicas.min")
	}
	return spec, nil
}

// locate returns an error that begins with a key of a valid document as an error at that key.
func locate(file string, text []byte, err error) error {
	at := leadingKey.FindString(err.Error())
	located := service.NewErrorAt(file, text, at, strings.TrimLeft(strings.TrimPrefix(err.Error(), at), ": "), "")
	var all service.Errors
	if errors.As(located, &all) {
		all[0].Found = "" // the problem names it
	}
	return located
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
