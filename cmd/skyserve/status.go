package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/printable"
	"skyserve/provision/local"
)

// statusEvery is how often --watch looks again.
const statusEvery = 2 * time.Second

// statusOptions are the flags of `skyserve status`.
type statusOptions struct {
	name   string
	watch  bool
	output string
	clouds cloudFlags
}

// statusPage is a service as it was a moment ago, for programs and for people.
type statusPage struct {
	document any
	table    func(io.Writer) error
}

func newStatusCmd() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show how a service does: regions, balancers, replicas, cost",
		Long: `Show the regions of a service with their balancers, replicas, endpoints and
cost. What does not answer is shown with its reason; nothing is waited for
longer than a second.

Of a service with regions in clouds the clouds are asked what there is (at most 10 s),
every machine's agent how it does (at most 2 s), and what 'skyserve up' would change:
machines that are missing, firewalls that somebody changed. A region or a machine that
hangs hides no other. Machines of static regions are seen with 'skyserve top'.`,
		Example: `  skyserve status
  skyserve status chat --watch
  skyserve status -o json`,
		Args: argsBetween(0, 1, "[NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.name = args[0]
			}
			return runStatus(cmd.Context(), &o, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "show it again every 2 s, until ctrl-C")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "text or json (with --watch: one document a line)")
	o.clouds.add(cmd.Flags())
	return cmd
}

func runStatus(ctx context.Context, o *statusOptions, out io.Writer) error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	svc, err := findService(o.name)
	if err != nil {
		return err
	}
	look, err := statusOf(ctx, o, svc)
	if err != nil {
		return err
	}
	if !o.watch {
		return showStatus(ctx, look, o, out)
	}
	for {
		if err := showStatus(ctx, look, o, out); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // ctrl-C is how one leaves
		case <-time.After(statusEvery):
		}
	}
}

// lookup looks at a service.
type lookup func(context.Context) (statusPage, error)

// statusOf is how one looks at a service.
func statusOf(ctx context.Context, o *statusOptions, svc local.Service) (lookup, error) {
	view, err := openView(ctx, &o.clouds, svc, "asking how it does")
	if err != nil {
		return nil, err
	}
	return view.look, nil
}

// showStatus shows one status.
func showStatus(ctx context.Context, look lookup, o *statusOptions, out io.Writer) error {
	page, err := look(ctx)
	if err != nil {
		return err
	}
	if o.output == "json" {
		return json.NewEncoder(out).Encode(page.document)
	}
	var text bytes.Buffer
	if err := page.table(&text); err != nil {
		return err
	}
	if o.watch && isTerminal(out) {
		return redrawScreen(out, text.String())
	}
	_, err = out.Write(text.Bytes())
	return err
}

// statusRow writes a row of a status's table.
func statusRow(t *printable.Table, cells ...string) {
	for i, c := range cells {
		cells[i] = cmp.Or(c, "-")
	}
	t.Row(cells...)
}

// writeName writes where the name of a service leads; nothing when it has none.
func writeName(w io.Writer, d *fleet.DNSStatus) {
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
		line += " leads to " + strings.Join(given, ", ")
	}
	if len(kept) > 0 {
		line += "; not to " + strings.Join(kept, ", ")
	}
	fmt.Fprintln(w, line)
}

// reason adds to a reason that the service.yaml does not ask for the object.
func reason(why string, wanted bool) string {
	if wanted {
		return why
	}
	return strings.Trim(why+"; not in the service.yaml", "; ")
}
