package testcloud

import "strings"

type ec2Route struct {
	To      string `xml:"destinationCidrBlock"`
	Gateway string `xml:"gatewayId,omitempty"`
	NAT     string `xml:"natGatewayId,omitempty"`
	State   string `xml:"state"`
}

type ec2Association struct {
	Main   bool   `xml:"main"`
	Table  string `xml:"routeTableId"`
	Subnet string `xml:"subnetId,omitempty"`
}

// ec2RouteTable contains the routes of its subnets.
type ec2RouteTable struct {
	ID           string           `xml:"routeTableId"`
	Vpc          string           `xml:"vpcId"`
	Routes       []ec2Route       `xml:"routeSet>item"`
	Associations []ec2Association `xml:"associationSet>item"`
}

type routeTablesAnswer struct {
	Tables []ec2RouteTable `xml:"routeTableSet>item"`
	Next   string          `xml:"nextToken,omitempty"`
}

// describeRouteTables returns a main table for each network, which has a default route only in the
// default network, and a table for each other subnet with a gateway.
func (r *ec2Region) describeRouteTables(f awsForm) (any, error) {
	all := map[string]ec2RouteTable{}
	add := func(id, vpc, subnet, gateway string) {
		t := ec2RouteTable{ID: id, Vpc: vpc, Routes: []ec2Route{{To: "10.0.0.0/16", Gateway: "local", State: "active"}}}
		switch {
		case strings.HasPrefix(gateway, "nat-"):
			t.Routes = append(t.Routes, ec2Route{To: "0.0.0.0/0", NAT: gateway, State: "active"})
		case gateway != "":
			t.Routes = append(t.Routes, ec2Route{To: "0.0.0.0/0", Gateway: gateway, State: "active"})
		}
		t.Associations = []ec2Association{{Main: subnet == "", Table: id, Subnet: subnet}}
		all[id] = t
	}
	if r.vpc != "" {
		add("rtb-"+r.vpc, r.vpc, "", "igw-"+r.name)
	}
	for _, vpc := range r.networks {
		add("rtb-"+vpc, vpc, "", "")
	}
	for _, s := range r.subnets {
		if !s.Default && s.gateway != "" { // a subnet without a gateway uses the main table
			add("rtb-"+s.ID, s.Vpc, s.ID, s.gateway)
		}
	}
	tables, err := filtered(f, all, func(t ec2RouteTable) attributes { return attributes{"vpc-id": t.Vpc} })
	part, next := paginate(r.aws, tables, f.get("NextToken"), f.get("MaxResults"))
	return routeTablesAnswer{part, next}, err
}
