package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// downOptions are the flags of `skyserve down`.
type downOptions struct {
	name   string
	yes    bool
	purge  bool
	output outputFlags
	format outputFormat
	clouds cloudFlags
}

func newDownCmd() *cobra.Command {
	var o downOptions
	cmd := &cobra.Command{
		Use:        "down [NAME|SERVICE.yaml]",
		SuggestFor: []string{"delete", "destroy", "stop", "rm"},
		Short:      "Delete a service and wait for the deletion",
		Long: `Stop every process of a service, wait until each has ended, and delete the service's
state and history from this machine. On a terminal, NAME is optional if only one service
exists, and the command asks for confirmation before it deletes VMs or a history (--yes skips
the question). Without a terminal, a service with VMs requires --yes; any other service
requires NAME or --yes. The command also deletes a partly deployed service, and lists what it
could not delete (exit 3). After an interruption, run it again. A service that does not exist
is an error (exit 1).

The history is kept only if store.url is set (your own NATS server). Otherwise, to keep a
copy, run 'skyserve backup' before. To stop traffic without deleting anything, run
'skyserve replica drain' instead; no command does this for a service with cloud regions.

Machines in static regions, which are your own, keep running: the service only stops using
them. In clouds, after confirmation, the command deletes the public DNS name first, then
VMs, firewalls, identities and the bucket with the skyserve binary. It finds them by their
tags, also in regions that were removed from service.yaml, and waits until each is gone. For
this it needs service.yaml: if the copy in the state directory ($SKYSERVE_HOME, by default
~/.local/state/skyserve) is missing, pass the file, else nothing is deleted (exit 2).`,
		Example: `  skyserve down chat
  skyserve down service.yaml`,
		Args: argsBetween(0, 1, "[NAME|SERVICE.yaml]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := setService(&o.name, args, "NAME|SERVICE.yaml"); err != nil {
				return err
			}
			return runDown(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	registerService(cmd, &o.name)
	flags := cmd.Flags()
	flags.BoolVar(&o.yes, "yes", false, "skip confirmation")
	flags.BoolVar(&o.purge, "purge", false, "delete the service's state even if a process could not be stopped, or cannot be stopped from this machine")
	o.output.registerResult(cmd)
	o.clouds.registerFlags(flags)
	return cmd
}

// hintNothingToDelete follows the error of a service that does not exist.
const hintNothingToDelete = "it is deleted already, or was deployed from another machine; 'skyserve gc --region CLOUD/REGION --dry-run' finds the resources of such services in a cloud"

func runDown(ctx context.Context, o *downOptions, in io.Reader, out, errOut io.Writer) error {
	var err error
	if o.format, err = o.output.parse(); err != nil {
		return err
	}
	name, err := serviceNameOf(o.name)
	if err != nil {
		return usage(err, "'skyserve down NAME' accepts the service's name instead of its file")
	}
	svc, err := findService(name)
	if none := (*local.NoServiceError)(nil); errors.As(err, &none) && none.Name == name { // a similar name would be that of another service, which lives
		return notFound(none, hintNothingToDelete)
	}
	if err != nil {
		return err
	}
	if name == "" && !o.yes && !canPrompt(in) {
		return unnamedError(svc.Name())
	}
	d := &down{downOptions: o, svc: svc, out: out, errOut: errOut}
	lock, err := lockService(ctx, svc, errOut)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := d.openService(ctx); err != nil {
		return err
	}
	if err := d.confirm(lock.input(ctx, in, d.listObjects)); err != nil {
		return err
	}
	return d.runDown(ctx)
}

// unnamedError is the error of a script that would delete a service which it does not name.
func unnamedError(service string) error {
	which := "the only service on this machine"
	if chosen, _, err := defaultService(); err == nil && chosen != "" {
		which = "the service of your settings"
	}
	return usage(fmt.Errorf("confirmation is required: this command deletes %s, %s, and stdin is not a terminal", service, which), fmt.Sprintf("pass --yes; or, for a service without VMs, name it: skyserve down %s", service))
}

// down is one run of `skyserve down`.
type down struct {
	*downOptions
	svc         local.Service
	spec        *service.Spec // nil if its file is missing, or is invalid and the service has no VMs
	out, errOut io.Writer

	owner  string
	places provision.MultiCloud
	have   []provision.Object
	joined bool                // the service runs on another machine, and this one joined it
	lost   string              // the machines in clouds that cannot be found; empty = none
	ports  map[string][]string // ports of processes that no longer have an object
}

// openService reads the service's file and finds its objects.
func (d *down) openService(ctx context.Context) (err error) {
	if d.spec, err = deployedSpec(d.name, d.svc); err == nil {
		if err = checkObservable(d.svc, d.spec); d.purge {
			d.joined, err = err != nil, nil
		}
	}
	if err == nil && d.spec != nil && isServiceFile(d.name) {
		err = checkSameKind(d.svc, d.name, d.spec)
	}
	if err == nil && d.spec == nil {
		err = d.checkLost()
	}
	if err != nil {
		return err
	}
	return cloudError(d.findObjects(ctx))
}

// checkLost returns an error if the service has machines in clouds, which cannot be found without its service.yaml. With
// --purge it only sets lost.
func (d *down) checkLost() error {
	known, err := readDeployment(d.svc)
	if err != nil || !known.inClouds {
		return err
	}
	search, where := "--region CLOUD/REGION", ""
	if len(known.regions) > 0 {
		search, where = "--region "+joinRegions(known.regions, " --region "), " ("+joinRegions(known.regions, ", ")+")"
	}
	if d.purge {
		d.lost = fmt.Sprintf("machines in clouds%s, which 'skyserve gc %s' deletes", where, search)
		return nil
	}
	return usage(fmt.Errorf("%s has machines in clouds%s, and its service.yaml is missing in the state directory", d.svc.Name(), where),
		fmt.Sprintf("pass the service's file: skyserve down SERVICE.yaml; without one, 'skyserve down %s --purge' deletes the state on this machine, and 'skyserve gc %s' then deletes the machines", d.svc.Name(), search))
}

// findObjects finds the service's objects.
func (d *down) findObjects(ctx context.Context) (err error) {
	if d.spec == nil || !cloud.UsesClouds(d.spec) {
		here := local.NewProvider(d.svc, "", "", local.DefaultGrace)
		d.places = provision.MultiCloud{"": here} // for objects of any region
		for _, name := range []string{service.CloudLocal, service.CloudStatic} {
			d.places[name] = here.InRegions()
		}
	} else {
		who, err := operatorOf(d.svc, "deleting the resources", "'skyserve gc' deletes orphaned resources; 'skyserve connect' makes this machine an operator")
		if err != nil {
			return err
		}
		d.owner = who.owner
		if d.clouds.programs, err = mayHaveBucket(d.svc); err != nil {
			return err
		}
		regions, err := possibleRegions(d.svc, d.spec) // a file that is not deployed yet may lack some
		if err != nil {
			return err
		}
		if d.places, err = d.clouds.providersOf(ctx, d.spec, regions...); err != nil {
			return err
		}
	}
	if d.have, err = d.listObjects(ctx); err != nil {
		return err
	}
	d.ports = d.svc.Ports()
	for _, o := range d.have {
		delete(d.ports, o.ID)
	}
	return nil
}

// listObjects lists the objects of the service.
func (d *down) listObjects(ctx context.Context) ([]provision.Object, error) {
	return d.places.List(ctx, d.svc.Name())
}

// hasVMs reports whether the service has VMs in clouds.
func (d *down) hasVMs() bool { return d.spec != nil && cloud.UsesClouds(d.spec) }

// confirm shows what is deleted, and prompts for confirmation.
func (d *down) confirm(in io.Reader) error {
	plan := &deploy.MachinePlan{Observed: d.have, Changes: provision.Diff(nil, d.have)}
	if d.hasVMs() {
		printChanges(d.errOut, d.spec.Name, plan)
	}
	if err := confirmBilled(in, d.errOut, plan, d.yes); err != nil {
		return err
	}
	return d.confirmHistory(in)
}

// runDown deletes the service's objects, then its state on this machine.
func (d *down) runDown(ctx context.Context) error {
	var others []string // what remains besides objects
	if err := d.unpublish(ctx); err != nil && d.hasVMs() {
		return cloudError(err)
	} else if err != nil {
		others = append(others, err.Error())
	}
	d.recordDown(ctx)
	d.stopControllers(ctx)
	stopped, err := d.deleteObjects(ctx)
	var leftover *provision.RemainingError
	if err != nil && !errors.As(err, &leftover) {
		return cloudError(err)
	}
	if leftover == nil && len(others) == 0 || d.purge {
		others = append(others, d.deleteState(ctx)...)
	}
	if d.lost != "" {
		others = append(others, d.lost)
	}
	if leftover == nil && len(others) > 0 {
		leftover = &provision.RemainingError{Service: d.svc.Name()}
		err = leftover
	}
	if leftover != nil { // err contains it
		leftover.Remaining = append(leftover.Remaining, others...)
	}
	return d.reportResult(stopped, leftover, err)
}

// confirmHistory says that the history of a service whose store is on this machine is deleted, and asks a person at
// a terminal.
func (d *down) confirmHistory(in io.Reader) error {
	hasStore := slices.ContainsFunc(d.have, func(o provision.Object) bool { return o.Kind == provision.KindBalancer })
	if d.hasVMs() || !hasStore || d.spec != nil && d.spec.Store.URL != "" {
		return nil
	}
	fmt.Fprintf(d.errOut, "deleting the history, usage, events and batches of %s on this machine\n", d.svc.Name())
	if d.yes || !canPrompt(in) {
		return nil
	}
	fmt.Fprintf(d.errOut, "to keep a copy, decline and run 'skyserve backup FILE --service %s'\n", d.svc.Name())
	return confirmAction(in, d.errOut, "")
}

// stopControllers stops the controllers of a service in clouds, so that they launch nothing again.
func (d *down) stopControllers(ctx context.Context) {
	if !d.hasVMs() {
		return // a local controller stops with its machine
	}
	who, err := openOperator(d.svc, false)
	h := deploy.Delivery{Service: d.spec.Name, Party: who.party, Machines: d.have}
	if err == nil {
		err = h.StopControllers(ctx)
	}
	if err != nil && ctx.Err() == nil {
		printMessage(d.errOut, labelWarning, "stopping the controllers: %v; they may still launch VMs: run 'skyserve gc' afterwards", err)
	}
}

// deleteObjects deletes every object and prints a line for each.
func (d *down) deleteObjects(ctx context.Context) (stopped int, err error) {
	verb := "stopped"
	if d.hasVMs() {
		verb = "removed"
	}
	err = deploy.Down(ctx, d.places, d.svc.Name(), d.owner, func(c provision.Change, p provision.ChangePhase, _ error) {
		if p == provision.PhaseDone {
			stopped++
			fmt.Fprintf(d.errOut, "%s %s\n", verb, c.ID())
		}
	})
	return stopped, err
}

// deleteState deletes the service's state on this machine and returns what it could not delete. The operator's keys are
// last, because another down after an interruption needs them.
func (d *down) deleteState(ctx context.Context) (remaining []string) {
	err := d.svc.RemoveExcept(dirIdentity)
	if err == nil {
		err = identityOf(d.svc).Delete()
	}
	if err == nil {
		err = d.svc.Remove()
	}
	if err != nil {
		remaining = append(remaining, err.Error())
	}
	remaining = append(remaining, local.WaitPortsFree(ctx, d.ports)...)
	if err := d.svc.Home().CleanUp(ctx); err != nil {
		remaining = append(remaining, err.Error())
	}
	return remaining
}

// reportResult prints what was deleted and returns the error that contains leftover; nil if nothing remains.
func (d *down) reportResult(stopped int, leftover *provision.RemainingError, failure error) error {
	done := "stopped"
	if d.hasVMs() {
		done = "removed"
	}
	var err error
	if d.joined && leftover == nil && !d.format.isResult() {
		_, err = fmt.Fprintf(d.out, "the state of %s on this machine, with its certificate, is deleted; the service is unchanged\n", d.svc.Name())
	} else {
		err = printDown(d.out, d.format, d.svc.Name(), done, stopped, leftover)
	}
	if err != nil {
		return err
	}
	if leftover != nil {
		return &exitError{code: exitPartial, err: failure, hint: "retry, or delete the listed resources by hand"}
	}
	return nil
}

// unpublish deletes the public names of a service: the recorded one, and the one in its file,
// which another operator may have published.
func (d *down) unpublish(ctx context.Context) error {
	spec := d.spec
	if spec == nil {
		spec = &service.Spec{}
	}
	zone, err := d.clouds.nameZone(ctx, spec, d.svc)
	if err != nil || zone == nil {
		return err
	}
	if n := publicName(spec, d.owner, nil); n.Name != "" && d.hasVMs() {
		if err := zone.Set(ctx, n); err != nil {
			return fmt.Errorf("deleting the DNS name %s: %w", n.Name, err)
		}
	}
	return deploy.UnpublishName(ctx, zone, d.svc)
}

// deployedSpec returns the service.yaml of a service: the file that arg names, else the one that the
// service was deployed from. It returns nil if there is none. For an invalid file it returns nil, or an
// error if the service has machines in clouds, which could not be found without the file.
func deployedSpec(arg string, svc local.Service) (*service.Spec, error) {
	file := svc.SpecFile()
	if isServiceFile(arg) {
		file = arg
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the service file: %w", err)
	}
	spec, err := service.ParseDeployed(file, text)
	if err == nil {
		return spec, nil
	}
	if known, unreadable := readDeployment(svc); unreadable != nil || known.inClouds {
		return nil, usage(err, "correct the file: it contains the cloud regions of the service's running machines")
	}
	return nil, nil // a local service can be found by its name alone
}

// isServiceFile reports whether an argument is a service file, not the name of a service.
func isServiceFile(arg string) bool {
	return slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(arg))
}

// serviceNameOf returns the name of the service that arg denotes. If arg is a YAML file, its name field is
// read, and the rest of the file need not be valid. Otherwise arg is the name.
func serviceNameOf(arg string) (string, error) {
	if !isServiceFile(arg) {
		return arg, nil
	}
	text, err := os.ReadFile(arg)
	if err != nil {
		return "", fmt.Errorf("reading the service's name: %w", err)
	}
	var spec struct {
		Name string `yaml:"name"`
	}
	if err := yaml.Unmarshal(text, &spec); err != nil {
		return "", fmt.Errorf("reading the service's name in %s: %w", arg, err)
	}
	if spec.Name == "" {
		return "", fmt.Errorf("reading %s: %w", arg, errors.New("name: missing"))
	}
	return spec.Name, nil
}

// machinesOf returns the balancers and replicas among objects, sorted.
func machinesOf(have []provision.Object) []provision.Object {
	machines := slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool {
		return o.Kind != provision.KindBalancer && o.Kind != provision.KindReplica
	})
	slices.SortFunc(machines, byPlace)
	return machines
}

// printDown prints how many objects were deleted; done is the verb in the past tense.
func printDown(out io.Writer, format outputFormat, name, done string, stopped int, remaining *provision.RemainingError) error {
	leftovers := []string{}
	if remaining != nil {
		leftovers = remaining.Remaining
	}
	if format.isResult() {
		return format.writeResult(out, name, map[string]any{"service": name, "stopped": stopped, "leftovers": leftovers})
	}
	if remaining == nil {
		_, err := fmt.Fprintf(out, "%s is down; %d %s\n", name, stopped, done)
		return err
	}
	return nil
}
