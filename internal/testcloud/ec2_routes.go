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

// ec2RouteTable says where packets of its subnets go.
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

// describeRouteTables shows a table for each network, which leads out of the default one
// and out of no other, and one for each subnet of a network that is not the default one.
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
		if !s.Default && s.gateway != "" { // one without is of the main table
			add("rtb-"+s.ID, s.Vpc, s.ID, s.gateway)
		}
	}
	tables, err := chosen(f, all, func(t ec2RouteTable) facts { return facts{"vpc-id": t.Vpc} })
	part, next := cutPage(r.aws, tables, f.get("NextToken"), f.get("MaxResults"))
	return routeTablesAnswer{part, next}, err
}
