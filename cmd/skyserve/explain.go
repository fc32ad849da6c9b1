package main

import (
	"context"
	"encoding/json"
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

// explainWidth is how wide a page is where standard output is no terminal.
const explainWidth = 80

// explainOptions are the flags of `skyserve explain`.
type explainOptions struct {
	request string
	name    string
	admins  []string
	output  string
}

func newExplainCmd() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain REQUEST_ID [NAME]",
		Short: "Tell why a request went where it went",
		Long: fmt.Sprintf(`Tell why a request went where it went: how long it waited and why, what every
place that it could have gone to looked like then, why one was chosen, what
failed on the way, and how it ended. Of a request that was forwarded, the parts
of both balancers are shown.

The id is what the answer carried as X-Request-ID; a client may choose it. Each
balancer remembers its latest requests, %d of them, as long as it runs.`, proxy.DefaultLimits().Decisions),
		Example: `  skyserve explain req-8f2c
  skyserve explain req-8f2c chat
  skyserve explain req-8f2c -o json
  skyserve explain req-8f2c --admin http://127.0.0.1:8101,http://127.0.0.1:8102`,
		Args: argsBetween(1, 2, "REQUEST_ID [NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.request = args[0]
			if len(args) == 2 {
				o.name = args[1]
			}
			return runExplain(cmd.Context(), &o, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.admins, "admin", nil, "admin `URL` of a balancer, repeatable or with commas; each is asked (default: the running service's)")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json")
	return cmd
}

func runExplain(ctx context.Context, o *explainOptions, out io.Writer) error {
	sources, err := o.sources()
	if err != nil {
		return err
	}
	story := explain.Gather(ctx, o.name, o.request, sources)
	if err := ctx.Err(); err != nil {
		return err
	}
	if o.output == "json" {
		if err := json.NewEncoder(out).Encode(story); err != nil {
			return fmt.Errorf("writing the story: %w", err)
		}
	}
	if !story.Found() {
		return failed(errors.New(story.Missing(time.Local)), "the id is in the answer's X-Request-ID; a balancer that was started again remembers nothing from before")
	}
	if o.output == "json" {
		return nil
	}
	return story.WriteText(out, explainColumns(out), time.Local)
}

// sources checks the flags and finds the balancers to ask.
func (o *explainOptions) sources() ([]explain.Source, error) {
	if err := checkOutput(o.output); err != nil {
		return nil, err
	}
	if strings.TrimSpace(o.request) == "" {
		return nil, usage(fmt.Errorf("reading REQUEST_ID: must not be empty, got %q", o.request), "")
	}
	name, admins, err := findAdmins(o.name, o.admins)
	if err != nil {
		return nil, err
	}
	o.name = name
	return explainSources(admins), nil
}

// explainSources are balancers as those who tell of a request.
func explainSources(admins []*telemetry.Client) []explain.Source {
	sources := make([]explain.Source, 0, len(admins))
	for _, a := range admins {
		sources = append(sources, a)
	}
	return sources
}

// explainColumns is how wide the page may be.
func explainColumns(out io.Writer) int {
	if f := fileOf(out); f != nil {
		if columns := tui.Columns(f); columns > 0 {
			return columns
		}
	}
	return explainWidth
}
