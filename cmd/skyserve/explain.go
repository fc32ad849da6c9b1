package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/telemetry"
	"skyserve/lbd/explain"
	"skyserve/lbd/proxy"
	"skyserve/tui"
)

// explainWidth is the page width if standard output is not a terminal.
const explainWidth = 80

// explainOptions are the flags of `skyserve explain`.
type explainOptions struct {
	request string
	name    string
	admins  []string
	output  outputFlags
}

func newExplainCmd() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:        "explain REQUEST_ID",
		SuggestFor: []string{"trace", "why"},
		Short:      "Explain a routing decision",
		Long: fmt.Sprintf(`Explain how a request was routed: how long it was queued and why, the state of every
candidate at that time, why one was chosen, which attempts failed, and how the request
ended. A forwarded request is shown with the decisions of both balancers.

REQUEST_ID is the X-Request-ID header of the response; clients may set it. Each balancer
keeps its latest %d requests in memory.`, proxy.DefaultLimits().MaxDecisions),
		Example: `  skyserve explain req-8f2c
  skyserve explain req-8f2c --service chat
  skyserve explain req-8f2c -o json
  skyserve explain req-8f2c --admin http://127.0.0.1:8101,http://127.0.0.1:8102`,
		Args: oneArgument("REQUEST_ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.request = args[0]
			if len(args) == 2 { // the form before --service
				if err := o.checkServiceArgument(args); err != nil {
					return err
				}
				warnServiceArgument(cmd.ErrOrStderr(), cmd, args[1])
				if err := setService(&o.name, args[1:], "NAME"); err != nil {
					return err
				}
			}
			return runExplain(cmd.Context(), &o, cmd.OutOrStdout())
		},
	}
	registerService(cmd, &o.name)
	flags := cmd.Flags()
	flags.StringSliceVar(&o.admins, "admin", nil, "admin `URL` of a balancer, repeatable or comma-separated; all are queried (default: the running service's)")
	o.output.registerDocument(cmd)
	return cmd
}

// checkServiceArgument returns an error if the second argument of the form before --service is no service. An operator
// who passes the service first, as to 'skyserve logs', learns the form.
func (o *explainOptions) checkServiceArgument(args []string) error {
	if o.name != "" || len(o.admins) > 0 {
		return nil
	}
	if _, err := findService(args[1]); err == nil {
		return nil
	}
	form := "REQUEST_ID --service NAME"
	if _, err := findService(args[0]); err == nil {
		form = args[1] + " --service " + args[0]
	}
	return usage(fmt.Errorf("accepts 1 argument: REQUEST_ID; received 2, and there is no service %q", args[1]), "pass the service by --service: skyserve explain "+form)
}

func runExplain(ctx context.Context, o *explainOptions, out io.Writer) error {
	format, err := o.output.parse()
	if err != nil {
		return err
	}
	sources, err := o.sources(ctx)
	if err != nil {
		return err
	}
	explanation := explain.Gather(ctx, o.name, o.request, sources)
	if err := ctx.Err(); err != nil {
		return err
	}
	if format.isDocument() {
		if err := format.writeDocument(out, explanation); err != nil {
			return err
		}
	}
	if !explanation.Found() {
		return notFound(errors.New(explanation.Missing(time.Local)), strings.Join(notRecordedHints(len(o.admins) > 0), "; "))
	}
	if format.isDocument() {
		return nil
	}
	return explanation.WriteText(out, explainColumns(out), time.Local)
}

// sources checks the flags and returns the balancers to query.
func (o *explainOptions) sources(ctx context.Context) ([]explain.Source, error) {
	if strings.TrimSpace(o.request) == "" {
		return nil, usage(fmt.Errorf("REQUEST_ID: must not be empty, got %q", o.request), "")
	}
	name, admins, err := findAdmins(ctx, o.name, o.admins)
	if err != nil {
		return nil, err
	}
	o.name = name
	return explainSources(admins), nil
}

// explainSources converts admin clients to sources of an explanation.
func explainSources(admins []*telemetry.Client) []explain.Source {
	sources := make([]explain.Source, 0, len(admins))
	for _, a := range admins {
		sources = append(sources, a)
	}
	return sources
}

// explainColumns returns the page width: the terminal's, or explainWidth.
func explainColumns(out io.Writer) int {
	if f := fileOf(out); f != nil {
		if columns := tui.Columns(f); columns > 0 {
			return columns
		}
	}
	return explainWidth
}

// notRecordedHints returns the next steps for a request that no balancer has a record of. 'skyserve status' knows no balancer
// that is only given by the address of --admin.
func notRecordedHints(byAddress bool) []string {
	respond := "'skyserve status' shows whether balancers respond"
	if byAddress {
		respond = "pass the admin addresses of all balancers that may have received it (--admin URL,URL)"
	}
	return []string{
		respond,
		"the id is the response's X-Request-ID header",
		"a balancer keeps the records of its latest requests in memory until it restarts",
		"a request that was rejected before a replica was chosen has no record, such as one for an unknown model: the access log (balancer.access_log) has its error code",
	}
}
