package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/local"
)

// Time limits of a rehearsal: from the confirmation to the deletion, and of the deletion itself.
const (
	defaultRehearsalTimeout = 30 * time.Minute
	rehearsalCleanupTimeout = 10 * time.Minute
)

// rehearsalSettleTime is the time after which the lists of a cloud contain what a cut off call created.
const rehearsalSettleTime = 10 * time.Second

// rehearseOptions are the flags of `skyserve doctor --rehearse`.
type rehearseOptions struct {
	rehearse   bool
	yes        bool
	timeout    time.Duration
	report     string
	regions    string
	dns        bool
	programURL string
}

// rehearsal is one run of `skyserve doctor --rehearse`.
type rehearsal struct {
	format      outputFormat
	o           *doctorOptions
	in          io.Reader
	out, errOut io.Writer

	of   *service.Spec // the service that is rehearsed
	spec *service.Spec
	text []byte
	name string
	key  string // the API key of the rehearsal
	cert []byte // DER of the balancers' certificate; nil = plain HTTP
	dir  string // of temporary files
	home local.Home
	svc  local.Service

	up       *upObserver
	places   provision.MultiCloud
	begun    bool // objects may have been created
	cut      bool // calls to the clouds were cut off, which the clouds may still complete
	declined bool
	perHour  float64
	unpriced bool
	prompted time.Duration // time that the confirmation took in the current step

	started time.Time
	results []stepResult
}

// runRehearsal deploys a temporary service, exercises and deletes it, and writes a report.
func runRehearsal(ctx context.Context, o *doctorOptions, in io.Reader, out, errOut io.Writer) error {
	format, err := o.output.parse()
	if err != nil {
		return err
	}
	text, err := readServiceFile(o.file)
	if err != nil {
		return err
	}
	spec, err := parseService(o.file, text)
	if err != nil {
		return usage(err, "")
	}
	if err := o.checkRehearsable(spec); err != nil {
		return err
	}
	if !o.yes && !canPrompt(in) {
		return usage(errors.New("confirmation is required: --rehearse rents machines, and stdin is not a terminal"), "pass --yes to skip confirmation")
	}
	r := &rehearsal{o: o, format: format, in: in, out: out, errOut: errOut, of: spec, name: rehearsalName(spec.Name), key: rand.Text(), started: time.Now()}
	release, err := r.open()
	if err != nil {
		return err
	}
	defer release()
	failure := r.runSteps(ctx)
	if r.declined {
		return errDeclined
	}
	if err := r.writeReport(); err != nil {
		return errors.Join(failure, err)
	}
	return r.exitError(ctx, failure)
}

// open claims the rehearsal of the service and prepares its file, key and certificate. release removes
// the temporary files.
func (r *rehearsal) open() (release func(), err error) {
	if r.home, err = local.OpenHome(); err != nil {
		return nil, err
	}
	if r.svc, err = r.home.Service(r.name); err != nil {
		return nil, err
	}
	unlock, ok, err := r.home.Claim(rehearsalLock(r.name))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, failed(fmt.Errorf("rehearsing %s: another process on this machine is rehearsing it", r.of.Name), "wait until it has ended")
	}
	release = func() { unlock() }
	if r.dir, err = os.MkdirTemp("", "skyserve-rehearsal-"); err != nil {
		release()
		return nil, fmt.Errorf("preparing the rehearsal of %s: %w", r.of.Name, err)
	}
	release = func() {
		_ = os.RemoveAll(r.dir) // a certificate that nothing trusts
		unlock()
	}
	var tls *service.TLS
	if r.of.Balancer.TLS != nil {
		if tls, r.cert, err = throwAwayCertificate(r.dir, r.name, time.Now(), r.o.timeout+rehearsalCleanupTimeout); err != nil {
			release()
			return nil, err
		}
	}
	if r.spec, r.text, err = rehearsalSpec(r.of, rehearsalRegions(r.of, r.o.regions == regionsAll), r.o.dns, tls); err != nil {
		release()
		return nil, err
	}
	if err := os.Setenv(envRehearsalKey, r.key); err != nil {
		release()
		return nil, fmt.Errorf("preparing the rehearsal of %s: %w", r.of.Name, err)
	}
	return release, nil
}

// rehearsalLock returns the name of the lock that a running rehearsal holds.
func rehearsalLock(name string) string { return filepath.Join("rehearsals", name+".lock") }

// noteRehearsal is the note that marks the service of a rehearsal.
const noteRehearsal = "rehearsal.json"

// rehearsalNote marks the service of a rehearsal.
type rehearsalNote struct {
	Of      string    `json:"of"`
	Started time.Time `json:"started"`
}

// isRehearsal reports whether a service is marked as a rehearsal.
func isRehearsal(svc local.Service) (bool, error) {
	var note rehearsalNote
	err := svc.LoadValue(noteRehearsal, &note)
	return note.Of != "", err
}

// isAbandonedRehearsal reports whether a service is a rehearsal whose process was killed.
func isAbandonedRehearsal(svc local.Service) (bool, error) {
	is, err := isRehearsal(svc)
	if err != nil || !is {
		return false, err
	}
	running, err := svc.Home().IsClaimed(rehearsalLock(svc.Name()))
	return !running, err
}

// errRehearsalTimeout is the cause of the end of a rehearsal that took too long.
var errRehearsalTimeout = errors.New("the rehearsal took longer than --timeout")

// runSteps runs the steps in their order. After a failed step only those that delete and verify run. It
// returns the errors.
func (r *rehearsal) runSteps(ctx context.Context) error {
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.up = newUpObserver(func(u *upRun) error {
		began := time.Now()
		err := r.confirmRehearsal(u.in, u)
		r.prompted = time.Since(began)
		if err == nil {
			err = r.svc.StoreValue(noteRehearsal, rehearsalNote{Of: r.of.Name, Started: time.Now()})
		}
		if err == nil {
			r.places, r.begun = u.places, true
			time.AfterFunc(r.o.timeout, func() { cancel(fmt.Errorf("%w (%s)", errRehearsalTimeout, r.o.timeout)) })
		}
		return err
	})
	var failure error
	for _, s := range rehearsalSteps {
		if s.applies != nil && !s.applies(r) {
			continue
		}
		if failure != nil && (!s.always || !r.begun) {
			r.results = append(r.results, stepResult{rehearsalStep: s, Result: resultSkipped})
			continue
		}
		stepCtx, end := work, func() {}
		if s.always {
			if failure != nil {
				fmt.Fprintln(r.errOut, "deleting everything; Ctrl-C ends this and leaves what remains")
			}
			r.stopUp(cancel)
			stepCtx, end = cleanupContext(ctx)
		}
		err := r.runStep(stepCtx, s)
		end()
		failure = errors.Join(failure, err)
		if r.declined {
			break
		}
	}
	r.stopUp(cancel)
	return failure
}

// stopUp ends the run of `up` and waits for its end.
func (r *rehearsal) stopUp(cancel context.CancelCauseFunc) {
	if r.up.started {
		r.cut = r.cut || !r.up.hasEnded() || r.up.isCut()
		cancel(errRunEnded)
		r.up.awaitEnd()
	}
}

// cleanupContext returns a context for deleting everything, also after ctx has ended. A further Ctrl-C
// ends it.
func cleanupContext(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), rehearsalCleanupTimeout, fmt.Errorf("not deleted within %s", rehearsalCleanupTimeout))
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	return ctx, func() { stop(); cancel() }
}

// runStep runs a step and records its result.
func (r *rehearsal) runStep(ctx context.Context, s rehearsalStep) error {
	began := time.Now()
	r.prompted = 0
	err := s.run(r, ctx)
	interrupted := ctx.Err() != nil && !errors.Is(context.Cause(ctx), errRehearsalTimeout) && !s.always
	if interrupted && err != nil {
		err = r.up.withStatuses(context.Canceled)
	}
	result := stepResult{rehearsalStep: s, Result: resultPassed, Duration: time.Since(began) - r.prompted}
	if err != nil {
		result.Result, result.Err = resultFailed, err
		if interrupted {
			result.Result = resultInterrupted
		}
		err = fmt.Errorf("%s: %w", s.Name, err)
	}
	r.results = append(r.results, result)
	if !r.declined {
		fmt.Fprintf(r.errOut, "%-11s %-12s %s\n", result.Result, s.Name, formatStepTime(result.Duration))
	}
	return err
}

// exitError chooses the exit code of a rehearsal, by its first failure.
func (r *rehearsal) exitError(ctx context.Context, failure error) error {
	if failure == nil {
		return nil
	}
	var credentials *provision.CredentialsError
	var coded *exitError
	code, hint := exitFailed, ""
	switch {
	case errors.As(failure, &credentials):
		code, hint = exitCredentials, credentials.Hint
	case errors.As(failure, &coded) && coded.code != exitPartial:
		code, hint = coded.code, coded.hint
	}
	if ctx.Err() != nil {
		code = exitInterrupted
	}
	for _, s := range r.results {
		if s.Result == resultFailed && s.hint != "" && hint == "" {
			hint = s.hint
		}
		if s.always && s.Result == resultFailed {
			hint = "resources remain and are billed; delete them with one of:\n  " + r.cleanupCommands()
		}
	}
	return &exitError{code: code, err: failure, hint: hint}
}

// cleanupCommands returns the commands that delete what a killed rehearsal leaves, one per line.
func (r *rehearsal) cleanupCommands() string {
	gc := "skyserve gc"
	for _, region := range r.spec.Regions {
		gc += " --region " + string(region.Name)
	}
	if r.spec.DNS != nil {
		gc += " --dns-zone " + r.spec.DNS.Zone
	}
	return strings.Join([]string{"skyserve doctor " + r.o.file + " --rehearse", "skyserve down " + r.name, gc}, "\n  ")
}
