package aws

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/internal/service"
	"skyserve/provision"
)

// spotLinux is EC2's product description for spot prices of machines without a paid licence.
const spotLinux = "Linux/UNIX"

// Offerings returns the types of the catalogue in each availability zone with a subnet: on demand, spot
// and reserved, sorted by type, zone and capacity type. Spot prices are EC2's current ones where
// available. All other prices are the built-in list prices.
func (p *Provider) Offerings(ctx context.Context, name service.Region) (provision.Offerings, error) {
	r, err := p.region(name)
	if err != nil {
		return nil, err
	}
	offers, err := r.listOfferings(ctx)
	return offers, wrapError(fmt.Sprintf("listing the offerings of %s", name), err)
}

func (r *region) listOfferings(ctx context.Context) (provision.Offerings, error) {
	n, err := r.network(ctx)
	if err != nil {
		return nil, err
	}
	zones, err := r.zonesOf(ctx)
	if err != nil {
		return nil, err
	}
	spot, err := r.spotPrices(ctx)
	if err != nil {
		return nil, err
	}
	var offers provision.Offerings
	for _, t := range provision.MachineTypes(service.CloudAWS) {
		for _, zone := range zones[t.Type] {
			if n.subnets[zone] == "" {
				continue
			}
			for _, capacity := range []service.CapacityType{service.CapacityOnDemand, service.CapacitySpot, service.CapacityReserved} {
				o := t.Offering(r.regionID(), zone, capacity)
				if price := spot[t.Type+zone]; price > 0 && capacity == service.CapacitySpot {
					o.PricePerHour, o.PriceSource = price, "spot price in "+zone
				}
				offers = append(offers, o)
			}
		}
	}
	return offers, nil
}

// catalogueTypes returns the names of the catalogue's types.
func catalogueTypes() []string {
	var names []string
	for _, t := range provision.MachineTypes(service.CloudAWS) {
		names = append(names, t.Type)
	}
	return names
}

// zonesOf returns the zones of each type of the catalogue, sorted.
func (r *region) zonesOf(ctx context.Context) (map[string][]string, error) {
	zones := map[string][]string{}
	pages := ec2.NewDescribeInstanceTypeOfferingsPaginator(r.ec2, &ec2.DescribeInstanceTypeOfferingsInput{
		LocationType: ec2types.LocationTypeAvailabilityZone,
		Filters:      []ec2types.Filter{filter("instance-type", catalogueTypes()...)},
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, o := range page.InstanceTypeOfferings {
			zones[string(o.InstanceType)] = append(zones[string(o.InstanceType)], aws.ToString(o.Location))
		}
	}
	for _, z := range zones {
		slices.Sort(z)
	}
	return zones, nil
}

// spotPrices returns the newest spot prices by type and zone, in USD per hour.
func (r *region) spotPrices(ctx context.Context) (map[string]float64, error) {
	in := &ec2.DescribeSpotPriceHistoryInput{StartTime: aws.Time(r.p.cfg.Now()), ProductDescriptions: []string{spotLinux}}
	for _, name := range catalogueTypes() {
		in.InstanceTypes = append(in.InstanceTypes, ec2types.InstanceType(name))
	}
	var all []ec2types.SpotPrice
	pages := ec2.NewDescribeSpotPriceHistoryPaginator(r.ec2, in)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, page.SpotPriceHistory...)
	}
	slices.SortStableFunc(all, func(a, b ec2types.SpotPrice) int {
		return cmp.Compare(aws.ToTime(a.Timestamp).UnixNano(), aws.ToTime(b.Timestamp).UnixNano())
	})
	prices := map[string]float64{}
	for _, s := range all {
		price, err := strconv.ParseFloat(aws.ToString(s.SpotPrice), 64)
		if err != nil {
			return nil, fmt.Errorf("reading the spot price of %s in %s: %w", s.InstanceType, aws.ToString(s.AvailabilityZone), err)
		}
		prices[string(s.InstanceType)+aws.ToString(s.AvailabilityZone)] = price
	}
	return prices, nil
}
