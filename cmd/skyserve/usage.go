package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// sinceToday is the value of --since for the current day.
const sinceToday = "today"

// usageColumns are the columns by which usage can be grouped.
var usageColumns = []string{"key", "tenant", "model", "region"}

// usageOptions are the flags of `skyserve usage`.
type usageOptions struct {
	name   string
	admins []string
	since  string
	by     []string
	list   outputFlags
}

func newUsageCmd() *cobra.Command {
	var o usageOptions
	cmd := &cobra.Command{
		Use:   "usage [NAME]",
		Short: "Show usage and quotas of API keys",
		Long: fmt.Sprintf(`Show the usage of API keys by key, model and region: requests, prompt tokens, cached
prompt tokens and output tokens, and their cost if the model has a price; and the remaining
daily and monthly quotas and budgets. Keys, and users who sign in with a token, are shown
by name; a key without one ("KEY name=NAME" in the list of keys) as key- and a part of its
hash. Quotas apply to all regions together. Days and months are in UTC. The current month
and the %d months before it are kept.`, telemetry.UsageMonths),
		Example: `  skyserve usage
  skyserve usage chat --since today --by tenant
  skyserve usage --since 2026-10 --by key,model
  skyserve usage -o json
  skyserve usage --admin http://127.0.0.1:8101`,
		Args: argsBetween(0, 1, "[NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := setService(&o.name, args, "NAME"); err != nil {
				return err
			}
			return runUsage(cmd.Context(), &o, cmd.OutOrStdout())
		},
	}
	registerService(cmd, &o.name)
	flags := cmd.Flags()
	flags.StringVar(&o.since, "since", "", "start of the period: today, or a month such as 2026-10 (default: the current month)")
	flags.StringSliceVar(&o.by, "by", []string{"key", "model", "region"}, "group by: "+strings.Join(usageColumns, ", "))
	flags.StringSliceVar(&o.admins, "admin", nil, "admin `URL` of a balancer, repeatable or comma-separated (default: the running service's)")
	o.list.registerList(cmd)
	return cmd
}

func runUsage(ctx context.Context, o *usageOptions, out io.Writer) error {
	if err := o.checkOptions(); err != nil {
		return err
	}
	format, err := o.list.parse()
	if err != nil {
		return err
	}
	name, admins, err := findAdmins(ctx, o.name, o.admins)
	if err != nil {
		return err
	}
	u, err := o.gatherReport(ctx, admins)
	if err != nil {
		return err
	}
	u.Service = name
	lines := u.groupBy(o.by)
	if format.isDocument() {
		u.Usage = u.groupBy(usageColumns)
	}
	if !format.isTable() || format.noHeaders {
		return format.write(out, u, usageTable(lines, o.by))
	}
	return u.writeTable(out, format, lines, o.by)
}

func (o *usageOptions) checkOptions() error {
	if o.since != "" && o.since != sinceToday {
		if t, err := time.Parse("2006-01", o.since); err != nil || telemetry.MonthOf(t) != o.since {
			return usage(fmt.Errorf("--since: must be today or a month such as 2026-10, got %q", o.since), "")
		}
	}
	for _, column := range o.by {
		if !slices.Contains(usageColumns, column) {
			return usage(fmt.Errorf("--by: must be one of %s, got %q", strings.Join(usageColumns, ", "), column), "")
		}
	}
	return nil
}

// usageReport is the output of `skyserve usage`.
type usageReport struct {
	Service  string            `json:"service"`
	Since    string            `json:"since"` // the first day of the period, UTC
	At       time.Time         `json:"at"`
	Complete bool              `json:"complete"`
	Usage    []usageLine       `json:"usage"`
	Quotas   []telemetry.Quota `json:"quotas"`
	// Budgets are the quotas in US dollars.
	Budgets []telemetry.Budget `json:"budgets"`
}

// usageLine is the usage of one group; columns that it is not grouped by are empty.
type usageLine struct {
	Key    string         `json:"key"`
	Tenant string         `json:"tenant"`
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	telemetry.Usage
	// CostUSD is the cost in US dollars; null if the cost of any request is unknown. It is set after
	// grouping.
	CostUSD *float64 `json:"cost_usd"`
}

// gatherReport fetches the usage of the period's months.
func (o *usageOptions) gatherReport(ctx context.Context, admins []*telemetry.Client) (*usageReport, error) {
	now, err := fetchUsage(ctx, admins, "")
	if err != nil {
		return nil, withAdminHint(err, o.admins)
	}
	u := &usageReport{Since: now.Month + "-01", At: now.At, Complete: now.Complete, Quotas: now.Quotas, Budgets: now.Budgets}
	if o.since == sinceToday {
		u.Since = now.At.UTC().Format(time.DateOnly)
	}
	for _, e := range now.Usage {
		line := usageLine{Key: e.Key, Tenant: e.Tenant, Model: e.Model, Region: e.Region, Usage: e.Usage}
		if o.since == sinceToday && e.Today != nil {
			line.Usage = *e.Today
		}
		u.Usage = append(u.Usage, line)
	}
	if o.since == "" || o.since == sinceToday {
		return u, nil
	}
	first, since := now.At.UTC().AddDate(0, 0, 1-now.At.UTC().Day()), o.since
	if oldest := telemetry.MonthOf(first.AddDate(0, -telemetry.UsageMonths, 0)); since < oldest || since > now.Month {
		return nil, usage(fmt.Errorf("--since: must be a month from %s to %s, got %q", oldest, now.Month, since), "")
	}
	u.Since = since + "-01"
	for month := first.AddDate(0, -1, 0); telemetry.MonthOf(month) >= since; month = month.AddDate(0, -1, 0) {
		r, err := fetchUsage(ctx, admins, telemetry.MonthOf(month))
		if err != nil {
			return nil, err
		}
		u.Complete = u.Complete && r.Complete
		for _, e := range r.Usage {
			u.Usage = append(u.Usage, usageLine{Key: e.Key, Tenant: e.Tenant, Model: e.Model, Region: e.Region, Usage: e.Usage})
		}
	}
	return u, nil
}

// fetchUsage returns the usage of a month, else the first incomplete report.
func fetchUsage(ctx context.Context, admins []*telemetry.Client, month string) (*telemetry.UsageReport, error) {
	return fetchReport(ctx, "usage", admins,
		func(ctx context.Context, c *telemetry.Client) (*telemetry.UsageReport, error) {
			return c.Usage(ctx, month)
		},
		func(r *telemetry.UsageReport) bool { return r.Complete },
		func(_, _ *telemetry.UsageReport) bool { return false })
}

// reportDelay is how long a balancer may take to return a report until the next one is queried too: one that responds
// takes milliseconds, or the round trips to another continent.
const reportDelay = time.Second

// fetchReport queries the balancers until one returns a complete report: the next one once an earlier one has returned
// no complete report, or is late. Without one it returns the best incomplete report: the first of the balancers' order,
// unless a later one is better.
func fetchReport[R any](ctx context.Context, what string, admins []*telemetry.Client, fetch func(context.Context, *telemetry.Client) (*R, error), isComplete func(*R) bool, isBetter func(r, best *R) bool) (best *R, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reports, failures := make([]*R, len(admins)), make([]error, len(admins))
	ended, late := make(chan int, len(admins)), time.NewTicker(reportDelay)
	defer late.Stop()
	begun := 0
	begin := func() {
		if i := begun; i < len(admins) {
			begun++
			go func() {
				reports[i], failures[i] = fetch(ctx, admins[i])
				ended <- i
			}()
		}
	}
	begin()
	for pending := len(admins); pending > 0; {
		select {
		case <-late.C:
		case i := <-ended:
			if pending--; failures[i] == nil && isComplete(reports[i]) {
				return reports[i], nil
			}
			late.Reset(reportDelay)
		}
		begin()
	}
	for i, r := range reports {
		if failures[i] == nil && (best == nil || isBetter(r, best)) {
			best = r
		}
	}
	if best == nil {
		hint := hintStatus
		if !slices.ContainsFunc(failures, isNot404) {
			hint = "" // the answers say what to do
		}
		return nil, failed(fmt.Errorf("fetching the %s: %w", what, errors.Join(failures...)), hint)
	}
	return best, nil
}

// respondingFirst returns the balancers with the first that responds in front: one that hangs delays a command that uses one
// balancer by reportDelay.
func respondingFirst(ctx context.Context, admins []*telemetry.Client) []*telemetry.Client {
	if len(admins) < 2 {
		return admins
	}
	first, err := fetchReport(ctx, "state", admins,
		func(ctx context.Context, c *telemetry.Client) (*telemetry.Client, error) { return c, c.Healthy(ctx) },
		func(*telemetry.Client) bool { return true },
		func(_, _ *telemetry.Client) bool { return false })
	if err != nil {
		return admins // the command's own error says why
	}
	return append([]*telemetry.Client{first}, slices.DeleteFunc(slices.Clone(admins), func(c *telemetry.Client) bool { return c == first })...)
}

// isNot404 reports whether an error is anything but a balancer's answer 404.
func isNot404(err error) bool {
	var status *telemetry.StatusError
	return !errors.As(err, &status) || status.Status != http.StatusNotFound
}

// groupBy groups the usage by columns, sorted.
func (u *usageReport) groupBy(columns []string) []usageLine {
	sums := map[usageLine]telemetry.Usage{}
	for _, line := range u.Usage {
		used := line.Usage
		if used == (telemetry.Usage{}) {
			continue
		}
		line.Usage = telemetry.Usage{}
		for _, column := range usageColumns {
			if !slices.Contains(columns, column) {
				line.setField(column, "")
			}
		}
		sums[line] = sums[line].Plus(used)
	}
	lines := []usageLine{}
	for line, used := range sums {
		line.Usage, line.CostUSD = used, used.CostUSD()
		lines = append(lines, line)
	}
	slices.SortFunc(lines, func(a, b usageLine) int {
		for _, column := range columns {
			if c := cmp.Compare(a.get(column), b.get(column)); c != 0 {
				return c
			}
		}
		return 0
	})
	return lines
}

// field returns the field of a column.
func (l *usageLine) field(column string) *string {
	switch column {
	case "key":
		return &l.Key
	case "tenant":
		return &l.Tenant
	case "model":
		return &l.Model
	}
	return (*string)(&l.Region)
}

func (l *usageLine) get(column string) string   { return *l.field(column) }
func (l *usageLine) setField(column, to string) { *l.field(column) = to }

func formatCount(n int64) string { return strconv.FormatInt(n, 10) }

// writeTable prints the usage and the quotas as tables.
func (u *usageReport) writeTable(w io.Writer, format outputFormat, lines []usageLine, by []string) error {
	head := strings.TrimSpace(u.Service + "  since " + u.Since + " (UTC)")
	if _, err := fmt.Fprintln(w, head); err != nil {
		return err
	}
	if !u.Complete {
		printMessage(w, labelIncomplete, "the usage of one balancer: it has no store, or no store responds")
	}
	if len(lines) == 0 {
		fmt.Fprintln(w, "no usage recorded; requests are counted only with an API key or identity token")
	} else {
		fmt.Fprintln(w)
		if err := format.write(w, u, usageTable(lines, by)); err != nil {
			return err
		}
	}
	if len(u.Quotas)+len(u.Budgets) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return format.write(w, u, u.quotaTable())
}

// quotaTable returns the table of the quotas and budgets.
func (u *usageReport) quotaTable() list {
	t := list{titles: []string{"KEY", "TENANT", "QUOTA", "LIMIT", "USED", "REMAINING", "RESETS"}, fitting: printable.Fitting{Optional: []string{"TENANT", "LIMIT"}, Whole: []string{"RESETS"}}}
	add := func(key, tenant, what string, resets time.Time, figures ...string) {
		cells := slices.Concat([]string{cmp.Or(key, "-"), tenant, what}, figures, []string{resets.UTC().Format(time.DateOnly)})
		t.rows = append(t.rows, listRow{cells: cells})
	}
	for _, q := range u.Quotas {
		add(q.Key, q.Tenant, q.Unit+" per "+q.Period, q.ResetsAt, formatCount(q.Limit), formatCount(q.Used), formatCount(q.Remaining))
	}
	for _, b := range u.Budgets {
		add(b.Key, b.Tenant, "USD per "+b.Period, b.ResetsAt, formatUSD(b.LimitUSD), formatUSD(b.UsedUSD), formatUSD(b.RemainingUSD))
	}
	return t
}

// usageTable returns the table of grouped usage, with its sum.
func usageTable(lines []usageLine, by []string) list {
	priced := slices.ContainsFunc(lines, func(l usageLine) bool { return l.PricedRequests > 0 })
	t := list{titles: append(upperAll(by), "REQUESTS", "PROMPT", "CACHED", "OUTPUT"), wide: []string{"CACHED %", "TOKENS"}, fitting: printable.Fitting{Optional: []string{"CACHED"}, Readable: map[string]int{"KEY": 9, "TENANT": 9, "MODEL": 9, "REGION": 9}}}
	if priced {
		t.titles = append(t.titles, "COST (USD)")
	}
	var all telemetry.Usage
	row := func(name string, cells []string, used telemetry.Usage) {
		cells = append(cells, formatCount(used.Requests), formatCount(used.PromptTokens), formatCount(used.CachedTokens), formatCount(used.OutputTokens))
		if priced {
			cells = append(cells, formatCost(used))
		}
		cached := ""
		if used.PromptTokens > 0 {
			cached = fmt.Sprintf("%.1f%%", 100*float64(used.CachedTokens)/float64(used.PromptTokens))
		}
		t.rows = append(t.rows, listRow{name, cells, []string{cached, formatCount(used.PromptTokens + used.OutputTokens)}})
	}
	for _, line := range lines {
		var first []string
		for _, column := range by {
			first = append(first, line.get(column))
		}
		row(cmp.Or(strings.Trim(strings.Join(first, "/"), "/"), "-"), first, line.Usage)
		all = all.Plus(line.Usage)
	}
	if len(lines) > 1 {
		first := make([]string, len(by))
		if len(first) > 0 {
			first[0] = "all"
		}
		row("", first, all)
	}
	return t
}

func formatUSD(usd float64) string { return service.NanoUSDOf(usd).String() }

// formatCost formats the cost of usage: - if it is unknown, and at least the known part if a part is
// unknown.
func formatCost(used telemetry.Usage) string {
	switch {
	case used.PricedRequests == 0:
		return "-"
	case used.PricedRequests < used.Requests:
		return ">= " + used.Cost.String()
	}
	return used.Cost.String()
}

func upperAll(words []string) []string {
	all := make([]string, 0, len(words)+5)
	for _, w := range words {
		all = append(all, strings.ToUpper(w))
	}
	return all
}
