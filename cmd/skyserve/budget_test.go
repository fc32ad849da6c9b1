package main

import (
	"bytes"
	"cmp"
	"errors"
	"strings"
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
)

// Changes beyond the budget are refused before anything is launched; a running service is never refused.
func TestCheckBudget(t *testing.T) {
	spec := &service.Spec{Autoscale: service.Autoscale{Budget: &service.Budget{PerHour: 10}}}
	unpriced := []*provision.HeldError{{ID: "us-3", Region: "aws/us-east-1", Kind: provision.HeldByPrice, Reason: "unknown price"}}
	held := []*provision.HeldError{{ID: "us-3", Region: "aws/us-east-1", Kind: provision.HeldByBudget, Reason: "too costly"}}
	for _, tt := range []struct {
		name      string
		now, more float64
		held      []*provision.HeldError
		spec      *service.Spec
		want      string
		hint      string // the start of the next step; empty = to raise the budget
	}{
		{name: "within", now: 4, more: 6, spec: spec},
		{name: "beyond", now: 4, more: 6.5, spec: spec, want: "the service would cost $10.50/h, and the budget is $10.00/h (autoscale.budget)"},
		{name: "running", now: 12, spec: spec},
		{name: "cheaper", now: 12, more: -1, spec: spec},
		{name: "held", now: 9, held: held, spec: spec, want: "launching us-3 in aws/us-east-1: held: too costly"},
		{name: "unknown price", now: 9, held: unpriced, spec: spec, want: "launching us-3 in aws/us-east-1: held: unknown price", hint: "set models[].gpus[].price"},
		{name: "no budget", now: 4, more: 60, spec: &service.Spec{}},
	} {
		p := &deploy.MachinePlan{Observed: []provision.Object{{CostPerHour: tt.now}}, Changes: provision.Changes{{CostPerHour: tt.more}}, Held: tt.held}
		err := checkBudget(tt.spec, p)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		var exit *exitError
		if tt.want != "" && (!errors.As(err, &exit) || !strings.HasPrefix(exit.hint, cmp.Or(tt.hint, "raise autoscale.budget.per_hour"))) {
			t.Errorf("%s: %+v", tt.name, exit)
		}
	}
	var out bytes.Buffer
	printBudget(&out, spec)
	printBudget(&out, &service.Spec{})
	if out.String() != "  budget $10.00/h (autoscale.budget)\n" {
		t.Errorf("%q", out.String())
	}
}

// A budget below the smallest service is an error with its place, in validate and up.
func TestBudgetBelowMinimum(t *testing.T) {
	file := `name: chat
models: [{name: m, engine: {kind: vllm}, gpus: [{type: L4, price: 1.00}]}]
regions: [{name: aws/us-east-1, replicas: {min: 3, max: 9}}]
balancer: {insecure: true, auth: {keys_from: env:KEYS}}
autoscale: {budget: {per_hour: 2}}
`
	r := validateFile(strings.NewReader(file), "-")
	want := "stdin:5:32: autoscale.budget.per_hour: must be at least $3.09, the price of the balancers and of replicas.min, got 2; raise it, or lower replicas.min"
	if r.OK || len(r.Errors) != 1 || r.Errors[0].Message() != want {
		t.Errorf("%+v, want %s", r.Errors, want)
	}
	if r := validateFile(strings.NewReader(strings.Replace(file, "per_hour: 2", "per_hour: 4", 1)), "-"); !r.OK {
		t.Errorf("%+v", r.Errors)
	}
}
