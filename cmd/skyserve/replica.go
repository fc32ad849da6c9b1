package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// replicaOptions are the flags of `skyserve replica` and its subcommands.
type replicaOptions struct {
	service string
	list    outputFlags
	model   string
	count   int
	gpu     string
	// capacity is the capacity type.
	capacity string
	undo     bool
	yes      bool
	// force takes the last ready replica of a model.
	force  bool
	clouds cloudFlags
	reason string
}

func newReplicaCmd() *cobra.Command {
	var o replicaOptions
	cmd := &cobra.Command{
		Use:        "replica",
		SuggestFor: []string{"scale", "drain", "cordon"},
		Short:      "List, add, remove, drain, donate and reclaim replicas",
		Long: `List, add, remove, drain, donate and reclaim replicas of a running service. Adding,
removing and donating keep their number within regions[].replicas.min and .max of its
service.yaml; drained replicas count. Changes are stored with the service:
'skyserve up' keeps them; 'skyserve plan --apply', and an autoscale.strategy other than
manual, may undo them.

Replicas of local and cloud regions can be added and removed. In clouds this changes the
bill and requires confirmation (--yes skips it). Replicas of static regions (your own
machines) are listed in service.yaml; they can be drained and donated. The commands drain,
donate and reclaim are not available for a service with cloud regions; remove drains the
replica first. drain, donate and remove prompt for confirmation before they act on the last
ready replica of a model (--force skips it). If a balancer does not respond, a change
waits for it for about 20 s and ends with exit code 3: the other balancers have the change,
and a controller delivers it to that balancer once it responds again. In a service without
cloud regions, a change first starts balancers that have ended. A replica there whose
process has ended can be removed; the other commands say what starts it again.

Exit codes: 0 done or no change, 1 failed, 2 usage or not allowed by service.yaml,
3 partly done, 130 interrupted.`,
		Example: `  skyserve replica list
  skyserve replica add local/us --gpu H100
  skyserve replica add aws/us-east-1 --gpu L4 --capacity spot --yes
  skyserve replica drain us-1
  skyserve replica remove us-1
  skyserve replica donate us-1
  skyserve replica reclaim us-1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&o.service, "service", "", "`NAME` of the service (default: the one in config.yaml, else the only one)")
	o.clouds.registerFlags(cmd.PersistentFlags())
	cmd.AddCommand(newReplicaListCmd(&o), newReplicaAddCmd(&o), newReplicaRemoveCmd(&o), newReplicaDrainCmd(&o), newReplicaDonateCmd(&o), newReplicaReclaimCmd(&o))
	return cmd
}

func newReplicaListCmd(o *replicaOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List replicas with their state",
		Example: `  skyserve replica list -o json
  skyserve replica list -o wide --no-headers
  skyserve replica list -o jsonpath='{[*].state}'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.listReplicas(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.list.registerList(cmd)
	return cmd
}

func newReplicaAddCmd(o *replicaOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add REGION",
		Short: "Add replicas to a region and wait until they are ready",
		Example: `  skyserve replica add local/us
  skyserve replica add us --model chat-small --count 2
  skyserve replica add us --gpu H100
  skyserve replica add aws/us-east-1 --gpu L4 --capacity spot --yes`,
		Args: argsBetween(1, 1, "REGION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.applyDecision(cmd, func(ctx context.Context, s *scaling) error { return o.addReplica(ctx, s, args[0]) })
		},
	}
	cmd.Flags().StringVar(&o.model, "model", "", "model `NAME` or alias (optional if the service has only one)")
	cmd.Flags().IntVar(&o.count, "count", 1, "number of replicas to add")
	cmd.Flags().StringVar(&o.gpu, "gpu", "", "GPU from models[].gpus, such as L4 or 8xH100 (default: the first with capacity)")
	cmd.Flags().StringVar(&o.capacity, "capacity", "", "capacity type from regions[].capacity: spot, on_demand, flex_start or reserved (default: the first with capacity)")
	o.addYes(cmd)
	registerReason(cmd.Flags(), &o.reason)
	cmd.ValidArgsFunction = completeRegions(&o.service)
	return cmd
}

func newReplicaRemoveCmd(o *replicaOptions) *cobra.Command {
	cmd := o.verb(&cobra.Command{
		Use:        "remove ID...",
		SuggestFor: []string{"delete", "rm", "stop", "terminate"},
		Short:      "Drain replicas, then stop them",
		Example:    "  skyserve replica remove us-1 us-2",
	}, func(id string) decision {
		return func(ctx context.Context, s *scaling) error { return s.removeReplica(ctx, id) }
	})
	o.addYes(cmd)
	o.addForce(cmd)
	return cmd
}

// addForce adds --force to a command that takes replicas out of service.
func (o *replicaOptions) addForce(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.force, "force", false, "for the last ready replica of a model: skip the confirmation; required without a terminal")
}

// addYes adds --yes to a command that can change the bill.
func (o *replicaOptions) addYes(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.yes, "yes", false, "skip confirmation of billed changes (local regions need none)")
}

// registerReason registers the flag --reason of a command that changes a service.
func registerReason(flags *pflag.FlagSet, reason *string) {
	flags.StringVar(reason, "reason", "", "why you make the change: `TEXT` is shown by 'skyserve events' (default: the command)")
}

// maxIDs is the maximum number of replicas that one command changes.
const maxIDs = 100

// verb completes a command that acts on replicas, one after the other. It stops at the first that fails.
func (o *replicaOptions) verb(cmd *cobra.Command, on func(id string) decision) *cobra.Command {
	cmd.Args = argsBetween(1, maxIDs, "ID...")
	cmd.ValidArgsFunction = completeIDs(&o.service)
	registerReason(cmd.Flags(), &o.reason)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := o.applyDecision(cmd, func(ctx context.Context, s *scaling) error {
			asked := false // once for all replicas of the command
			s.BeforeRemoval = func(ctx context.Context) error {
				if asked {
					return nil
				}
				asked = true
				return o.guardReplicas(ctx, guard{o.force, s.in, cmd.ErrOrStderr()}, args)
			}
			return changeEach(ctx, s.errOut, args, func(id string) error { return on(id)(ctx, s) })
		})
		if missing := (*deploy.NoReplicaError)(nil); errors.As(err, &missing) {
			if _, other := findService(missing.ID); other == nil {
				return notFound(err, fmt.Sprintf("%s is a service; the arguments are replicas, and --service names the service: %s ID... --service %s", missing.ID, cmd.CommandPath(), missing.ID))
			}
		}
		return err
	}
	return cmd
}

// changeEach changes replicas one after the other. It stops at the first that fails or that a person declines.
func changeEach(ctx context.Context, errOut io.Writer, ids []string, change func(id string) error) error {
	for i, id := range ids {
		err := change(id)
		if err == nil {
			continue
		}
		if errors.Is(err, errDeclined) && i > 0 {
			text := fmt.Sprintf("cancelled; changed before: %s; not changed: %s", strings.Join(ids[:i], ", "), strings.Join(ids[i:], ", "))
			return &exitError{code: exitPartial, err: &shortenedError{error: err, text: text}}
		}
		if rest := ids[i+1:]; len(rest) > 0 && ctx.Err() == nil && !errors.Is(err, errDeclined) {
			fmt.Fprintf(errOut, "%s: see the error below; not tried: %s\n", id, strings.Join(rest, ", "))
		}
		return err
	}
	return nil
}

// applyDecision applies a decision.
func (o *replicaOptions) applyDecision(cmd *cobra.Command, d decision) error {
	command := cmd.CommandPath()
	if o.undo {
		command += " --undo"
	}
	_, err := applyDecision(cmd.Context(), o.service, cmd.InOrStdin(), cmd.ErrOrStderr(), o.yes, cmp.Or(o.reason, command), o.clouds, d)
	return err
}

func newReplicaDrainCmd(o *replicaOptions) *cobra.Command {
	cmd := o.verb(&cobra.Command{
		Use:   "drain ID...",
		Short: "Drain replicas: in-flight requests complete, no new ones are sent",
		Example: `  skyserve replica drain us-1 us-2
  skyserve replica drain us-1 --undo`,
	}, func(id string) decision { return drainDecision(id, !o.undo) })
	cmd.Flags().BoolVar(&o.undo, "undo", false, "send requests to the replica again")
	o.addForce(cmd)
	return cmd
}

// addReplica launches more replicas of a model in a region; name is the region or its place.
func (o *replicaOptions) addReplica(ctx context.Context, s *scaling, name string) error {
	if o.count < 1 {
		return usage(fmt.Errorf("--count: must be at least 1, got %d", o.count), "")
	}
	at, err := regionIndex(s.spec, name)
	if err != nil {
		return err
	}
	m, err := chooseModel(s.spec, o.model)
	if err != nil {
		return err
	}
	on, err := deploy.ChooseClass(m, s.spec.Regions[at], o.gpu, o.capacity)
	if err != nil {
		hint := "models[].gpus and regions[].capacity in service.yaml list the choices"
		if region := s.spec.Regions[at].Name; o.capacity != "" && !region.Rented() {
			hint = string(region) + " has no capacity types, because its machines are not rented: omit --capacity"
		}
		return usage(err, hint)
	}
	g := cloud.ReplicaGroup{Model: m.Name, Region: s.spec.Regions[at].Name}
	w, err := s.PlanAddition(ctx, g, o.count, on)
	if err != nil {
		return o.additionError(err)
	}
	return s.applyCount(ctx, w)
}

// chooseModel returns the model with a name or alias, without a name the only one.
func chooseModel(spec *service.Spec, name string) (*service.Model, error) {
	var names []string
	for i := range spec.Models {
		names = append(append(names, spec.Models[i].Name), spec.Models[i].Aliases...)
	}
	switch m := spec.ModelByName(name); {
	case m != nil:
		return m, nil
	case name != "":
		return nil, usage(fmt.Errorf("--model: must be one of %s, got %q", strings.Join(names, ", "), name), "")
	case len(spec.Models) > 1:
		return nil, usage(fmt.Errorf("--model is required: one of %s", strings.Join(names, ", ")), "")
	}
	return &spec.Models[0], nil
}

// additionError returns the error of more replicas than service.yaml allows, with how many can be added.
func (o *replicaOptions) additionError(err error) error {
	var bounds *deploy.BoundsError
	if !errors.As(err, &bounds) {
		return err
	}
	running, next := bounds.Count-o.count, ""
	if free := bounds.Max - running; free > 0 {
		next = fmt.Sprintf("pass --count %d, or ", free)
	}
	return usage(fmt.Errorf("--count %d: %s has %s in %s, and replicas.max in service.yaml is %d", o.count, bounds.Model, printable.Count(running, "replica"), bounds.Region, bounds.Max),
		next+"raise replicas.max in service.yaml, then run 'skyserve up'")
}

// regionIndex returns the index in spec.Regions of a region; name is the region or its place.
func regionIndex(spec *service.Spec, name string) (int, error) {
	at := slices.IndexFunc(spec.Regions, func(r service.RegionSpec) bool { return string(r.Name) == name || r.Name.ShortName() == name })
	if at < 0 {
		return at, usage(fmt.Errorf("the service has no region %q", name), "the regions are "+strings.Join(regionNames(spec), ", "))
	}
	return at, nil
}

// regionNames returns the names of a service's regions.
func regionNames(spec *service.Spec) (names []string) {
	for _, r := range spec.Regions {
		names = append(names, string(r.Name))
	}
	return names
}

// listedReplica is a replica with its region.
type listedReplica struct {
	region service.Region
	deploy.MachineStatus
}

// listReplicas prints the replicas.
func (o *replicaOptions) listReplicas(ctx context.Context, out, errOut io.Writer) error {
	format, err := o.list.parse()
	if err != nil {
		return err
	}
	svc, err := findService(o.service)
	if err != nil {
		return err
	}
	all, err := o.replicas(ctx, svc, errOut)
	if err != nil {
		return err
	}
	replicas := []deploy.MachineStatus{}
	for _, r := range all {
		replicas = append(replicas, r.MachineStatus)
	}
	return format.write(out, replicas, replicaTable(all, time.Now()))
}

// replicaTable returns the table of replicas.
func replicaTable(all []listedReplica, now time.Time) list {
	l := list{titles: []string{"ID", "REGION", titleState, "MODEL", "GPU", "BALANCER", "REASON"}, wide: slices.Concat([]string{"URL", "OFFERING", "$/H", "VERSION", "UPTIME"}, gpuTitles), fitting: printable.Fitting{Optional: []string{"BALANCER"}}}
	for _, r := range all {
		offering, price := offeringCells(r.region, r.MachineStatus)
		l.rows = append(l.rows, listRow{
			r.ID, []string{r.ID, string(r.region), string(r.State), r.Model, r.GPU, r.Balancer, reasonText(r.Reason, r.Desired)}, append([]string{r.URL, offering, price, r.Version, uptimeCell(r.MachineStatus, now)}, gpuCells(r.MachineStatus)...),
		})
	}
	return l
}

// replicas returns the replicas of a service. It prints the regions that could not be
// listed to errOut.
func (o *replicaOptions) replicas(ctx context.Context, svc local.Service, errOut io.Writer) ([]listedReplica, error) {
	view, err := openView(ctx, &o.clouds, svc, "listing the replicas")
	if err != nil {
		return nil, err
	}
	status, err := view.inspector.Status(ctx)
	if err != nil {
		return nil, cloudError(err)
	}
	for _, problem := range status.Problems {
		printMessage(errOut, labelProblem, "%s", problem)
	}
	var all []listedReplica
	for _, region := range status.Regions {
		for _, m := range region.Replicas {
			all = append(all, listedReplica{region.Name, m})
		}
	}
	return all, nil
}
