package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// checkEventRegion returns a usage error where --region names neither a region of the service nor a removed one with a
// kept event. It returns nil where that cannot be determined.
func checkEventRegion(ctx context.Context, admins []*telemetry.Client, region string) error {
	of, known := keptEvents(ctx, admins, telemetry.EventQuery{Region: region, Limit: 1})
	if !known || len(of) > 0 {
		return nil
	}
	kept, known := keptEvents(ctx, admins, telemetry.EventQuery{}) // the newest, for the list of regions
	regions := regionsOfService(ctx, admins)
	if !known || regions == nil {
		return nil
	}
	for _, e := range kept {
		if e.Region != "" {
			regions = append(regions, e.Region)
		}
	}
	slices.Sort(regions)
	var names, places []string
	for _, r := range slices.Compact(regions) {
		if string(r) == region || r.ShortName() == region {
			return nil
		}
		names, places = append(names, string(r)), append(places, r.ShortName())
	}
	return usage(fmt.Errorf("--region: must be one of %s, got %q", strings.Join(names, ", "), region), didYouMean(region, append(names, places...)))
}

// keptEvents returns the events of a query; known is false if the store did not respond.
func keptEvents(ctx context.Context, admins []*telemetry.Client, q telemetry.EventQuery) (events []telemetry.Event, known bool) {
	r, err := fetchEvents(ctx, admins, q)
	if err != nil || !r.Complete {
		return nil, false
	}
	return r.Events, true
}

// regionsOfService returns the regions of the service.yaml that a balancer serves; nil if none responds.
func regionsOfService(ctx context.Context, admins []*telemetry.Client) (regions []service.Region) {
	for _, admin := range admins {
		text, err := admin.Service(ctx)
		if err != nil {
			continue
		}
		spec, err := service.ParseDeployed("service.yaml of "+admin.Base(), text)
		if err != nil {
			continue
		}
		for _, r := range spec.Regions {
			regions = append(regions, r.Name)
		}
		return regions
	}
	return nil
}
