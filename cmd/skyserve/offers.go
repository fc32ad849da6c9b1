package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/catalogue"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// offersOptions are the flags of `skyserve offers`.
type offersOptions struct {
	file     string
	gpu      string
	regions  []string
	count    int
	capacity string
	list     outputFlags
	clouds   cloudFlags
}

func newOffersCmd() *cobra.Command {
	o := offersOptions{}
	cmd := &cobra.Command{
		Use:   "offers [SERVICE.yaml]",
		Short: "List GPU machine types of the clouds with prices and quotas",
		Long: `List the GPU machine types that the clouds offer, with zone, capacity type, price per hour
and its source, remaining quota, and the cloud's estimate of spot capacity. The regions
are those of --region, else all known regions of AWS and Google Cloud. With SERVICE.yaml,
they are its cloud regions, or those of them that --region names.

A listed type may have no capacity: clouds report a lack of capacity only at a launch.

Exit codes: 0 complete, 2 usage error, 3 some regions or estimates are missing, 4 a cloud
rejects the credentials and nothing could be listed.`,
		Example: `  skyserve offers --gpu L4 --region aws/us-east-1
  skyserve offers --gpu H100 --region aws/us-east-1 --region gcp/us-central1 --capacity spot -o json
  skyserve offers service.yaml`,
		Args: argsBetween(0, 1, "[SERVICE.yaml]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.file = args[0]
			}
			return runOffers(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.gpu, "gpu", "", "list types with this `GPU` only, such as L4")
	flags.StringArrayVar(&o.regions, "region", nil, "list this region only, as `CLOUD/REGION`, such as aws/us-east-1 (repeatable)")
	flags.IntVar(&o.count, "count", 1, "the number of spot machines that the capacity estimates are for")
	flags.StringVar(&o.capacity, "capacity", "", "list this capacity type only: reserved, on_demand, spot or flex_start")
	o.list.registerList(cmd)
	o.clouds.registerFlags(flags)
	cmd.AddCommand(newOffersBlocksCmd(), newOffersBuyCmd())
	return cmd
}

// maxOffersCount is the maximum of --count: above it, no quota or estimate is useful.
const maxOffersCount = 1000

// check rejects unsupported flags.
func (o *offersOptions) check() error {
	var gpus []string
	for _, g := range catalogue.GPUs() {
		gpus = append(gpus, g.Name)
	}
	capacities := []string{string(service.CapacityReserved), string(service.CapacityOnDemand), string(service.CapacitySpot), string(service.CapacityFlexStart)}
	switch {
	case o.gpu != "" && !slices.Contains(gpus, o.gpu):
		return usage(fmt.Errorf("--gpu: must be one of %s, got %q", strings.Join(gpus, ", "), o.gpu), "")
	case o.capacity != "" && !slices.Contains(capacities, o.capacity):
		return usage(fmt.Errorf("--capacity: must be one of %s, got %q", strings.Join(capacities, ", "), o.capacity), "")
	case o.count < 1 || o.count > maxOffersCount:
		return usage(fmt.Errorf("--count: must be from 1 to %d, got %d", maxOffersCount, o.count), "")
	}
	return nil
}

// selectRegions returns the spec to read offers for and its regions. Without a file the spec has no networks.
func (o *offersOptions) selectRegions() (*service.Spec, []service.Region, error) {
	spec := &service.Spec{Name: "offers"}
	var regions []service.Region
	if o.file != "" {
		text, err := readServiceFile(o.file)
		if err != nil {
			return nil, nil, err
		}
		if spec, err = parseService(o.file, text); err != nil {
			return nil, nil, usage(err, "")
		}
		regions = cloud.Regions(spec)
	}
	chosen, err := readRegions(o.regions)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case o.file == "" && len(chosen) > 0:
		regions = chosen
	case o.file == "":
		for _, name := range []string{service.CloudAWS, service.CloudGCP} {
			for _, place := range service.KnownRegions(name) {
				regions = append(regions, service.Region(name+"/"+place))
			}
		}
	case len(chosen) > 0:
		unknown := slices.IndexFunc(chosen, func(r service.Region) bool { return !slices.Contains(regions, r) })
		if unknown >= 0 && len(regions) > 0 {
			return nil, nil, usage(fmt.Errorf("--region: %s has no region %q", o.file, chosen[unknown]), "the regions are "+strings.Join(regionNames(spec), ", "))
		}
		regions = slices.DeleteFunc(regions, func(r service.Region) bool { return !slices.Contains(chosen, r) })
	}
	if len(regions) == 0 {
		return nil, nil, usage(errors.New("no region in a cloud is selected"), "pass --region aws/us-east-1, or a service.yaml with regions in clouds")
	}
	return spec, regions, nil
}

func runOffers(ctx context.Context, o *offersOptions, out, errOut io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	format, err := o.list.parse()
	if err != nil {
		return err
	}
	spec, regions, err := o.selectRegions()
	if err != nil {
		return err
	}
	f := offersFinder{o: o, spec: spec, listing: offerListing{Offers: []offerRow{}, Warnings: []string{}}}
	for _, name := range []string{service.CloudAWS, service.CloudGCP} {
		in := slices.DeleteFunc(slices.Clone(regions), func(r service.Region) bool { return r.Cloud() != name })
		if len(in) > 0 {
			f.findOffers(ctx, name, in)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(f.listing.Offers) == 0 && f.rejected != nil {
		return cloudError(f.rejected)
	}
	err = format.write(out, f.listing, f.listing.table())
	for _, w := range f.listing.Warnings {
		printMessage(errOut, labelWarning, "%s", w)
	}
	if err == nil && len(f.listing.Warnings) > 0 {
		err = &exitError{code: exitPartial, err: errors.New("the list is incomplete"), hint: "see the warnings"}
	}
	return err
}

// offerRow is one machine that can be rented. Unknown values are nil.
type offerRow struct {
	GPU          string               `json:"gpu"`
	GPUs         int                  `json:"gpus"`
	Type         string               `json:"type"`
	Region       service.Region       `json:"region"`
	Zone         string               `json:"zone"`
	Capacity     service.CapacityType `json:"capacity"`
	PricePerHour *float64             `json:"price_per_hour"` // USD
	PriceFrom    *string              `json:"price_from"`
	// QuotaRemaining is the number of such machines that the remaining quotas allow.
	QuotaRemaining *float64 `json:"quota_remaining"`
	SpotScore      *int     `json:"spot_score"` // 1..10, AWS only
	Advice         *string  `json:"advice"`
}

// MarshalJSON adds the former key of QuotaRemaining.
func (r offerRow) MarshalJSON() ([]byte, error) {
	type plain offerRow
	return json.Marshal(struct {
		plain
		OldQuotaRemaining *float64 `json:"quota_left"`
	}{plain(r), r.QuotaRemaining})
}

// offerListing is the output of `skyserve offers`.
type offerListing struct {
	Offers   []offerRow `json:"offers"`
	Warnings []string   `json:"warnings"`
}

// offersFinder collects the rows.
type offersFinder struct {
	o        *offersOptions
	spec     *service.Spec
	listing  offerListing
	rejected error // the first error about credentials
}

// warn adds a warning with the next step, where the error has one.
func (f *offersFinder) warn(text string, err error) {
	line := text + oneLine(err)
	if hint := provision.HintOf(err); hint != "" {
		line += " (" + hint + ")"
	}
	if rejected := (*provision.CredentialsError)(nil); f.rejected == nil && errors.As(err, &rejected) {
		f.rejected = err
	}
	if !slices.Contains(f.listing.Warnings, line) {
		f.listing.Warnings = append(f.listing.Warnings, line)
	}
}

// findOffers adds the rows of one cloud's regions.
func (f *offersFinder) findOffers(ctx context.Context, name string, regions []service.Region) {
	places, err := f.o.clouds.providersOf(ctx, f.spec, regions...)
	if err != nil {
		f.warn(name+": ", err)
		return
	}
	offers, prices, unknown := deploy.PricedOfferings(ctx, places, regions)
	for _, r := range slices.Sorted(maps.Keys(unknown)) {
		f.warn(string(r)+": ", unknown[r])
	}
	regions = slices.DeleteFunc(regions, func(r service.Region) bool { return unknown[r] != nil })
	f.listing.Warnings = append(f.listing.Warnings, unknownPriceLines(prices.Unknown)...)
	quotas, errs := quotasOf(ctx, places, regions)
	for _, r := range slices.Sorted(maps.Keys(errs)) {
		f.warn(fmt.Sprintf("quotas of %s are unknown: ", r), errs[r])
	}
	limited := false
	for _, r := range regions {
		wanted := slices.DeleteFunc(slices.Clone(offers[r]), func(o provision.Offering) bool { return !f.o.selects(o) })
		var advice []provision.CapacityAdvice
		if !limited {
			advice, err = places.CapacityAdvice(ctx, r, wanted, f.o.count)
			var limit *provision.AdviceLimitError
			limited = errors.As(err, &limit)
			if err != nil {
				f.warn("capacity advice is missing: ", err)
			}
		}
		for _, o := range wanted {
			f.listing.Offers = append(f.listing.Offers, rowOf(o, quotas, advice))
		}
	}
}

// selects reports whether the flags select an offering.
func (o *offersOptions) selects(offer provision.Offering) bool {
	return offer.GPUs > 0 && (o.gpu == "" || offer.GPU == o.gpu) && (o.capacity == "" || string(offer.Capacity) == o.capacity)
}

// rowOf returns the row of an offering.
func rowOf(o provision.Offering, quotas []provision.Quota, advice []provision.CapacityAdvice) offerRow {
	row := offerRow{GPU: o.GPU, GPUs: o.GPUs, Type: o.Type, Region: o.Region, Zone: o.Zone, Capacity: o.Capacity}
	if o.PricePerHour > 0 && o.Capacity != service.CapacityReserved { // clouds do not report the price of reservations
		row.PricePerHour, row.PriceFrom = &o.PricePerHour, &o.PriceSource
	}
	if left, known := cloud.MachinesWithinQuota(o, quotas); known {
		row.QuotaRemaining = &left
	}
	at := slices.IndexFunc(advice, func(a provision.CapacityAdvice) bool { return a.Type == o.Type && a.Zone == o.Zone })
	if at >= 0 && o.Capacity == service.CapacitySpot {
		row.SpotScore = advice[at].SpotScore
		row.Advice = &advice[at].Text
	}
	return row
}

// table returns the table of the offers.
func (l *offerListing) table() list {
	t := list{
		titles:  []string{"GPU", "TYPE", "REGION", "ZONE", "CAPACITY", "USD/HOUR", "PRICE SOURCE", "QUOTA LEFT", "SPOT ADVICE"},
		wide:    []string{"USD/GPU-HOUR", "SPOT SCORE"},
		fitting: printable.Fitting{Optional: []string{"PRICE SOURCE", "SPOT ADVICE", "QUOTA LEFT", "REGION"}, Whole: []string{"TYPE", "REGION", "ZONE", "CAPACITY"}},
	}
	for _, r := range l.Offers {
		gpu, price, perGPU, from, left, advice, score := r.GPU, "", "", "", "", "", ""
		if r.GPUs > 1 {
			gpu = fmt.Sprintf("%dx%s", r.GPUs, r.GPU)
		}
		if r.PricePerHour != nil {
			price, perGPU, from = fmt.Sprintf("%.4f", *r.PricePerHour), fmt.Sprintf("%.4f", *r.PricePerHour/float64(max(1, r.GPUs))), *r.PriceFrom
		}
		if r.QuotaRemaining != nil {
			left = fmt.Sprintf("%g", *r.QuotaRemaining)
		}
		if r.Advice != nil {
			advice = *r.Advice
		}
		if r.SpotScore != nil {
			score = strconv.Itoa(*r.SpotScore)
		}
		t.rows = append(t.rows, listRow{
			strings.Join([]string{string(r.Region), r.Zone, r.Type, string(r.Capacity)}, "/"),
			[]string{gpu, r.Type, string(r.Region), r.Zone, string(r.Capacity), price, from, left, advice},
			[]string{perGPU, score},
		})
	}
	return t
}
