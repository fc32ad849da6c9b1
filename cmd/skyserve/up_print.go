package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// printChanges prints the changes, one per line, with their cost per hour.
func printChanges(w io.Writer, name string, p *deploy.MachinePlan) {
	if len(p.Changes) == 0 {
		fmt.Fprintf(w, "%s: no change\n", name)
		return
	}
	now, then := p.CostPerHour()
	fmt.Fprintf(w, "%s: %s, cost $%.2f/h -> $%.2f/h\n", name, printable.Count(len(p.Changes), "change"), now, then)
	t := printable.NewTable(w)
	t.HideTitles(titleChange)
	for _, c := range p.Changes {
		t.Rowf("  %s %s\t%s\t%s\t%s\t%s\t%s", changeMark(c.Action), c.Kind(), c.ID(), c.Region(), formatPrice(c), formatMachine(c), c.Reason)
	}
	_ = t.Flush() // w is a buffer or the screen: an error could not be reported
	if slices.ContainsFunc(p.Changes, isPriceUnknown) {
		fmt.Fprintln(w, "  ?: price unknown; set it in models[].gpus[].price or regions[].reserved")
	}
	printPrices(w, p)
}

// printPlainHTTP prints a warning if the service serves plain HTTP publicly.
func printPlainHTTP(w io.Writer, spec *service.Spec) {
	if warning := deploy.PlainHTTPWarning(spec); warning != "" {
		fmt.Fprintln(w, warning)
	}
}

// printEmptyModels prints the models that `up` starts without a replica.
func printEmptyModels(w io.Writer, spec *service.Spec) {
	onDemand, byHand := spec.ModelsStartingEmpty()
	if len(onDemand) > 0 {
		fmt.Fprintf(w, "without requests, these models have no replica (replicas.min is 0): %s; a request starts one and waits for it\n", strings.Join(onDemand, ", "))
	}
	if len(byHand) > 0 {
		fmt.Fprintf(w, "these models start without a replica (replicas.min is 0): %s; add one with 'skyserve replica add', or set autoscale.strategy, so that a request starts one\n", strings.Join(byHand, ", "))
	}
}

// warnDrained warns of models that have no ready replica because operators drained them: `up` leaves them drained.
func (u *upRun) warnDrained() {
	var replicas []drainableReplica
	for _, w := range u.changes.Desired {
		if w.Kind == provision.KindReplica {
			replicas = append(replicas, drainableReplica{w.ID, w.Labels["model"], slices.Contains(u.drained, w.ID), u.draining[w.ID]})
		}
	}
	printDrained(u.errOut, u.spec, replicas)
}

// drainableReplica is a replica for printDrained.
type drainableReplica struct {
	id, model string
	// drained is true for a replica that operators drained, idle for those and others that receive no requests.
	drained, idle bool
}

// printDrained warns of models that have no ready replica because operators drained them.
func printDrained(w io.Writer, spec *service.Spec, replicas []drainableReplica) {
	for _, m := range spec.Models {
		var drained []string
		serves := false
		for _, r := range replicas {
			switch {
			case r.model != m.Name:
			case r.drained:
				drained = append(drained, r.id)
			default:
				serves = serves || !r.idle
			}
		}
		if serves || len(drained) == 0 {
			continue
		}
		are, them := "is", "it"
		if len(drained) > 1 {
			are, them = "are", "them"
		}
		printMessage(w, labelWarning, "model %s has no ready replica: %s %s drained; 'skyserve replica drain %s --undo' lets %s serve",
			m.Name, printable.Count(len(drained), "replica"), are, strings.Join(drained, " "), them)
	}
}

func changeMark(a provision.ChangeAction) string {
	switch a {
	case provision.ActionLaunch:
		return "+"
	case provision.ActionTerminate:
		return "-"
	case provision.ActionReplace, provision.ActionReload, provision.ActionRepair:
	}
	return "~"
}

// isPriceUnknown reports whether a change launches a machine whose price is unknown.
func isPriceUnknown(c provision.Change) bool {
	return !cloud.RunsOnThisComputer(c.Region()) && len(c.Desired.Offerings) > 0 && c.Desired.Offerings[0].PricePerHour == 0
}

// formatPrice formats what a change adds to the cost per hour.
func formatPrice(c provision.Change) string {
	switch {
	case isPriceUnknown(c):
		return "?"
	case c.CostPerHour == 0:
		return ""
	case c.CostPerHour < 0:
		return fmt.Sprintf("-$%.4f/h", -c.CostPerHour)
	}
	return fmt.Sprintf("+$%.4f/h", c.CostPerHour)
}

// formatMachine formats the offering that an object will run on, with the number of alternatives. For
// an object that terminates it is the current offering.
func formatMachine(c provision.Change) string {
	offers := c.Desired.Offerings
	if cloud.RunsOnThisComputer(c.Region()) {
		return ""
	}
	if len(offers) == 0 {
		if o := c.Observed.Offering; o != nil {
			return o.String()
		}
		return ""
	}
	text := offers[0].String()
	if len(offers) > 1 {
		text += ", or " + printable.Count(len(offers)-1, "other")
	}
	return text
}
