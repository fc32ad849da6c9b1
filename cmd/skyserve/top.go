package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/telemetry"
	"skyserve/tui"
)

// minInterval is the shortest time between two snapshots: balancers hear from
// their replicas and peers no more often.
const minInterval = 100 * time.Millisecond

// topOptions are the flags of `skyserve top`.
type topOptions struct {
	name     string
	admins   []string
	once     bool
	output   string
	interval time.Duration
	theme    string
	ascii    bool
	noColor  bool
}

func newTopCmd() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top [NAME]",
		Short: "Show a running service live, by region and by replica",
		Long: `Show a running service live: each region's balancers, queue, traffic, latency
and prefix hits, and each replica's state and load. Press ? for the keys.

Where standard output is no terminal, one frame is printed as plain text.`,
		Example: `  skyserve top
  skyserve top chat --once
  skyserve top --once -o json
  skyserve top --admin http://127.0.0.1:8101,http://127.0.0.1:8102`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(fmt.Errorf("top takes one name, got %d", len(args)), "")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.name = args[0]
			}
			o.noColor, _ = cmd.Flags().GetBool("no-color")
			if !cmd.Flags().Changed("ascii") {
				o.ascii = !tui.UTF8Locale(os.Getenv)
			}
			return runTop(cmd.Context(), &o, os.Stdin, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.admins, "admin", nil, "admin `URL` of a balancer, repeatable or with commas; the first that answers is shown (default: the running service's)")
	flags.BoolVar(&o.once, "once", false, "print one frame and leave")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json; json prints one snapshot and leaves")
	flags.DurationVar(&o.interval, "interval", time.Second, "time between two snapshots, at least 100ms")
	flags.StringVar(&o.theme, "theme", tui.ThemeAuto, strings.Join(tui.ThemeNames(), ", "))
	flags.BoolVar(&o.ascii, "ascii", false, "draw with ASCII alone (default: as the locale says)")
	return cmd
}

// runTop shows the service: live on a terminal, one frame anywhere else.
func runTop(ctx context.Context, o *topOptions, in *os.File, out io.Writer) error {
	theme, err := o.check()
	if err != nil {
		return err
	}
	source, err := o.source()
	if err != nil {
		return err
	}
	file, _ := out.(*os.File)
	switch {
	case o.output == "json":
		return printSnapshot(ctx, source, out)
	case o.once || file == nil || !tui.Interactive(in, file, os.Getenv):
		return printFrame(ctx, source, theme, file, out)
	}
	return tui.Run(ctx, tui.Config{Fetcher: source, Interval: o.interval, Theme: theme, Zone: time.Local}, in, out)
}

// check refuses flags that make no sense and chooses the theme.
func (o *topOptions) check() (tui.Theme, error) {
	if o.output != "text" && o.output != "json" {
		return tui.Theme{}, usage(fmt.Errorf("-o %s: want text or json", o.output), "")
	}
	if o.interval < minInterval {
		return tui.Theme{}, usage(fmt.Errorf("reading --interval: must be at least %s, got %s", minInterval, o.interval), "")
	}
	for _, a := range o.admins {
		if strings.TrimSpace(a) == "" {
			return tui.Theme{}, usage(fmt.Errorf("reading --admin: want a URL, got %q", a), "")
		}
	}
	theme, err := tui.NewTheme(o.theme, o.ascii)
	if err != nil {
		return tui.Theme{}, usage(fmt.Errorf("reading --theme: %w", err), "")
	}
	if o.noColor || os.Getenv("NO_COLOR") != "" {
		return tui.NewTheme(tui.ThemeMono, o.ascii)
	}
	return theme, nil
}

// source is the admins that were named, or those of the running service.
func (o *topOptions) source() (*tui.Source, error) {
	service, admins, err := findAdmins(o.name, o.admins)
	if err != nil {
		return nil, err
	}
	return tui.NewSource(service, admins...), nil
}

// fetchOnce fetches the one snapshot that is printed.
func fetchOnce(ctx context.Context, source *tui.Source) (*telemetry.Snapshot, error) {
	s, _, err := source.Fetch(ctx)
	if err != nil {
		return nil, failed(fmt.Errorf("fetching a snapshot: %w", err), "'skyserve status' says whether the service is up; --admin URL names another balancer")
	}
	return s, nil
}

// printSnapshot prints the snapshot as one JSON document.
func printSnapshot(ctx context.Context, source *tui.Source, out io.Writer) error {
	s, err := fetchOnce(ctx, source)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil {
		return fmt.Errorf("writing the snapshot: %w", err)
	}
	return nil
}

// printFrame prints one frame with every replica: as wide as the terminal, or
// plain and as wide as need be where out is none.
func printFrame(ctx context.Context, source *tui.Source, theme tui.Theme, file *os.File, out io.Writer) error {
	s, err := fetchOnce(ctx, source)
	if err != nil {
		return err
	}
	s.At = s.At.Local()
	columns := 0
	if file != nil {
		columns = tui.Columns(file)
	}
	if columns == 0 {
		theme = theme.Plain()
	}
	return tui.PrintFrame(out, tui.Render(s, nil, columns, 0, theme))
}
