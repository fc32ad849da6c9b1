package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skyserve/internal/catalogue"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
)

// blocksOptions are the flags of `skyserve offers blocks` and `skyserve offers buy`.
type blocksOptions struct {
	kind     string
	count    int
	days     int
	from, to string
	regions  []string
	// list are the output flags of blocks, output the format of buy.
	list   outputFlags
	output outputFlags
	yes    bool
	clouds cloudFlags
}

func newOffersBlocksCmd() *cobra.Command {
	var o blocksOptions
	cmd := &cobra.Command{
		Use:   "blocks",
		Short: "Search EC2 Capacity Blocks",
		Long: `Search EC2 Capacity Blocks: machines with GPUs in one zone for 1 to 182 days, whose whole price
is paid in advance. The regions are those of --region, else all known regions of AWS. The
command buys nothing: see 'skyserve offers buy'.

Exit codes: 0 complete, 2 usage error, 3 some regions are missing, 4 AWS rejects the
credentials.`,
		Example: `  skyserve offers blocks --type p5.48xlarge --count 2 --days 7 --region aws/us-east-2
  skyserve offers blocks --type p5en.48xlarge --days 1 --from 2026-12-01 --to 2026-12-08 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runOffersBlocks(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.registerFlags(cmd.Flags())
	o.list.registerList(cmd)
	return cmd
}

// registerFlags registers the flags of the search.
func (o *blocksOptions) registerFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.kind, "type", "", "the machine `TYPE`, such as p5.48xlarge (required)")
	flags.IntVar(&o.count, "count", 1, "the number of machines, 1 to 64")
	flags.IntVar(&o.days, "days", 1, "the number of days: 1 to 14, or whole weeks up to 182")
	flags.StringVar(&o.from, "from", "", "the earliest start, as `DATE` or RFC 3339 time (UTC)")
	flags.StringVar(&o.to, "to", "", "the latest end, as `DATE` or RFC 3339 time (UTC)")
	flags.StringArrayVar(&o.regions, "region", nil, "search this region only, as `CLOUD/REGION`, such as aws/us-east-2 (repeatable)")
	o.clouds.registerAWS(flags)
}

// The limits of Capacity Blocks
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeCapacityBlockOfferings.html, November 2026).
const (
	maxBlockCount = 64
	maxBlockDays  = 182
	maxSingleDays = 14 // beyond it, whole weeks only
)

// query returns the search that the flags describe.
func (o *blocksOptions) query() (q provision.BlockQuery, err error) {
	m, known := catalogue.Find(service.CloudAWS, o.kind)
	switch {
	case o.kind == "":
		return q, usage(errors.New("--type is required"), "for example: --type p5.48xlarge")
	case !known || m.GPUs == 0:
		return q, usage(fmt.Errorf("--type: must be a machine type of AWS with GPUs, got %q", o.kind), "'skyserve offers --region aws/us-east-1' lists the types")
	case o.count < 1 || o.count > maxBlockCount:
		return q, usage(fmt.Errorf("--count: must be from 1 to %d, got %d", maxBlockCount, o.count), "")
	case o.days < 1 || o.days > maxBlockDays || o.days > maxSingleDays && o.days%7 != 0:
		return q, usage(fmt.Errorf("--days: must be from 1 to %d, or whole weeks up to %d, got %d", maxSingleDays, maxBlockDays, o.days), "")
	}
	q = provision.BlockQuery{Type: o.kind, Count: o.count, Days: o.days}
	if q.From, err = parseDay("--from", o.from); err != nil {
		return q, err
	}
	if q.To, err = parseDay("--to", o.to); err != nil {
		return q, err
	}
	if !q.To.IsZero() && q.To.Before(q.From.Add(time.Duration(o.days)*24*time.Hour)) {
		return q, usage(fmt.Errorf("--to: must be at least %d days after --from", o.days), "")
	}
	return q, nil
}

// parseDay parses a date or a time; zero if it is empty.
func parseDay(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, usage(fmt.Errorf("%s: must be a date such as 2026-12-01 or an RFC 3339 time, got %q", flag, text), "")
}

// selectRegions returns the regions to search.
func (o *blocksOptions) selectRegions() ([]service.Region, error) {
	regions, err := readRegions(o.regions)
	if err != nil {
		return nil, err
	}
	for _, r := range regions {
		if r.Cloud() != service.CloudAWS {
			return nil, usage(fmt.Errorf("--region: must be a region of AWS, got %s", r), "Google Cloud sells no capacity blocks")
		}
	}
	if len(regions) == 0 {
		for _, place := range service.KnownRegions(service.CloudAWS) {
			regions = append(regions, service.Region(service.CloudAWS+"/"+place))
		}
	}
	return regions, nil
}

// blockRow is one block on sale.
type blockRow struct {
	ID      string         `json:"id"`
	GPU     string         `json:"gpu"`
	GPUs    int            `json:"gpus"` // of each machine
	Type    string         `json:"type"`
	Count   int            `json:"count"`
	Region  service.Region `json:"region"`
	Zone    string         `json:"zone"`
	Starts  time.Time      `json:"starts"`
	Ends    time.Time      `json:"ends"`
	Hours   float64        `json:"hours"`
	Upfront float64        `json:"upfront_price"` // of all machines for the whole time
	// PerGPUHour is the upfront price by GPU and hour, PerHour by machine and hour.
	PerGPUHour float64 `json:"price_per_gpu_hour"`
	PerHour    float64 `json:"price_per_hour"`
	Currency   string  `json:"currency"`
}

// blockListing is the output of `skyserve offers blocks`.
type blockListing struct {
	Blocks   []blockRow `json:"blocks"`
	Warnings []string   `json:"warnings"`
}

func blockRowOf(o provision.BlockOffering) blockRow {
	m, _ := catalogue.Find(o.Region.Cloud(), o.Type)
	return blockRow{
		ID: o.ID, GPU: m.GPU, GPUs: m.GPUs, Type: o.Type, Count: o.Count, Region: o.Region, Zone: o.Zone, Starts: o.Starts.UTC(), Ends: o.Ends.UTC(),
		Hours: o.Ends.Sub(o.Starts).Hours(), Upfront: o.UpfrontPrice, PerHour: o.MachinePrice(), PerGPUHour: o.MachinePrice() / float64(max(1, m.GPUs)), Currency: o.Currency,
	}
}

func runOffersBlocks(ctx context.Context, o *blocksOptions, out, errOut io.Writer) error {
	format, err := o.list.parse()
	if err != nil {
		return err
	}
	q, err := o.query()
	if err != nil {
		return err
	}
	regions, err := o.selectRegions()
	if err != nil {
		return err
	}
	market, err := o.market(ctx, regions)
	if err != nil {
		return cloudError(err)
	}
	found, rejected := searchBlocks(ctx, market, regions, q)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(found.Blocks) == 0 && rejected != nil {
		return cloudError(rejected)
	}
	if format.isTable() && len(found.Blocks) == 0 {
		fmt.Fprintln(errOut, "no block is on sale; try other dates, a shorter time or fewer machines")
	}
	err = format.write(out, found, blockTable(found.Blocks))
	for _, w := range found.Warnings {
		printMessage(errOut, labelWarning, "%s", w)
	}
	if err == nil && len(found.Warnings) > 0 {
		err = &exitError{code: exitPartial, err: errors.New("the list is incomplete"), hint: "see the warnings"}
	}
	return err
}

// market returns the provider that sells blocks in regions.
func (o *blocksOptions) market(ctx context.Context, regions []service.Region) (provision.BlockMarket, error) {
	places, err := o.clouds.providersOf(ctx, &service.Spec{Name: "offers"}, regions...)
	if err != nil {
		return nil, err
	}
	market, sells := places[service.CloudAWS].(provision.BlockMarket)
	if !sells {
		return nil, errors.New("the cloud sells no blocks")
	}
	return market, nil
}

// searchBlocks searches regions one after the other, cheapest blocks first. rejected is the first error about
// credentials.
func searchBlocks(ctx context.Context, market provision.BlockMarket, regions []service.Region, q provision.BlockQuery) (found blockListing, rejected error) {
	f := offersFinder{}
	found = blockListing{Blocks: []blockRow{}}
	for _, r := range regions {
		offers, err := market.BlockOfferings(ctx, r, q)
		if err != nil {
			f.warn(string(r)+": ", err)
		}
		for _, o := range offers {
			found.Blocks = append(found.Blocks, blockRowOf(o))
		}
	}
	slices.SortStableFunc(found.Blocks, func(a, b blockRow) int {
		switch {
		case a.Upfront != b.Upfront:
			return map[bool]int{true: -1, false: 1}[a.Upfront < b.Upfront]
		default:
			return a.Starts.Compare(b.Starts)
		}
	})
	found.Warnings = append([]string{}, f.listing.Warnings...)
	return found, f.rejected
}

// blockTable returns the table of the blocks.
func blockTable(blocks []blockRow) list {
	t := list{
		titles:  []string{"ID", "MACHINES", "GPUS", "REGION", "ZONE", "STARTS", "ENDS", "HOURS", "UPFRONT", "PER GPU-HOUR"},
		wide:    []string{"PER MACHINE-HOUR"},
		fitting: printable.Fitting{Optional: []string{"GPUS", "ENDS", "PER GPU-HOUR", "REGION", "HOURS"}, Whole: []string{"ZONE"}},
	}
	for _, b := range blocks {
		t.rows = append(t.rows, listRow{b.ID, []string{
			b.ID, fmt.Sprintf("%d x %s", b.Count, b.Type), fmt.Sprintf("%dx%s", b.Count*b.GPUs, b.GPU), string(b.Region), b.Zone,
			b.Starts.Format(time.RFC3339), b.Ends.Format(time.RFC3339), fmt.Sprintf("%g", b.Hours), b.upfrontText(), fmt.Sprintf("%.2f %s", b.PerGPUHour, b.Currency),
		}, []string{fmt.Sprintf("%.2f %s", b.PerHour, b.Currency)}})
	}
	return t
}

// upfrontText returns the upfront price with its currency.
func (b blockRow) upfrontText() string { return fmt.Sprintf("%.2f %s", b.Upfront, b.Currency) }
