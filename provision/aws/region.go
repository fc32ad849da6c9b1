package aws

import (
	"context"
	"fmt"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"

	"skyserve/provision"
)

// region is one region of AWS.
type region struct {
	p      *Provider
	name   string // us-east-1
	ec2    *ec2.Client
	quotas *servicequotas.Client

	asking chan struct{} // holds the one who asks for the network, for all

	mu     sync.Mutex        // guards what follows
	net    *network          // nil until it was asked for
	groups map[string]string // ids of security groups by service, owner and role
}

// network is the default network of a region.
type network struct {
	vpc     string
	subnets map[string]string // id of the default subnet by zone
}

// filter is a condition of a list.
func filter(name string, values ...string) ec2types.Filter {
	return ec2types.Filter{Name: aws.String(name), Values: values}
}

// ofService are the conditions for what carries the tags of a service, or of any
// where the name is empty.
func ofService(name string) ec2types.Filter {
	if name == "" {
		return filter("tag-key", tagService)
	}
	return filter("tag:"+tagService, name)
}

// network asks for the default network, once; others wait for the answer.
func (r *region) network(ctx context.Context) (*network, error) {
	select {
	case r.asking <- struct{}{}:
		defer func() { <-r.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	n := r.net
	r.mu.Unlock()
	if n != nil {
		return n, nil
	}
	n, err := r.findNetwork(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.net = n
	return n, nil
}

// findNetwork finds the default VPC and its default subnets.
func (r *region) findNetwork(ctx context.Context) (*network, error) {
	vpcs, err := r.ec2.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{Filters: []ec2types.Filter{filter("is-default", "true")}})
	if err != nil {
		return nil, err
	}
	if len(vpcs.Vpcs) == 0 {
		return nil, fmt.Errorf("finding the default VPC of %s: there is none; make one with `aws ec2 create-default-vpc --region %s`", r.name, r.name)
	}
	n := &network{vpc: aws.ToString(vpcs.Vpcs[0].VpcId), subnets: map[string]string{}}
	pages := ec2.NewDescribeSubnetsPaginator(r.ec2, &ec2.DescribeSubnetsInput{
		Filters: []ec2types.Filter{filter("vpc-id", n.vpc), filter("default-for-az", "true")},
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range page.Subnets {
			n.subnets[aws.ToString(s.AvailabilityZone)] = aws.ToString(s.SubnetId)
		}
	}
	if len(n.subnets) == 0 {
		return nil, fmt.Errorf("finding the subnets of %s: the default VPC %s has no default subnet; make one with `aws ec2 create-default-subnet --availability-zone %sa`", r.name, n.vpc, r.name)
	}
	return n, nil
}

// subnet is the default subnet of a zone; empty for no zone, where AWS chooses.
func (r *region) subnet(ctx context.Context, zone string) (string, error) {
	if zone == "" {
		return "", nil
	}
	n, err := r.network(ctx)
	if err != nil {
		return "", err
	}
	subnet := n.subnets[zone]
	if subnet == "" {
		return "", fmt.Errorf("finding the subnet of %s: the default VPC %s has no default subnet there; make one with `aws ec2 create-default-subnet --availability-zone %s`", zone, n.vpc, zone)
	}
	return subnet, nil
}

// forget drops what was remembered of the network: it turned out to be no longer so.
func (r *region) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.net, r.groups = nil, map[string]string{}
}

// groupKey is under which a security group is remembered.
func groupKey(w provision.Want, role string) string { return w.Service + " " + w.Owner + " " + role }

// remember notes the id of a group.
func (r *region) remember(w provision.Want, role, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups[groupKey(w, role)] = id
}

// groupID is the security group of a role of the service of w, which must be the
// same owner's. It waits for it to come to be seen.
func (r *region) groupID(ctx context.Context, w provision.Want, role string) (string, error) {
	r.mu.Lock()
	id := r.groups[groupKey(w, role)]
	r.mu.Unlock()
	if id != "" {
		return id, nil
	}
	found, err := r.p.until(ctx, triesToAppear, func() (bool, error) {
		g, err := r.group(ctx, groupName(w.Service, role))
		if g == nil || err != nil {
			return false, err
		}
		id = aws.ToString(g.GroupId)
		return true, ownedError(w, fromEC2Tags(g.Tags))
	})
	if err != nil {
		return "", err
	}
	if !found {
		return "", fmt.Errorf("finding the security group %s: there is none: make the firewall of every %s of %s first", groupName(w.Service, role), role, w.Service)
	}
	r.remember(w, role, id)
	return id, nil
}

// triesToAppear bounds the looks for something that was made a moment ago: about a
// minute.
const triesToAppear = 30
