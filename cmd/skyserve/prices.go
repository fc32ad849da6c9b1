package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"skyserve/internal/controller"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// offersTimeout bounds the requests of `skyserve plan` for the clouds' offerings.
const offersTimeout = 30 * time.Second

// fetchPrices sets the review's prices to those of the clouds' offerings, as `up` does. If a cloud
// does not respond, the plan uses list prices and notes that.
func (o *planOptions) fetchPrices(ctx context.Context, spec *service.Spec) {
	regions := cloud.Regions(spec)
	if o.listPrices || len(regions) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, offersTimeout, fmt.Errorf("no response within %s", offersTimeout))
	defer cancel()
	places, err := o.clouds.providersOf(ctx, spec)
	unknown := map[service.Region]error{}
	if err != nil {
		for _, r := range regions {
			unknown[r] = err
		}
	} else {
		var offers map[service.Region]provision.Offerings
		var prices deploy.Prices
		offers, prices, unknown = deploy.PricedOfferings(ctx, places, regions)
		o.review.Prices = controller.MachinePrices(offers)
		o.fetchReservations(ctx, spec, places)
		for r, err := range prices.Unknown {
			if unknown[r] == nil {
				unknown[r] = err
			}
		}
	}
	o.review.Notes = slices.Concat(o.review.Notes, unknownPriceLines(unknown))
}

// fetchReservations sets the review's facts about reservations, and notes which are unknown.
func (o *planOptions) fetchReservations(ctx context.Context, spec *service.Spec, places provision.MultiCloud) {
	read := readNamedReservations(ctx, spec, places)
	o.review.Reservations = controller.ReservationStates(read.ByRegion)
	for _, r := range slices.Sorted(maps.Keys(read.Unknown)) {
		o.review.Notes = append(o.review.Notes, fmt.Sprintf("the reservations of %s are unknown, planning as in service.yaml: %s", r, oneLine(read.Unknown[r])))
	}
}

// unknownPriceLines returns one line per reason why prices are unknown, with the regions and a hint.
func unknownPriceLines(unknown map[service.Region]error) []string {
	regions := map[string][]string{} // by reason
	for _, r := range slices.Sorted(maps.Keys(unknown)) {
		reason := oneLine(unknown[r])
		var rejected *provision.CredentialsError
		if errors.As(unknown[r], &rejected) && rejected.Hint != "" {
			reason += " (" + rejected.Hint + ")"
		}
		regions[reason] = append(regions[reason], string(r))
	}
	var lines []string
	for _, reason := range slices.Sorted(maps.Keys(regions)) {
		lines = append(lines, fmt.Sprintf("prices of %s are unknown, using built-in list prices: %s", strings.Join(regions[reason], ", "), reason))
	}
	return lines
}

// printPrices prints the sources of the prices of machines to launch, and why some are list prices.
func printPrices(w io.Writer, p *deploy.MachinePlan) {
	var from []string
	for _, c := range p.Changes {
		if len(c.Desired.Offerings) > 0 && c.Desired.Offerings[0].PriceSource != "" {
			from = append(from, c.Desired.Offerings[0].PriceSource)
		}
	}
	if len(from) == 0 {
		return
	}
	slices.Sort(from)
	fmt.Fprintf(w, "  price source: %s\n", strings.Join(slices.Compact(from), "; "))
	for _, line := range unknownPriceLines(p.Unpriced) {
		fmt.Fprintln(w, "  "+line)
	}
}

// findPrices reports whether clouds return prices. It is not a failure if one does not.
func findPrices(ctx context.Context, places provision.MultiCloud, regions []service.Region) []provision.CheckResult {
	var findings []provision.CheckResult
	prices := deploy.ReadPrices(ctx, places, regions)
	for _, r := range regions {
		f := provision.CheckResult{Where: string(r), OK: true, Message: fmt.Sprintf("prices: %d found", len(prices.ByRegion[r]))}
		if err := prices.Unknown[r]; err != nil {
			f.Message = "prices are unknown, using built-in list prices: " + oneLine(err)
			var rejected *provision.CredentialsError
			if errors.As(err, &rejected) {
				f.Hint = rejected.Hint
			}
			if rejected != nil && rejected.Action == "" {
				continue // another finding reports missing credentials
			}
		}
		findings = append(findings, f)
	}
	return findings
}
