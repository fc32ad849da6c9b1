package gcp

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/internal/service"
	"skyserve/provision"
)

// readRegion reads a region. An unknown region is a *provision.SpecError that names it.
func (p *Provider) readRegion(ctx context.Context, place string) (*computepb.Region, error) {
	client, project, err := newClient(ctx, p, compute.NewRegionsRESTClient)
	if err != nil {
		return nil, wrapError(err, "reading region %s", place)
	}
	found, err := client.Get(ctx, &computepb.GetRegionRequest{Project: project, Region: place})
	if isMissing(err) && strings.Contains(err.Error(), "/regions/") {
		return nil, &provision.SpecError{Err: fmt.Errorf("reading region %q: not found, or not enabled for project %s", place, project)}
	}
	if err != nil {
		return nil, wrapError(err, "reading region %s", place)
	}
	return found, nil
}

// listZones returns the zones of a region, sorted by name.
func (p *Provider) listZones(ctx context.Context, place string) ([]string, error) {
	region, err := p.readRegion(ctx, place)
	if err != nil {
		return nil, err
	}
	var zones []string
	for _, z := range region.GetZones() {
		zones = append(zones, path.Base(z))
	}
	if len(zones) == 0 {
		return nil, fmt.Errorf("reading region %s: the region has no zones", place)
	}
	slices.Sort(zones)
	return zones, nil
}

// Offerings returns the catalogue's machine types in each zone of a region, on demand, spot and, with GPUs,
// flex-start, at the built-in list prices; that of flex-start is unknown. Whether an offering has capacity is unknown until a launch. Reserved capacity is
// configured by the operator in service.yaml.
func (p *Provider) Offerings(ctx context.Context, region service.Region) (provision.Offerings, error) {
	zones, err := p.listZones(ctx, region.ShortName())
	if err != nil {
		return nil, err
	}
	types, errs := make([][]string, len(zones)), make([]error, len(zones))
	var wg sync.WaitGroup
	for i, zone := range zones {
		wg.Go(func() { types[i], errs[i] = p.machineTypesIn(ctx, zone) })
	}
	wg.Wait()
	var all provision.Offerings
	for i, zone := range zones {
		if errs[i] != nil {
			return nil, errs[i]
		}
		for _, t := range provision.MachineTypes(service.CloudGCP) {
			if !slices.Contains(types[i], t.Type) {
				continue
			}
			if !t.NotOnDemand {
				all = append(all, t.Offering(region, zone, service.CapacityOnDemand))
			}
			all = append(all, t.Offering(region, zone, service.CapacitySpot))
			if t.GPUs > 0 {
				all = append(all, t.Offering(region, zone, service.CapacityFlexStart))
			}
		}
	}
	return all, nil
}

// machineTypesIn returns the machine types of the catalogue in a zone.
func (p *Provider) machineTypesIn(ctx context.Context, zone string) ([]string, error) {
	client, project, err := newClient(ctx, p, compute.NewMachineTypesRESTClient)
	if err != nil {
		return nil, wrapError(err, "listing machine types")
	}
	var known, found []string
	for _, t := range provision.MachineTypes(service.CloudGCP) {
		known = append(known, t.Type)
	}
	filter := fmt.Sprintf("name eq %q", strings.Join(known, "|"))
	for t, err := range client.List(ctx, &computepb.ListMachineTypesRequest{Project: project, Zone: zone, Filter: &filter}).All() {
		if err != nil {
			return nil, wrapError(err, "listing the machine types of %s", zone)
		}
		found = append(found, t.GetName())
	}
	return found, nil
}
