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
	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// offersTimeout bounds asking clouds what they offer for a plan that changes nothing.
const offersTimeout = 30 * time.Second

// askClouds has a review plan with what clouds offer, as `up` does. A cloud that does not
// answer is no reason not to plan: list prices stand in, and the plan says so.
func (o *planOptions) askClouds(ctx context.Context, spec *service.Spec) {
	regions := cloud.Rented(spec)
	if o.listPrices || len(regions) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, offersTimeout, fmt.Errorf("no answer within %s", offersTimeout))
	defer cancel()
	places, err := o.clouds.placesOf(ctx, spec)
	unknown := map[service.Region]error{}
	if err != nil {
		for _, r := range regions {
			unknown[r] = err
		}
	} else {
		var offers map[service.Region]provision.Offerings
		var prices fleet.Prices
		offers, prices, unknown = fleet.Offers(ctx, places, regions)
		o.review.Prices = controller.MachinePrices(offers)
		for r, err := range prices.Unknown {
			if unknown[r] == nil {
				unknown[r] = err
			}
		}
	}
	o.review.Notes = slices.Concat(o.review.Notes, unpriced(unknown))
}

// unpriced says, each reason once, of which regions prices are not known, and what would
// let them be.
func unpriced(unknown map[service.Region]error) []string {
	regions := map[string][]string{} // by reason
	for _, r := range slices.Sorted(maps.Keys(unknown)) {
		reason := oneLine(unknown[r])
		var refused *provision.CredentialsError
		if errors.As(unknown[r], &refused) && refused.Hint != "" {
			reason += " (" + refused.Hint + ")"
		}
		regions[reason] = append(regions[reason], string(r))
	}
	var lines []string
	for _, reason := range slices.Sorted(maps.Keys(regions)) {
		lines = append(lines, fmt.Sprintf("prices of %s are not known, list prices stand in: %s", strings.Join(regions[reason], ", "), reason))
	}
	return lines
}

// printPrices says where the prices of machines to launch are from, and why some are not
// their cloud's.
func printPrices(w io.Writer, p *fleet.Plan) {
	var from []string
	for _, c := range p.Changes {
		if len(c.Want.Offers) > 0 && c.Want.Offers[0].PriceFrom != "" {
			from = append(from, c.Want.Offers[0].PriceFrom)
		}
	}
	if len(from) == 0 {
		return
	}
	slices.Sort(from)
	fmt.Fprintf(w, "  prices are from: %s\n", strings.Join(slices.Compact(from), "; "))
	for _, line := range unpriced(p.Unpriced) {
		fmt.Fprintln(w, "  "+line)
	}
}

// findPrices says whether clouds tell prices. One that does not is nothing amiss.
func findPrices(ctx context.Context, places provision.Places, regions []service.Region) []provision.Finding {
	var findings []provision.Finding
	prices := fleet.AskPrices(ctx, places, regions)
	for _, r := range regions {
		f := provision.Finding{Where: string(r), OK: true, What: fmt.Sprintf("prices: its cloud tells %d", len(prices.ByRegion[r]))}
		if err := prices.Unknown[r]; err != nil {
			f.What = "prices are not known, list prices stand in: " + oneLine(err)
			var refused *provision.CredentialsError
			if errors.As(err, &refused) {
				f.Hint = refused.Hint
			}
			if refused != nil && refused.Action == "" {
				continue // who is unknown is told so once
			}
		}
		findings = append(findings, f)
	}
	return findings
}
