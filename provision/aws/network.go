package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"skyserve/provision"
)

// network is the network of a region's machines.
type network struct {
	vpc     string
	subnets map[string]string // ids by availability zone
}

// network reads the network once and caches it; concurrent callers wait for the result.
func (r *region) network(ctx context.Context) (*network, error) {
	select {
	case r.netSem <- struct{}{}:
		defer func() { <-r.netSem }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	n := r.net
	r.mu.Unlock()
	if n != nil {
		return n, nil
	}
	find := r.defaultNetwork
	if r.configured.Name != "" {
		find = r.namedNetwork
	}
	n, err := find(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.net = n
	return n, nil
}

// defaultNetwork finds the default VPC and its default subnets.
func (r *region) defaultNetwork(ctx context.Context) (*network, error) {
	vpcs, err := r.ec2.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{Filters: []ec2types.Filter{filter("is-default", "true")}})
	if err != nil {
		return nil, err
	}
	if len(vpcs.Vpcs) == 0 {
		return nil, fmt.Errorf("finding the default VPC of %s: not found; set regions[].network, or create one with `aws ec2 create-default-vpc --region %s`", r.name, r.name)
	}
	n := &network{vpc: aws.ToString(vpcs.Vpcs[0].VpcId), subnets: map[string]string{}}
	subnets, err := r.subnetsOf(ctx, filter("vpc-id", n.vpc), filter("default-for-az", "true"))
	if err != nil {
		return nil, err
	}
	for _, s := range subnets {
		n.subnets[aws.ToString(s.AvailabilityZone)] = aws.ToString(s.SubnetId)
	}
	if len(n.subnets) == 0 {
		return nil, fmt.Errorf("finding the subnets of %s: the default VPC %s has no default subnet; create one with `aws ec2 create-default-subnet --availability-zone %sa`", r.name, n.vpc, r.name)
	}
	return n, nil
}

// namedNetwork finds the VPC and the subnets of service.yaml. A mismatch is a *provision.SpecError.
func (r *region) namedNetwork(ctx context.Context) (*network, error) {
	vpc := r.configured.Name
	_, err := r.ec2.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{VpcIds: []string{vpc}})
	if codeOf(err) == codeNoNetwork {
		return nil, r.specError("network: VPC %s not found in this region", vpc)
	}
	if err != nil {
		return nil, err
	}
	subnets, err := r.subnetsOf(ctx, filter("vpc-id", vpc))
	if err != nil {
		return nil, err
	}
	n := &network{vpc: vpc, subnets: map[string]string{}}
	for _, id := range r.configured.Subnets {
		i := slices.IndexFunc(subnets, func(s ec2types.Subnet) bool { return aws.ToString(s.SubnetId) == id })
		if i < 0 {
			return nil, r.subnetError(ctx, id)
		}
		zone := aws.ToString(subnets[i].AvailabilityZone)
		if other := n.subnets[zone]; other != "" {
			return nil, r.specError("subnets: %s and %s are both in availability zone %s; set one subnet per availability zone", other, id, zone)
		}
		n.subnets[zone] = id
	}
	if r.p.cfg.MachinesOnly { // `skyserve up` has already checked the routes
		return n, nil
	}
	return n, r.checkRoutes(ctx, n)
}

// specError returns an error for a setting of this region that does not match EC2.
func (r *region) specError(format string, args ...any) error {
	return &provision.SpecError{Err: fmt.Errorf("reading regions[] of %s: %w", r.regionID(), fmt.Errorf(format, args...))}
}

// subnetsOf lists the subnets that match filters.
func (r *region) subnetsOf(ctx context.Context, filters ...ec2types.Filter) ([]ec2types.Subnet, error) {
	var all []ec2types.Subnet
	pages := ec2.NewDescribeSubnetsPaginator(r.ec2, &ec2.DescribeSubnetsInput{Filters: filters})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Subnets...)
	}
	return all, nil
}

// subnetError returns the reason why a subnet is not part of the network.
func (r *region) subnetError(ctx context.Context, id string) error {
	found, err := r.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{SubnetIds: []string{id}})
	switch {
	case codeOf(err) == codeNoSubnet:
		return r.specError("subnets: subnet %s not found in this region", id)
	case err != nil:
		return err
	case len(found.Subnets) == 0:
		return r.specError("subnets: EC2 returned no description of subnet %s", id)
	}
	return r.specError("subnets: %s must be in VPC %s, is in %s", id, r.configured.Name, aws.ToString(found.Subnets[0].VpcId))
}

// checkRoutes rejects subnets without a direct route to the internet. Machines download the binary, images
// and weights from the internet, and balancers serve clients there.
func (r *region) checkRoutes(ctx context.Context, n *network) error {
	table := map[string]ec2types.RouteTable{} // by subnet; "" is the main route table
	pages := ec2.NewDescribeRouteTablesPaginator(r.ec2, &ec2.DescribeRouteTablesInput{Filters: []ec2types.Filter{filter("vpc-id", n.vpc)}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, t := range page.RouteTables {
			for _, a := range t.Associations {
				if key := aws.ToString(a.SubnetId); key != "" || aws.ToBool(a.Main) {
					table[key] = t
				}
			}
		}
	}
	for _, id := range r.configured.Subnets {
		t, own := table[id]
		if !own {
			t = table[""]
		}
		if !slices.ContainsFunc(t.Routes, routesToInternet) {
			return r.specError("subnets: %s has no route to an internet gateway (route table %s): the public addresses of its machines would be unreachable", id, aws.ToString(t.RouteTableId))
		}
	}
	return nil
}

// routesToInternet reports whether a route sends all traffic to an internet gateway.
func routesToInternet(route ec2types.Route) bool {
	return aws.ToString(route.DestinationCidrBlock) == "0.0.0.0/0" && strings.HasPrefix(aws.ToString(route.GatewayId), "igw-") &&
		route.State != ec2types.RouteStateBlackhole
}

// subnet returns the subnet of an availability zone. Without a zone it returns the first subnet; in the
// default network it returns an empty string, so that AWS selects a subnet.
func (r *region) subnet(ctx context.Context, zone string) (string, error) {
	if zone == "" && r.configured.Name == "" {
		return "", nil
	}
	n, err := r.network(ctx)
	if err != nil {
		return "", err
	}
	if zone == "" {
		return n.firstSubnet(), nil
	}
	subnet := n.subnets[zone]
	switch {
	case subnet == "" && r.configured.Name != "":
		return "", r.specError("subnets: no subnet in availability zone %s", zone)
	case subnet == "":
		return "", fmt.Errorf("finding the subnet of %s: the default VPC %s has no default subnet there; create one with `aws ec2 create-default-subnet --availability-zone %s`", zone, n.vpc, zone)
	}
	return subnet, nil
}

// firstSubnet returns the subnet of the zone that sorts first.
func (n *network) firstSubnet() string {
	zones := make([]string, 0, len(n.subnets))
	for zone := range n.subnets {
		zones = append(zones, zone)
	}
	return n.subnets[slices.Min(zones)]
}
