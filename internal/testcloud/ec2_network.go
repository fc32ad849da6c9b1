package testcloud

import (
	"fmt"
	"maps"
	"slices"
)

// ec2Region is EC2 in one region.
type ec2Region struct {
	aws       *AWS
	name      string
	zones     []string
	vpc       string   // id of the default network; empty = there is none
	networks  []string // ids of other networks
	subnets   []ec2Subnet
	instances map[string]*ec2Instance
	groups    map[string]*ec2Group
	tokens    map[string]ec2Token
	reserved  []*ec2Reservation
	blocks    []*BlockOffering
}

// ec2Subnet is a subnet; the default network has one per zone.
type ec2Subnet struct {
	ID      string `xml:"subnetId"`
	Vpc     string `xml:"vpcId"`
	Zone    string `xml:"availabilityZone"`
	Default bool   `xml:"defaultForAz"`
	Public  bool   `xml:"mapPublicIpOnLaunch"`
	Free    int    `xml:"availableIpAddressCount"`
	gateway string // target of its default route; empty = it has none
}

func newEC2Region(a *AWS, name string) *ec2Region {
	r := &ec2Region{
		aws: a, name: name, vpc: "vpc-" + name,
		instances: map[string]*ec2Instance{}, groups: map[string]*ec2Group{}, tokens: map[string]ec2Token{},
	}
	for _, letter := range []string{"a", "b", "c"} {
		zone := name + letter
		r.zones = append(r.zones, zone)
		r.subnets = append(r.subnets, ec2Subnet{"subnet-" + zone, r.vpc, zone, true, true, 4091, "igw-" + name})
	}
	return r
}

// RemoveDefaultNetwork removes the default network of a region. Some AWS accounts have none.
func (a *AWS) RemoveDefaultNetwork(region string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.regions[region]
	r.subnets = slices.DeleteFunc(r.subnets, func(s ec2Subnet) bool { return s.Vpc == r.vpc })
	r.vpc = ""
}

// Subnet is a subnet of AddNetwork.
type Subnet struct {
	ID, Zone string
	// Gateway is the target of its default route: igw-..., nat-...; empty = it has none.
	Gateway string
}

// AddNetwork adds a network in addition to the default one.
func (a *AWS) AddNetwork(region, id string, subnets ...Subnet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.regions[region]
	r.networks = append(r.networks, id)
	for _, s := range subnets {
		r.subnets = append(r.subnets, ec2Subnet{s.ID, id, s.Zone, false, false, 251, s.Gateway})
	}
}

// RemoveDefaultSubnet removes the default subnet of an availability zone.
func (a *AWS) RemoveDefaultSubnet(region, zone string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.regions[region]
	r.subnets = slices.DeleteFunc(r.subnets, func(s ec2Subnet) bool { return s.Zone == zone })
}

type ec2Vpc struct {
	ID      string `xml:"vpcId"`
	Default bool   `xml:"isDefault"`
	CIDR    string `xml:"cidrBlock"`
}

type vpcsAnswer struct {
	Vpcs []ec2Vpc `xml:"vpcSet>item"`
}

func (r *ec2Region) describeVpcs(f awsForm) (any, error) {
	all := map[string]ec2Vpc{}
	if r.vpc != "" {
		all[r.vpc] = ec2Vpc{r.vpc, true, "172.31.0.0/16"}
	}
	for _, id := range r.networks {
		all[id] = ec2Vpc{id, false, "10.0.0.0/16"}
	}
	if err := selectByID(f, "VpcId", "InvalidVpcID.NotFound", all); err != nil {
		return nil, err
	}
	vpcs, err := filtered(f, all, func(v ec2Vpc) attributes {
		return attributes{"is-default": fmt.Sprint(v.Default), "isDefault": fmt.Sprint(v.Default), "vpc-id": v.ID}
	})
	return vpcsAnswer{vpcs}, err
}

// selectByID reduces a map to the ids in a request, if it contains any; an unknown id is an error.
func selectByID[T any](f awsForm, key, code string, all map[string]T) error {
	ids := f.list(key)
	for _, id := range ids {
		if _, known := all[id]; !known {
			return badRequest(code, "The ID '%s' does not exist", id)
		}
	}
	maps.DeleteFunc(all, func(id string, _ T) bool { return len(ids) > 0 && !slices.Contains(ids, id) })
	return nil
}

type subnetsAnswer struct {
	Subnets []ec2Subnet `xml:"subnetSet>item"`
	Next    string      `xml:"nextToken,omitempty"`
}

func (r *ec2Region) describeSubnets(f awsForm) (any, error) {
	all := map[string]ec2Subnet{}
	for _, s := range r.subnets {
		all[s.ID] = s
	}
	if err := selectByID(f, "SubnetId", "InvalidSubnetID.NotFound", all); err != nil {
		return nil, err
	}
	subnets, err := filtered(f, all, func(s ec2Subnet) attributes {
		return attributes{"default-for-az": fmt.Sprint(s.Default), "vpc-id": s.Vpc, "availability-zone": s.Zone}
	})
	part, next := paginate(r.aws, subnets, f.get("NextToken"), f.get("MaxResults"))
	return subnetsAnswer{part, next}, err
}

// ec2Types are the emulated instance types, with their vCPUs.
var ec2Types = map[string]int{
	"c7i.large": 2, "g6.xlarge": 4, "g6.4xlarge": 16, "g6.12xlarge": 48, "g6.48xlarge": 192,
	"g5.xlarge": 4, "g5.12xlarge": 48, "g5.48xlarge": 192, "g6e.xlarge": 4, "g6e.12xlarge": 48, "g6e.48xlarge": 192, "p5en.48xlarge": 192,
	"p4d.24xlarge": 96, "p4de.24xlarge": 96, "p5.4xlarge": 16, "p5.48xlarge": 192,
}

// offers reports whether a zone has an instance type.
func (r *ec2Region) offers(zone, instanceType string) bool {
	return ec2Types[instanceType] > 0 && (r.aws.HasInstanceType == nil || r.aws.HasInstanceType(zone, instanceType))
}

type ec2Offering struct {
	Type         string `xml:"instanceType"`
	Location     string `xml:"location"`
	LocationType string `xml:"locationType"`
}

type offeringsAnswer struct {
	Offerings []ec2Offering `xml:"instanceTypeOfferingSet>item"`
	Next      string        `xml:"nextToken,omitempty"`
}

func (r *ec2Region) describeOfferings(f awsForm) (any, error) {
	all := map[string]ec2Offering{}
	for _, zone := range r.zones {
		for kind := range ec2Types {
			if r.offers(zone, kind) {
				all[kind+zone] = ec2Offering{kind, zone, "availability-zone"}
			}
		}
	}
	offerings, err := filtered(f, all, func(o ec2Offering) attributes { return attributes{"instance-type": o.Type, "location": o.Location} })
	part, next := paginate(r.aws, offerings, f.get("NextToken"), f.get("MaxResults"))
	return offeringsAnswer{part, next}, err
}

type ec2SpotPrice struct {
	Type    string `xml:"instanceType"`
	Zone    string `xml:"availabilityZone"`
	Price   string `xml:"spotPrice"`
	Product string `xml:"productDescription"`
	At      string `xml:"timestamp"`
}

type spotPricesAnswer struct {
	Prices []ec2SpotPrice `xml:"spotPriceHistorySet>item"`
	Next   string         `xml:"nextToken,omitempty"`
}

func (r *ec2Region) describeSpotPrices(f awsForm) (any, error) {
	var prices []ec2SpotPrice
	for _, zone := range r.zones {
		for _, kind := range f.list("InstanceType") {
			if r.aws.SpotPrice == nil || r.aws.SpotPrice(zone, kind) == "" {
				continue
			}
			prices = append(prices, ec2SpotPrice{kind, zone, r.aws.SpotPrice(zone, kind), "Linux/UNIX", r.aws.now().UTC().Format("2006-01-02T15:04:05.000Z")})
		}
	}
	part, next := paginate(r.aws, prices, f.get("NextToken"), f.get("MaxResults"))
	return spotPricesAnswer{part, next}, nil
}
