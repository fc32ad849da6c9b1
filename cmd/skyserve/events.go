package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/printable"
	"skyserve/internal/telemetry"
)

const (
	// defaultEvents is the number of events without --limit: a screen.
	defaultEvents = 50
	// eventsPoll is the interval of `events --watch`.
	eventsPoll = time.Second
	// watchOverlap is the time for which --watch reads events again: clocks of machines differ, and events
	// of an outage are stored after it.
	watchOverlap = 10 * time.Minute
	// watchLongPoll is the interval of the reads that also find events that were stored later than watchOverlap: those
	// of a process that could not reach the store for longer. They read back to the begin of the watch, at
	// most watchLongSpan.
	watchLongPoll = time.Minute
	watchLongSpan = 24 * time.Hour
)

// eventsOptions are the flags of `skyserve events`.
type eventsOptions struct {
	name   string
	admins []string
	watch  bool
	since  string
	kinds  []string
	region string
	limit  int
	list   outputFlags
	poll   time.Duration  // of --watch; 0 = eventsPoll
	zone   *time.Location // of the table's times; nil = local
}

func newEventsCmd() *cobra.Command {
	var o eventsOptions
	cmd := &cobra.Command{
		Use:        "events [NAME]",
		SuggestFor: []string{"history", "audit"},
		Short:      "Show who or what changed a service, when and why",
		Long: `Show the events of a service, oldest first: launches, terminations and failures of
machines, interruptions by the cloud, plans, changes by the autoscaler and by operators,
rollouts, reloads of the configuration, certificates, and changes of the leader. Events
are kept for 35 days.

ACTOR is operator:NAME, with the name of the operator's certificate (user@host in a local
service), or controller, autoscaler, cloud or balancer. The newest --limit events are shown.
--watch prints new events until Ctrl-C.

Kinds of events:

` + eventKindsHelp(),
		Example: `  skyserve events
  skyserve events chat --since 2h
  skyserve events --kind launch,termination --region us
  skyserve events --since 2026-11-24T12:00:00Z -o json
  skyserve events --watch`,
		Args: argsBetween(0, 1, "[NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := setService(&o.name, args, "NAME"); err != nil {
				return err
			}
			return runEvents(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	registerService(cmd, &o.name)
	flags := cmd.Flags()
	flags.BoolVarP(&o.watch, "watch", "w", false, "print new events until Ctrl-C")
	flags.StringVar(&o.since, "since", "", "start of the period: a duration such as 2h or 7d, or a time such as 2026-11-24T12:00:00Z (default: all)")
	flags.StringSliceVar(&o.kinds, "kind", nil, "only events of this `KIND` (see above), repeatable or comma-separated")
	flags.StringVar(&o.region, "region", "", "only events in this `REGION`, such as aws/us-east-1 or us-east-1")
	flags.IntVar(&o.limit, "limit", defaultEvents, fmt.Sprintf("maximum number of events, from 1 to %d", telemetry.MaxEvents))
	flags.StringSliceVar(&o.admins, "admin", nil, "admin `URL` of a balancer, repeatable or comma-separated (default: the running service's)")
	o.list.registerList(cmd)
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(eventKinds(), cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
	return cmd
}

// eventKindsHelp lists the kinds of events with their meanings.
func eventKindsHelp() string {
	var b strings.Builder
	for _, k := range telemetry.EventKinds() {
		fmt.Fprintf(&b, "    %-15s  %s\n", k, k.Meaning())
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// eventKinds returns the known kinds of events.
func eventKinds() (kinds []string) {
	for _, k := range telemetry.EventKinds() {
		kinds = append(kinds, string(k))
	}
	return kinds
}

func runEvents(ctx context.Context, o *eventsOptions, out, errOut io.Writer) error {
	format, err := o.list.parse()
	if err != nil {
		return err
	}
	q, err := o.query(time.Now())
	if err != nil {
		return err
	}
	_, admins, err := findAdmins(ctx, o.name, o.admins)
	if err != nil {
		return err
	}
	var earlier *telemetry.EventReport // events that --watch must not print, although --limit omits them
	watch := newEventWatch(q, time.Now())
	if o.watch {
		if earlier, err = fetchEvents(ctx, admins, watch.query(watch.begun)); err != nil {
			return withAdminHint(err, o.admins)
		}
	}
	report, err := fetchEvents(ctx, admins, q)
	if err != nil {
		return withAdminHint(err, o.admins)
	}
	if o.region != "" && len(report.Events) == 0 {
		if err := checkEventRegion(ctx, admins, o.region); err != nil {
			return err
		}
	}
	p := &eventPrinter{out: out, errOut: errOut, format: format, shown: map[string]bool{}, zone: cmp.Or(o.zone, time.Local)}
	if err := p.printReport(report); err != nil || !o.watch {
		return err
	}
	for _, e := range earlier.Events {
		p.shown[e.ID] = true
	}
	return p.watchEvents(ctx, admins, watch, cmp.Or(o.poll, eventsPoll))
}

// query returns the query of the flags.
func (o *eventsOptions) query(now time.Time) (q telemetry.EventQuery, err error) {
	if o.limit < 1 || o.limit > telemetry.MaxEvents {
		return q, usage(fmt.Errorf("--limit: must be from 1 to %d, got %d", telemetry.MaxEvents, o.limit), "")
	}
	q = telemetry.EventQuery{Limit: o.limit, Region: o.region}
	for _, kind := range o.kinds {
		if kinds := eventKinds(); !slices.Contains(kinds, kind) {
			return q, usage(fmt.Errorf("--kind: must be one of %s, got %q", strings.Join(kinds, ", "), kind), didYouMean(kind, kinds))
		}
		q.Kinds = append(q.Kinds, telemetry.EventKind(kind))
	}
	if o.since == "" {
		return q, nil
	}
	if q.Since, err = sinceTime(o.since, now); err != nil {
		return q, usage(fmt.Errorf("--since: %w", err), "")
	}
	return q, nil
}

// sinceTime parses a duration before now, with days as in 7d, or a time.
func sinceTime(text string, now time.Time) (time.Time, error) {
	var days int
	var unit string
	if n, err := fmt.Sscanf(text, "%d%s", &days, &unit); err == nil && n == 2 && unit == "d" && days >= 0 {
		return now.AddDate(0, 0, -days), nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("must be a duration such as 2h or 7d, or a time such as 2026-11-24T12:00:00Z, got %q", text)
}

// fetchEvents returns the selected events, else the incomplete report with most events.
func fetchEvents(ctx context.Context, admins []*telemetry.Client, q telemetry.EventQuery) (*telemetry.EventReport, error) {
	return fetchReport(ctx, "events", admins,
		func(ctx context.Context, c *telemetry.Client) (*telemetry.EventReport, error) {
			return c.Events(ctx, q)
		},
		func(r *telemetry.EventReport) bool { return r.Complete },
		func(r, best *telemetry.EventReport) bool { return len(r.Events) > len(best.Events) })
}

// eventPrinter prints each event once.
type eventPrinter struct {
	out, errOut io.Writer
	format      outputFormat
	zone        *time.Location  // of times in the table
	shown       map[string]bool // IDs
	problem     string          // the last printed problem
	table       *printable.Table
	empty       bool // it was printed that there are no events
}

// printReport prints the events that were not printed, and a problem to errOut when it changes.
func (p *eventPrinter) printReport(r *telemetry.EventReport) error {
	if r.Problem != p.problem {
		if p.problem = r.Problem; r.Problem != "" {
			printMessage(p.errOut, labelIncomplete, "showing only the events in a balancer's memory: %s; retry in a few seconds, or run 'skyserve status'", printable.Line(r.Problem))
		}
	}
	var fresh []telemetry.Event
	for _, e := range r.Events {
		if !p.shown[e.ID] {
			p.shown[e.ID] = true
			fresh = append(fresh, e)
		}
	}
	for _, e := range fresh {
		var err error
		switch {
		case p.format.isTable():
			continue
		default:
			err = p.format.writeItem(p.out, e.ID, e)
		}
		if err != nil {
			return fmt.Errorf("writing the events: %w", err)
		}
	}
	if !p.format.isTable() {
		return nil
	}
	return p.printTable(fresh)
}

// eventTimeLayout is the layout of times in the table.
const eventTimeLayout = "2006-01-02 15:04:05"

// printTable prints events as a table, with a header for the first one.
func (p *eventPrinter) printTable(events []telemetry.Event) error {
	if len(events) == 0 {
		if len(p.shown) == 0 && !p.empty && p.problem == "" {
			p.empty = true
			fmt.Fprintln(p.errOut, "no events")
		}
		return nil
	}
	titles := []string{"TIME", "ACTOR", "KIND", "REGION", "OBJECT", "MESSAGE", "REASON"}
	wide := p.format.kind == outputWide
	if wide {
		titles = append([]string{"ID", "MODEL"}, titles...)
	}
	if p.table == nil {
		p.table = printable.NewTable(p.out)
		p.table.KeepColumns() // rows printed later stay aligned
		if !wide {
			p.table.Fit(eventFitting)
		}
		if p.format.noHeaders {
			p.table.HideTitles(titles...)
		} else {
			p.table.Row(titles...)
		}
	}
	for _, e := range events {
		reason := e.Reason
		if e.Plan != nil && e.Kind != telemetry.EventPlan && e.Kind != telemetry.EventApply {
			reason += " (plan of " + e.Plan.In(p.zone).Format(eventTimeLayout) + ")"
		}
		row := []string{e.At.In(p.zone).Format(eventTimeLayout), e.Actor, string(e.Kind), cmp.Or(string(e.Region), "-"), cmp.Or(e.Object, "-"), e.Message, cmp.Or(reason, "-")}
		if wide {
			row = append([]string{e.ID, cmp.Or(e.Model, "-")}, row...)
		}
		p.table.Row(row...)
	}
	return p.table.Flush()
}

// eventFitting keeps when, who and what on narrow terminals. Messages name most objects.
var eventFitting = printable.Fitting{Optional: []string{"REGION", "REASON", "KIND", "OBJECT"}, Whole: []string{"TIME"}, Readable: map[string]int{"MESSAGE": 32}}

// eventWatch selects the events that --watch reads.
type eventWatch struct {
	q        telemetry.EventQuery
	begun    time.Time
	lastLong time.Time // the last read of watchLongPoll
}

func newEventWatch(q telemetry.EventQuery, begun time.Time) *eventWatch {
	q.Limit = 0
	return &eventWatch{q: q, begun: begun}
}

// query returns the query of the read at a time. Events that happened more than watchOverlap before the watch began are
// not new, whenever they are stored.
func (w *eventWatch) query(now time.Time) telemetry.EventQuery {
	q := w.q
	q.Since = now.Add(-watchOverlap)
	if now.Sub(w.lastLong) >= watchLongPoll {
		w.lastLong = now
		q.Since = w.begun.Add(-watchOverlap)
		if limit := now.Add(-watchLongSpan); q.Since.Before(limit) {
			q.Since = limit
		}
	}
	return q
}

// watchEvents prints new events until ctx ends. A failure is printed once until a query succeeds.
func (p *eventPrinter) watchEvents(ctx context.Context, admins []*telemetry.Client, w *eventWatch, poll time.Duration) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	failing := false
	var now time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case now = <-tick.C:
		}
		report, err := fetchEvents(ctx, admins, w.query(now))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !failing {
				failing = true
				fmt.Fprintf(p.errOut, "%v; retrying\n", err)
			}
			continue
		}
		failing = false
		if err := p.printReport(report); err != nil {
			return err
		}
	}
}
