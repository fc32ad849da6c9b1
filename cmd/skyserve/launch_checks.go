package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// checkLaunches checks the launches of a plan, and the bucket of an identity that is repaired, and returns the results.
// With advise, they include the clouds' advice on spot capacity, whose requests clouds limit.
func checkLaunches(ctx context.Context, places provision.MultiCloud, p *deploy.MachinePlan, advise bool) []provision.LaunchCheck {
	var machines []provision.Desired
	for _, c := range p.Changes {
		if c.Action == provision.ActionLaunch || c.Action == provision.ActionReplace || c.Action == provision.ActionRepair && c.Kind() == provision.KindIdentity {
			machines = append(machines, c.Desired)
		}
	}
	checks := provision.CheckLaunches(ctx, places, machines)
	if advise {
		checks = append(checks, provision.AdviseLaunches(ctx, places, machines)...)
	}
	return checks
}

// rejectedLaunch returns the first error that no other offering avoids: a missing image, permission or binary,
// or a taken bucket.
func rejectedLaunch(checks []provision.LaunchCheck) error {
	for _, c := range checks {
		var spec *provision.SpecError
		var denied *provision.CredentialsError
		var taken *provision.BucketTakenError
		var missing *provision.BinaryMissingError
		if errors.As(c.Err, &spec) || errors.As(c.Err, &denied) || errors.As(c.Err, &taken) || errors.As(c.Err, &missing) {
			return fmt.Errorf("%s: %w", provision.LaunchRejected, c.Err)
		}
	}
	return nil
}

// printLaunchChecks prints the results of checks.
func printLaunchChecks(w io.Writer, checks []provision.LaunchCheck) {
	for _, c := range checks {
		word := "ok"
		if !c.OK {
			word = "FAIL"
		} else if c.Warning {
			word = "WARN"
		}
		fmt.Fprintf(w, "check %s: %s: %s\n", word, c.Where, c.Message)
		if c.Hint != "" {
			fmt.Fprintf(w, "  hint: %s\n", c.Hint)
		}
	}
}

// printFailedLaunches prints the failed checks and the number of the others.
func printFailedLaunches(w io.Writer, checks []provision.LaunchCheck) {
	failed := slices.DeleteFunc(slices.Clone(checks), func(c provision.LaunchCheck) bool { return c.OK })
	printLaunchChecks(w, failed)
	if passed := len(checks) - len(failed); passed > 0 {
		fmt.Fprintf(w, "launch checks: %d ok; --dry-run lists them\n", passed)
	}
}

// ownerOfChecks is the owner in checked launches of a service that this machine does not have yet.
const ownerOfChecks = "doctor"

// findLaunches checks every launch of the service, as if it had no machines yet. Without cloud regions it
// returns nothing.
func (o *doctorOptions) findLaunches(ctx context.Context, spec *service.Spec, places provision.MultiCloud) ([]provision.CheckResult, error) {
	if !cloud.UsesClouds(spec) {
		return nil, nil
	}
	owner, err := localOwner(spec.Name)
	if err != nil {
		return nil, err
	}
	d := newDeployer(spec, cmp.Or(owner, ownerOfChecks), places, machineProgram{URL: "https://example.com/skyserve", SHA256: strings.Repeat("0", 64)})
	d.ListObserved = func(context.Context) ([]provision.Object, error) { return nil, nil }
	p, err := d.Plan(ctx)
	if err != nil {
		return unplannedLaunches(err), nil
	}
	var findings []provision.CheckResult
	for _, c := range provision.CheckLaunches(ctx, places, p.Desired) {
		findings = append(findings, c.CheckResult)
	}
	return findings, nil
}

// unplannedLaunches returns the finding of launches that cannot be planned; none where credentials are
// rejected, which another finding reports for each cloud.
func unplannedLaunches(err error) []provision.CheckResult {
	var denied *provision.CredentialsError
	if errors.As(err, &denied) {
		return nil
	}
	return []provision.CheckResult{{Where: "launches", Message: "not checked: " + err.Error()}}
}
