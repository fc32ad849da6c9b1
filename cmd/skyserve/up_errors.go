package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
)

// applyError chooses the exit code of an error that occurred while applying changes.
func (u *upRun) applyError(ctx context.Context, err error) error {
	if ctx.Err() != nil && u.observer == nil {
		fmt.Fprintf(u.errOut, "interrupted; run 'skyserve up %s' again to continue\n", u.file)
		if rest := u.delivered.remainder(u.spec, u.file, u.changes.Desired); rest != "" {
			fmt.Fprintln(u.errOut, rest)
		}
		return &exitError{code: exitInterrupted}
	}
	if u.format.isDocument() {
		document := map[string]any{"service": u.spec.Name, "dry_run": false, "ready": false, "changes": deploy.ChangesOf(u.shownPlan().Changes), "endpoints": map[string]string{}, "error": err.Error(), "dns": nil}
		if printing := u.format.writeDocument(u.out, document); printing != nil {
			return printing
		}
	}
	u.printInterim()
	if failure := u.replicaError(err); failure != nil {
		return failure
	}
	var coded *exitError
	if known := cloudError(strangersHint(err, u.file)); errors.As(known, &coded) {
		return known
	}
	if u.startedNothing() {
		return failed(withoutRepeats(err), "nothing was started; correct the cause, then: skyserve up "+u.file)
	}
	return &exitError{code: exitPartial, err: withoutRepeats(err), hint: u.afterFailure(err)}
}

// startedNothing reports whether no process of a service on this computer runs after the run failed. In clouds even a
// run that launches no machine creates other objects.
func (u *upRun) startedNothing() bool {
	return u.clouds.localService != nil && u.filter == nil && !u.changed.Load() && !u.hasRunningMachine()
}

// hasRunningMachine reports whether a machine ran before the run.
func (u *upRun) hasRunningMachine() bool {
	return slices.ContainsFunc(u.changes.Observed, func(o provision.Object) bool { return o.Offering != nil && o.TerminatedReason == "" })
}

// unknownField is the error text of an agent that receives a field of a later version.
const unknownField = "json: unknown field"

// afterFailure returns the hint after a partial failure. Retrying does not help if a machine
// rejects its configuration.
func (u *upRun) afterFailure(err error) string {
	var refusal *agent.StatusError
	switch {
	case errors.As(err, &refusal) && strings.Contains(refusal.Message, unknownField):
		if u.program.fromBuckets() {
			return fmt.Sprintf("the machine runs an earlier version of skyserve; 'skyserve up %s' replaces it", u.file)
		}
		return fmt.Sprintf("the machine runs an earlier version of skyserve; upload this version for Linux to a URL that machines can reach, then: skyserve up %s --program URL", u.file)
	case errors.Is(err, identity.ErrPin):
		return fmt.Sprintf("find out who changed that machine or impersonates it, then: skyserve up %s --replace ID", u.file)
	}
	if late := (*deploy.NotReadyError)(nil); errors.As(err, &late) {
		reasons := fmt.Sprintf("'skyserve logs %s' why it is not", u.spec.Name)
		if !slices.ContainsFunc(u.spec.Regions, func(r service.RegionSpec) bool { return r.Name.Cloud() != service.CloudStatic }) {
			reasons = "and why it is not; 'skyserve up' does not start engines of static regions: start yours at the addresses in endpoints"
		}
		return fmt.Sprintf("everything that was started keeps running; 'skyserve status %s -w' shows when the rest is ready, %s; another 'skyserve up' is not needed", u.spec.Name, reasons)
	}
	if u.clouds.localService != nil || u.filter != nil {
		return fmt.Sprintf("see 'skyserve status %s' and 'skyserve logs %s', then run 'skyserve up %s' again", u.spec.Name, u.spec.Name, u.file)
	}
	hint := fmt.Sprintf("the machines that were launched are running and billed; 'skyserve up %s' retries, 'skyserve down %s' deletes them", u.file, u.spec.Name)
	if u.changes == nil {
		return hint
	}
	if !u.launchesBegun.Load() && !u.hasRunningMachine() {
		return fmt.Sprintf("no machine was launched; 'skyserve up %s' retries, 'skyserve down %s' deletes the rest", u.file, u.spec.Name)
	}
	if rest := u.delivered.remainder(u.spec, u.file, u.changes.Desired); rest != "" {
		hint += "\n" + rest
	}
	return hint
}

// cloudError adds the exit code and hint to an error about credentials or ownership.
func cloudError(err error) error {
	var credentials *provision.CredentialsError
	var owned *provision.OwnedError
	switch {
	case errors.As(err, &credentials):
		return &exitError{code: exitCredentials, err: withoutRepeats(err), hint: credentials.Hint}
	case errors.As(err, &owned):
		return failed(err, "choose another name, or become an operator of the service with 'skyserve connect'")
	}
	return err
}

// withoutRepeats returns an error whose text omits the lines that repeat the end of an earlier one: every region
// of a cloud fails for the same missing credentials, and every process for the same full disk.
func withoutRepeats(err error) error {
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !slices.ContainsFunc(lines, func(earlier string) bool { return strings.HasSuffix(earlier, line) }) {
			lines = append(lines, line)
		}
	}
	return &shortenedError{error: err, text: strings.Join(lines, "\n")}
}

// shortenedError is an error with another text.
type shortenedError struct {
	error
	text string
}

func (e *shortenedError) Error() string { return e.text }
func (e *shortenedError) Unwrap() error { return e.error }
