package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/rollout"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// defaultReplaceAfter is longer than a machine takes to start again.
const defaultReplaceAfter = 3 * time.Minute

// How long `up` waits unless it is told: processes of this machine start within seconds. Machines
// take minutes to boot, to get an image of 20 GiB, and the weights of a large model. An authority
// that refused a certificate is asked again after a minute, then after two, then after five.
const (
	waitForProcesses   = time.Minute
	waitForCertificate = 10 * time.Minute
	waitForMachines    = 30 * time.Minute
)

// waitFor is how long `up` waits for a service unless it is told.
func waitFor(spec *service.Spec) time.Duration {
	if len(cloud.Regions(spec)) > 0 {
		return waitForMachines
	}
	if t := spec.Balancer.TLS; t != nil && t.ACME != nil {
		return waitForCertificate
	}
	return waitForProcesses
}

// upOptions are the flags of `skyserve up`.
type upOptions struct {
	file     string
	yes      bool
	dryRun   bool
	detailed bool
	wait     bool
	upgrade  bool
	timeout  time.Duration
	output   string
	// Of services in clouds only.
	clouds       cloudFlags
	programURL   string
	replace      []string
	replaceAfter time.Duration
}

func newUpCmd() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up SERVICE.yaml",
		Short: "Bring a service up, or change it to what its file says",
		Long: `Bring a service up as its file says, wait until it works and print its endpoints.
Run again it changes only what differs and repairs what died: missing processes
are started at once, replicas whose configuration differs are replaced one a
region at a time, balancers one at a time. Balancers take up another policy,
other models, keys, peers and replicas while they run ("reload"); only what they
cannot change then, such as an address, starts them again. Replicas beyond
replicas.min that 'skyserve plan --apply' or 'skyserve replica' decided on stay as
they are, within replicas.min and max.

Local regions are simulated engines, in the background on this machine. Static
ones are machines that you already have: their endpoints are attached to a balancer
that runs on this machine or, beside regions of a cloud, to the first of those there.
Neither is billed, and neither asks.

Regions of AWS and Google Cloud are rented: a machine for each balancer, one for each
replica, firewalls, and identities of least privilege, all with the tags of the
service. What will change is shown with its price an hour, and asked for. Where a zone
has no capacity the next one is tried, then the next capacity type and GPU in the
order of the file, then other regions of the service. A machine that its cloud runs and
that answers nothing is replaced, if another one answers. Each machine makes a key of its
own and gets its configuration and secrets once, over TLS that both sides verify; none
of it is in user data or tags. Credentials are those of the clouds' own tools.

` + envAdminToken + ` in the environment is the token of the balancers' admin
APIs. It is kept with the service, so that other shells need not have it; set to
nothing it takes the token away.

It waits up to --timeout: by default a minute, and half an hour where machines are
rented, which have to boot and to get images and weights. When that is over, what there
is stays up, and the public name leads to the balancers that answer (exit 3).

Processes go on with the executable that they were started with; --upgrade
replaces those that run another one than this.

Exit codes: 0 up, 1 failed, 2 error in the file, 3 only a part is up, 4 a cloud
refuses the credentials, 130 interrupted (running it again takes up where it ended).`,
		Example: `  skyserve up service.yaml
  skyserve up service.yaml --dry-run --detailed-exitcode
  skyserve up service.yaml --timeout 5m -o json`,
		Args: argsBetween(1, 1, "SERVICE.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.file = args[0]
			if cmd.Flags().Changed("timeout") && o.timeout <= 0 {
				return usage(fmt.Errorf("--timeout: must be above 0, got %s", o.timeout), "")
			}
			return runUp(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.yes, "yes", false, "do not ask before making what is billed (local and static regions never ask)")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would change and change nothing")
	flags.BoolVar(&o.detailed, "detailed-exitcode", false, "exit 10 instead of 0 when there are changes")
	flags.BoolVar(&o.wait, "wait", true, "wait until the service works")
	flags.BoolVar(&o.upgrade, "upgrade", false, "also replace processes that run another executable than this one")
	flags.DurationVar(&o.timeout, "timeout", 0, "how long to wait until the service works (default 1m; 10m where a certificate is obtained, 30m where machines are rented)")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json")
	flags.StringVar(&o.programURL, "program", "", "`URL` from which machines in clouds get skyserve for Linux, with #sha256=... where this machine cannot reach it (default: "+envProgram+", then what was said last)")
	flags.StringArrayVar(&o.replace, "replace", nil, "put another machine in the place of the one with this `ID` (clouds; repeatable)")
	flags.DurationVar(&o.replaceAfter, "replace-after", defaultReplaceAfter, "how long a machine that had time to boot may answer nothing before another takes its place (clouds; 0 = for ever)")
	o.clouds.add(flags)
	return cmd
}

// up is one run of `skyserve up`.
type up struct {
	*upOptions
	out, talk io.Writer
	plan      *rollout.Plan
	begun     time.Time
	ready     []string
	telling   sync.Mutex // held while a line is written
}

func runUp(ctx context.Context, o *upOptions, in io.Reader, out, talk io.Writer) error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	text, err := os.ReadFile(o.file)
	if err != nil {
		return usage(fmt.Errorf("reading the service: %w", err), "skyserve init writes a first service.yaml")
	}
	u := &up{upOptions: o, out: out, talk: talk, begun: time.Now()}
	spec, err := service.Parse(o.file, text)
	if err == nil {
		o.timeout = cmp.Or(o.timeout, waitFor(spec))
		warn(talk, o.file, spec)
	}
	if err == nil && len(cloud.Clouds(spec)) > 0 {
		return runCloudUp(ctx, u, in, spec, text)
	}
	if o.dryRun {
		return u.dry(text)
	}
	return u.run(ctx, text)
}

// warn tells what may be wrong with a service, which a file, or its name, stands for.
func warn(talk io.Writer, what string, spec *service.Spec) {
	for _, warning := range spec.Warnings() {
		fmt.Fprintf(talk, "%s: warning: %s\n", what, warning)
	}
}

// open reads the service and finds its state.
func (u *up) open(text []byte) (local.Service, *service.Spec, error) {
	spec, err := rollout.Read(u.file, text)
	if err != nil {
		return local.Service{}, nil, specUsage(err)
	}
	home, err := local.OpenHome()
	if err != nil {
		return local.Service{}, nil, err
	}
	svc, err := home.Service(spec.Name)
	return svc, spec, err
}

// specUsage makes an error of configuration one of usage.
func specUsage(err error) error {
	var spec *provision.SpecError
	if errors.As(err, &spec) {
		return usage(err, "")
	}
	return err
}

// dry shows the changes.
func (u *up) dry(text []byte) error {
	svc, spec, err := u.open(text)
	if err != nil {
		return err
	}
	if u.plan, err = rollout.NewPlan(svc, spec, text, u.upgrade); err != nil {
		return specUsage(err)
	}
	return u.finish(false)
}

// run makes the changes and waits.
func (u *up) run(ctx context.Context, text []byte) error {
	svc, spec, err := u.open(text)
	if err != nil {
		return err
	}
	if err := u.change(ctx, svc, spec, text); err != nil {
		return err
	}
	if u.wait {
		waitCtx, cancel := context.WithTimeoutCause(ctx, u.timeout, fmt.Errorf("not ready within %s", u.timeout))
		defer cancel()
		if err := u.plan.Wait(waitCtx, u.isReady); err != nil {
			return u.failure(ctx, err, len(u.ready) > 0)
		}
	}
	return u.finish(u.wait)
}

// change makes the changes. It gives the service's lock back before anything is
// waited for, so that `down` need not.
func (u *up) change(ctx context.Context, svc local.Service, spec *service.Spec, text []byte) error {
	unlock, err := svc.LockSoon(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if u.plan, err = rollout.NewPlan(svc, spec, text, u.upgrade); err != nil {
		svc.RemoveUnused()
		return specUsage(err)
	}
	if err := u.printChanges(u.talk); err != nil {
		return err
	}
	if err := u.plan.CheckName(ctx); err != nil {
		svc.RemoveUnused()
		return u.failure(ctx, err, false)
	}
	result, err := u.plan.Apply(ctx, u.progress)
	if err != nil {
		svc.RemoveUnused()
		return u.failure(ctx, err, len(result.Done) > 0)
	}
	name, err := u.plan.Publish(ctx)
	if err != nil {
		return u.failure(ctx, err, true)
	}
	if name != "" {
		u.line("published %s", name)
	}
	return nil
}

// failure prints what there is and chooses the exit code of err.
func (u *up) failure(ctx context.Context, err error, partly bool) error {
	if ctx.Err() != nil {
		fmt.Fprintf(u.talk, "stopped waiting; 'skyserve up %s' takes up where this ended\n", u.file)
		return fmt.Errorf("bringing %s up: %w", u.plan.Spec.Name, context.Canceled)
	}
	code := exitFailed
	if partly {
		code = exitPartial
	}
	if u.output == "json" {
		if printing := u.printJSON(false, err); printing != nil {
			return printing
		}
	}
	hint := fmt.Sprintf("see 'skyserve status %s' and 'skyserve logs %s', then run it again", u.plan.Spec.Name, u.plan.Spec.Name)
	var taken *provision.PortTakenError
	if errors.As(err, &taken) {
		hint = fmt.Sprintf("nothing was started; change %s in %s, or stop what is there", taken.Setting, u.file)
	}
	var refused *provision.CredentialsError
	if errors.As(err, &refused) {
		code, hint = exitCredentials, refused.Hint
	}
	return &exitError{code: code, err: err, hint: hint}
}

// finish prints the result.
func (u *up) finish(ready bool) error {
	if u.output == "json" {
		if err := u.printJSON(ready, nil); err != nil {
			return err
		}
	} else if err := u.printText(ready); err != nil {
		return err
	}
	if u.detailed && len(u.plan.Changes) > 0 {
		return &exitError{code: exitChanges}
	}
	return nil
}

// progress is told of every change.
func (u *up) progress(c provision.Change, p provision.Phase, err error) {
	verb := map[provision.Action]string{
		provision.ActionLaunch: "started", provision.ActionReplace: "replaced", provision.ActionReload: "reloaded", provision.ActionTerminate: "stopped",
	}[c.Action]
	switch p {
	case provision.PhaseDone:
		u.line("%s %s", verb, c.ID())
	case provision.PhaseFailed:
		u.line("failed %s", c.ID())
	}
}

func (u *up) isReady(id string) {
	u.ready = append(u.ready, id)
	for _, c := range u.plan.Changes {
		if c.ID() == id {
			u.line("ready %s", id)
		}
	}
}

// line says one thing that happened and when.
func (u *up) line(format string, args ...any) {
	u.telling.Lock()
	defer u.telling.Unlock()
	fmt.Fprintf(u.talk, "%6.1fs  %s\n", time.Since(u.begun).Seconds(), fmt.Sprintf(format, args...))
}

// printChanges shows what will change and what it costs.
func (u *up) printChanges(w io.Writer) error {
	name := u.plan.Spec.Name
	if len(u.plan.Changes) == 0 {
		_, err := fmt.Fprintf(w, "%s: no change\n", name)
		return err
	}
	now, then := u.plan.CostPerHour()
	plural := "s"
	if len(u.plan.Changes) == 1 {
		plural = ""
	}
	fmt.Fprintf(w, "%s: %d change%s, cost $%.2f/h -> $%.2f/h\n", name, len(u.plan.Changes), plural, now, then)
	marks := map[provision.Action]string{provision.ActionLaunch: "+", provision.ActionReplace: "~", provision.ActionReload: "~", provision.ActionTerminate: "-"}
	for _, c := range u.plan.Changes {
		where := cmp.Or(string(c.Region()), "this machine")
		if _, err := fmt.Fprintf(w, "  %s %-10s %-12s %-14s %s\n", marks[c.Action], c.Kind(), c.ID(), where, c.Reason); err != nil {
			return err
		}
	}
	return nil
}

// printText prints the endpoints and what to try next; for a dry run, the changes.
func (u *up) printText(ready bool) error {
	if u.dryRun {
		return u.printChanges(u.out)
	}
	name, state := u.plan.Spec.Name, "started"
	if ready {
		state = "up"
	}
	endpoints := u.plan.Endpoints()
	if len(u.plan.Changes) == 0 {
		fmt.Fprintf(u.out, "%s is %s (no change)\n", name, state)
	} else {
		fmt.Fprintf(u.out, "%s is %s\n", name, state)
	}
	for _, place := range u.plan.Places() {
		fmt.Fprintf(u.out, "  %-12s %s\n", place, endpoints[place])
	}
	d := u.plan.Spec.DNS
	if d != nil {
		fmt.Fprintf(u.out, "  %-12s %s (%s)\n", "name", d.Name, d.Provider)
	}
	fmt.Fprintf(u.out, "\nTry next:\n  %s\n", curlOf(u.plan.Spec, endpoints[u.plan.Places()[0]]))
	if d != nil && d.Provider == service.DNSEmbedded {
		fmt.Fprintf(u.out, "  %s\n", dig(d))
	}
	_, err := fmt.Fprintf(u.out, "  skyserve load\n  skyserve top\n  skyserve plan\n  skyserve down %s\n", name)
	return err
}

// dig is a question that the name server of a service answers.
func dig(d *service.DNS) string {
	at := netip.MustParseAddrPort(d.Listen) // the validator saw to that
	return fmt.Sprintf("dig @%s -p %d %s", at.Addr(), at.Port(), d.Name)
}

// curlOf is a request that a service answers.
func curlOf(spec *service.Spec, endpoint string) string {
	m := spec.Models[0]
	model := m.Name
	if len(m.Aliases) > 0 {
		model = m.Aliases[0]
	}
	auth := ""
	if spec.Balancer.Auth != nil {
		auth = ` -H "Authorization: Bearer $SKYSERVE_KEY"`
	}
	return fmt.Sprintf(`curl %s/v1/chat/completions%s -H 'Content-Type: application/json' -d '{"model":"%s","max_tokens":32,"messages":[{"role":"user","content":"Hello"}]}'`,
		endpoint, auth, model)
}

// printJSON prints the one document of -o json.
func (u *up) printJSON(ready bool, err error) error {
	type change struct {
		Action      provision.Action `json:"action"`
		ID          string           `json:"id"`
		Kind        provision.Kind   `json:"kind"`
		Region      string           `json:"region"`
		Reason      string           `json:"reason"`
		CostPerHour float64          `json:"cost_per_hour"`
	}
	changes := []change{}
	for _, c := range u.plan.Changes {
		changes = append(changes, change{c.Action, c.ID(), c.Kind(), string(c.Region()), c.Reason, c.CostPerHour})
	}
	now, then := u.plan.CostPerHour()
	document := map[string]any{
		"service": u.plan.Spec.Name, "dry_run": u.dryRun, "ready": ready, "changes": changes,
		"cost_per_hour": map[string]float64{"now": now, "then": then},
		"endpoints":     u.plan.Endpoints(), "error": nil, "dns": nil,
	}
	if d := u.plan.Spec.DNS; d != nil {
		document["dns"] = d.Name
	}
	if err != nil {
		document["error"] = err.Error()
	}
	return json.NewEncoder(u.out).Encode(document)
}
