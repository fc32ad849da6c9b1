package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/tui"
)

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

	count      int
	counted    bool // -n stands on the command line
	record     string
	replay     string
	speed      float64
	speedAsked bool // --speed stands on the command line
	ssh        string
	sshAsked   bool // --ssh stands on the command line
}

func newTopCmd() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top [NAME]",
		Short: "Show a running service live, by region and by replica",
		Long: `Show a running service live: each region's balancers, queue, traffic, latency
and prefix hits, and each replica's state and load. Press ? for the keys.

Where standard output is no terminal, one frame is printed as plain text.

--record writes what is shown, a snapshot a line (compressed where FILE ends in
.gz), and --replay shows it again. --ssh shows a service whose balancers are to be
asked from another machine only: skyserve runs there, with the names and --admin
URLs that it knows.`,
		Example: `  skyserve top
  skyserve top chat --once
  skyserve top --once -o json
  skyserve top --admin http://127.0.0.1:8101,http://127.0.0.1:8102
  skyserve top -o json -n 60 --interval 10s
  skyserve top --record night.jsonl.gz
  skyserve top --replay night.jsonl.gz --speed 60
  skyserve top --ssh ops@gpu-1 chat`,
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
			o.counted, o.speedAsked, o.sshAsked = cmd.Flags().Changed("count"), cmd.Flags().Changed("speed"), cmd.Flags().Changed("ssh")
			if !cmd.Flags().Changed("ascii") {
				o.ascii = !tui.UTF8Locale(os.Getenv)
			}
			return runTop(cmd.Context(), &o, os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.admins, "admin", nil, "admin `URL` of a balancer, repeatable or with commas; the first that answers is shown (default: the running service's)")
	flags.BoolVar(&o.once, "once", false, "print one frame and leave")
	flags.IntVarP(&o.count, "count", "n", 0, "print `COUNT` frames, --interval apart, and leave; with -o json one snapshot a line")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json; json prints one snapshot and leaves, or -n of them")
	flags.DurationVar(&o.interval, "interval", time.Second, "time between two snapshots, at least 100ms")
	flags.StringVar(&o.theme, "theme", tui.ThemeAuto, strings.Join(tui.ThemeNames(), ", "))
	flags.BoolVar(&o.ascii, "ascii", false, "draw with ASCII alone (default: as the locale says)")
	flags.StringVar(&o.record, "record", "", "`FILE` that every snapshot is written to, anew at each start")
	flags.StringVar(&o.replay, "replay", "", "show the record in `FILE` instead of a running service")
	flags.Float64Var(&o.speed, "speed", 1, "how many times as fast --replay plays")
	flags.StringVar(&o.ssh, "ssh", "", "`[USER@]HOST` to ask by way of, with the ssh that is installed")
	return cmd
}

// runTop shows the service: live on a terminal, one frame anywhere else.
func runTop(ctx context.Context, o *topOptions, in *os.File, out, talk io.Writer) (err error) {
	theme, err := o.check()
	if err != nil {
		return err
	}
	v, err := o.view(ctx)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, v.Close()) }()
	file := fileOf(out)
	if o.output == "json" || o.once || o.counted || file == nil || !tui.Interactive(in, file, os.Getenv) {
		return o.print(ctx, v, o.printer(theme, file, out), talk)
	}
	if o.ssh != "" { // which may ask for a password: the terminal is free for that now
		if _, _, err := v.Fetch(ctx); err != nil {
			return failed(fmt.Errorf("fetching a snapshot: %w", err), o.hint())
		}
	}
	return tui.Run(ctx, tui.Config{Fetcher: v, Operator: v.operator, Interval: o.interval, Theme: theme, Zone: time.Local}, in, unguarded(out))
}

// check refuses flags that make no sense and chooses the theme.
func (o *topOptions) check() (tui.Theme, error) {
	if o.output != "text" && o.output != "json" {
		return tui.Theme{}, usage(fmt.Errorf("-o %s: want text or json", o.output), "")
	}
	if o.interval < tui.LeastInterval {
		return tui.Theme{}, usage(fmt.Errorf("reading --interval: must be at least %s, got %s", tui.LeastInterval, o.interval), "")
	}
	if err := o.checkView(); err != nil {
		return tui.Theme{}, err
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
