package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/telemetry"
	"skyserve/provision/local"
)

// statusInterval is the refresh interval of --watch.
const statusInterval = 2 * time.Second

// statusOptions are the flags of `skyserve status`.
type statusOptions struct {
	name  string
	watch bool
	list  outputFlags
	// exitCode makes a service that is not well exit 1.
	exitCode bool
	clouds   cloudFlags
}

// errUnwell ends status --exit-code; the output says why.
var errUnwell = &exitError{code: exitFailed}

// statusPage is a service's status as a document and as a table.
type statusPage struct {
	status *deploy.ServiceStatus
	table  func(w io.Writer, format outputFormat) error
}

func newStatusCmd() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:        "status [NAME]",
		SuggestFor: []string{"get", "ps", "ls", "list", "describe", "show"},
		Short:      "Show the status of a service",
		Long: `Show the regions of a service with their balancers, replicas, addresses and cost. A
process that does not respond within 2 s is shown with the reason.

A machine of a balancer, such as lb-us-0, may also run a controller and a member of the
store. Status calls each of them by the name of the machine: "leader lb-us-0" is the
controller on it. The row "controller" is the controller that leads; its reason names the
machine, or says that no leader is known yet. The line "controller:" lists the leader and
the standby controllers.

For regions in clouds, status lists their resources (timeout 10 s), queries the agent of
every VM (timeout 2 s), and shows drift: what 'skyserve up' would change, such as missing
VMs or modified firewalls. Regions and VMs are queried concurrently, so one that hangs
does not delay the others. Machines of static regions are shown as a balancer reports
them.

With --exit-code, status exits 1 if the service is not READY or has a critical alert.
Replicas that an operator or a plan drained or donated do not count.`,
		Example: `  skyserve status
  skyserve status chat --watch
  skyserve status -o json
  skyserve status -o jsonpath='{.regions[*].replicas[*].id}'
  skyserve status --exit-code > /dev/null || echo "the service needs attention"`,
		Args: argsBetween(0, 1, "[NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := setService(&o.name, args, "NAME"); err != nil {
				return err
			}
			return runStatus(cmd.Context(), &o, cmd.OutOrStdout())
		},
	}
	registerService(cmd, &o.name)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "refresh every 2 s until Ctrl-C")
	o.list.registerList(cmd)
	cmd.Flags().BoolVar(&o.exitCode, "exit-code", false, "exit 1 if the service is not READY or has a critical alert")
	o.clouds.registerFlags(cmd.Flags())
	return cmd
}

func runStatus(ctx context.Context, o *statusOptions, out io.Writer) error {
	format, err := o.list.parse()
	if err != nil {
		return err
	}
	if o.watch && o.exitCode {
		return usage(errors.New("--exit-code cannot be combined with --watch"), "")
	}
	svc, err := findService(o.name)
	if err != nil {
		return err
	}
	observe, err := newObserveFunc(ctx, o, svc)
	if err != nil {
		return err
	}
	if !o.watch {
		return showStatus(ctx, observe, o, format, out)
	}
	for {
		if err := showStatus(ctx, observe, o, format, out); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // Ctrl-C ends --watch
		case <-time.After(statusInterval):
		}
	}
}

// observeFunc observes a service.
type observeFunc func(context.Context) (statusPage, error)

// newObserveFunc returns the function that observes a service.
func newObserveFunc(ctx context.Context, o *statusOptions, svc local.Service) (observeFunc, error) {
	view, err := openView(ctx, &o.clouds, svc, "showing the status")
	if err != nil {
		return nil, err
	}
	return view.observeService, nil
}

// showStatus observes a service once and prints its status.
func showStatus(ctx context.Context, observe observeFunc, o *statusOptions, format outputFormat, out io.Writer) error {
	page, err := observe(ctx)
	if err != nil {
		return err
	}
	switch {
	case format.isDocument():
		err = format.writeDocument(out, page.status)
	case o.watch && isTerminal(out):
		return redrawScreen(out, func(w io.Writer) error { return page.table(w, format) })
	default:
		err = page.table(out, format)
	}
	if err == nil && o.exitCode && !isWell(page.status) {
		return errUnwell
	}
	return err
}

// isWell reports whether a service is ready and has no critical alert.
func isWell(s *deploy.ServiceStatus) bool {
	return s.State == deploy.StateReady && !slices.ContainsFunc(s.Alerts, func(a telemetry.Alert) bool { return a.Severity == telemetry.SeverityCritical })
}

// writeName prints which balancers the service's name resolves to, and why not to the others.
// Without a name it prints nothing.
func writeName(w io.Writer, d *deploy.DNSStatus) {
	if d == nil {
		return
	}
	var given, kept []string
	for _, r := range d.Records {
		if r.Healthy {
			given = append(given, r.ID)
		} else {
			kept = append(kept, fmt.Sprintf("%s (%s)", r.ID, r.Reason))
		}
	}
	line := fmt.Sprintf("name: %s (%s)", d.Name, d.Provider)
	if len(given) > 0 {
		line += " resolves to " + strings.Join(given, ", ")
	}
	if len(kept) > 0 {
		line += "; omits " + strings.Join(kept, ", ")
	}
	fmt.Fprintln(w, line)
}

// reasonText adds to a reason that the object is not in service.yaml.
func reasonText(why string, wanted bool) string {
	if wanted {
		return why
	}
	return strings.Trim(why+"; not in service.yaml", "; ")
}
