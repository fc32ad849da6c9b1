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
	output   outputFlags
	format   outputFormat
	interval time.Duration
	theme    string
	ascii    bool
	noColor  bool

	count    int
	countSet bool // -n is set
	record   string
	replay   string
	speed    float64
	speedSet bool // --speed is set
	ssh      string
	sshSet   bool // --ssh is set
}

func newTopCmd() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:        "top [NAME]",
		SuggestFor: []string{"dashboard", "ui", "metrics", "monitor"},
		Short:      "Show a live dashboard of a running service",
		Long: `Show a live dashboard of a running service: each region's balancers, queue, traffic,
latency and prefix hits, and each replica's state and load. Press ? for the keys.

If standard output is not a terminal, it prints one frame as plain text. In printed
frames SLO MISS is -, and ERR%, a column that appears once requests have failed, counts
since the balancers started.

--record writes snapshots to a file, one per line (compressed if FILE ends in .gz), and
--replay shows them again. If this machine cannot reach the balancers, --ssh runs skyserve on
a host that can: pass the NAME that 'skyserve status' accepts there, or --admin with a URL
that this host can reach.`,
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
				return usage(fmt.Errorf("accepts at most 1 argument, received %d", len(args)), "")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := setService(&o.name, args, "NAME"); err != nil {
				return err
			}
			o.noColor, _ = cmd.Flags().GetBool("no-color")
			o.countSet, o.speedSet, o.sshSet = cmd.Flags().Changed("count"), cmd.Flags().Changed("speed"), cmd.Flags().Changed("ssh")
			if !cmd.Flags().Changed("ascii") {
				o.ascii = !tui.UTF8Locale(os.Getenv)
			}
			return runTop(cmd.Context(), &o, os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	registerService(cmd, &o.name)
	flags := cmd.Flags()
	flags.StringSliceVar(&o.admins, "admin", nil, "admin `URL` of a balancer, repeatable or comma-separated; the first that responds is used (default: the running service's)")
	flags.BoolVar(&o.once, "once", false, "print one frame of the overview and the replicas, and exit")
	flags.IntVarP(&o.count, "count", "n", 0, "print `COUNT` frames, one per --interval, and exit; with -o json, one snapshot per line")
	o.output.registerDocument(cmd)
	flags.Lookup("output").Usage += "; all but text print one snapshot, or -n of them, and exit"
	flags.DurationVar(&o.interval, "interval", time.Second, "time between two snapshots, at least 100ms")
	flags.StringVar(&o.theme, "theme", tui.ThemeAuto, "colour theme: "+strings.Join(tui.ThemeNames(), ", "))
	flags.BoolVar(&o.ascii, "ascii", false, "draw with ASCII characters only (default: depends on the locale)")
	flags.StringVar(&o.record, "record", "", "write every snapshot to `FILE`, truncated at start")
	flags.StringVar(&o.replay, "replay", "", "show the snapshots recorded in `FILE`")
	flags.Float64Var(&o.speed, "speed", 1, "playback speed of --replay, such as 60 for 60x")
	flags.StringVar(&o.ssh, "ssh", "", "run skyserve on `[USER@]HOST` through the installed ssh")
	return cmd
}

// runTop shows the dashboard on a terminal, and prints frames or snapshots otherwise.
func runTop(ctx context.Context, o *topOptions, in *os.File, out, errOut io.Writer) (err error) {
	theme, err := o.checkOptions()
	if err != nil {
		return err
	}
	v, err := o.view(ctx)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, v.Close()) }()
	file := fileOf(out)
	if o.format.isDocument() || o.once || o.countSet || file == nil || !tui.Interactive(in, file, os.Getenv) {
		return o.printFrames(ctx, v, o.printer(theme, file, out), errOut)
	}
	if o.ssh != "" { // ssh may prompt for a password while the terminal is still free
		if _, _, err := v.Fetch(ctx); err != nil {
			return failed(fmt.Errorf("fetching a snapshot: %w", err), o.hint(err))
		}
	}
	speed := 0.0
	if o.replay != "" {
		speed = o.speed
	}
	return tui.Run(ctx, tui.Config{Fetcher: v, Operator: v.operator, Interval: o.interval, ReplaySpeed: speed, Theme: theme, Zone: time.Local}, in, rawWriter(out))
}

// checkOptions validates the flags and chooses the theme.
func (o *topOptions) checkOptions() (tui.Theme, error) {
	var err error
	if o.format, err = o.output.parse(); err != nil {
		return tui.Theme{}, err
	}
	if o.interval < tui.MinInterval {
		return tui.Theme{}, usage(fmt.Errorf("--interval: must be at least %s, got %s", tui.MinInterval, o.interval), "")
	}
	if err := o.checkView(); err != nil {
		return tui.Theme{}, err
	}
	theme, err := tui.NewTheme(o.theme, o.ascii)
	if err != nil {
		return tui.Theme{}, usage(fmt.Errorf("--theme: %w", err), didYouMean(o.theme, tui.ThemeNames()))
	}
	if o.noColor || os.Getenv("NO_COLOR") != "" {
		return tui.NewTheme(tui.ThemeMono, o.ascii)
	}
	return theme, nil
}
