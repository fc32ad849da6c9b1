package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// keysOfProvider are the keys of dns that only one provider supports.
var keysOfProvider = map[string][]string{DNSRoute53: {"private"}, DNSEmbedded: {"listen", "clients"}}

// checkDNS validates the keys of dns against each other and the regions.
func (c *checker) checkDNS() {
	d := c.spec.DNS
	if d == nil || !c.valid("dns", "dns.provider") {
		return
	}
	for _, provider := range sortedKeys(keysOfProvider) {
		for _, key := range keysOfProvider[provider] {
			if p := path("dns").key(key); provider != d.Provider && c.at[p] != nil {
				c.reportAtPath(p, Error{Problem: fmt.Sprintf("is only valid for provider %s, but the provider is %s", provider, d.Provider)})
			}
		}
	}
	if d.Provider == DNSRoute53 && d.Zone == "" {
		c.reportAtPath("dns.zone", Error{Problem: "is required for provider " + DNSRoute53, Suggestion: "set the name of a hosted zone such as example.com"})
		return
	}
	if c.valid("dns.name", "dns.zone") && d.Name != d.Zone && !strings.HasSuffix(d.Name, "."+d.Zone) {
		c.reportProblem("dns.name", "must be a name in the DNS zone %s", d.Zone)
	}
	if c.valid("dns.ttl") && d.TTL%time.Second != 0 {
		c.reportProblem("dns.ttl", "must be whole seconds")
	}
	if d.Provider == DNSEmbedded {
		c.checkNameServer(d)
	}
}

// checkNameServer validates the configuration of an embedded name server.
func (c *checker) checkNameServer(d *DNS) {
	for i, r := range c.spec.Regions {
		if r.Name.Rented() {
			c.reportProblem("dns.provider", "embedded supports only local and static regions, but regions[%d] is %s", i, r.Name)
			break
		}
	}
	c.checkAddress(d.Listen, "dns.listen")
	first := map[netip.Prefix]int{}
	for i, client := range d.Clients {
		p := path("dns.clients").index(i)
		network, err := netip.ParsePrefix(client.Network)
		if at := p.key("network"); client.Network != "" && c.valid(p, at) && (err != nil || network != network.Masked()) {
			c.reportProblem(at, "must be %s, without bits after the prefix length", formNetwork.description)
		} else if j, duplicate := first[network]; duplicate && c.valid(p, at) {
			c.reportProblem(at, "duplicates dns.clients[%d]", j)
		} else {
			first[network] = i
		}
		c.checkDNSClient(client, p)
	}
}

// checkAddress validates an IP address with a port.
func (c *checker) checkAddress(address string, p path) {
	if !c.valid(p) {
		return
	}
	if base := "udp://" + address; !validURL(base) {
		c.reportProblem(p, "%s", urlProblem(base, formListen))
	} else if _, err := netip.ParseAddrPort(address); err != nil {
		c.reportProblem(p, "must be %s", formListen.description)
	}
}

// checkDNSClient checks that a network's regions are regions of this service.
func (c *checker) checkDNSClient(client DNSClient, p path) {
	if client.Region == "" && len(client.RTT) == 0 && c.valid(p, p.key("region"), p.key("rtt")) {
		c.reportAtPath(p, Error{Problem: "must have a location", Suggestion: "set region or rtt"})
	}
	known := func(name Region) bool {
		return slices.ContainsFunc(c.spec.Regions, func(r RegionSpec) bool { return r.Name == name })
	}
	if at := p.key("region"); client.Region != "" && c.valid(p, at) && !known(client.Region) {
		c.reportAtPath(at, Error{Problem: "is not a region of this service", Found: c.describePath(at), Suggestion: c.knownRegions(string(client.Region))})
	}
	for _, name := range sortedKeys(client.RTT) {
		if at := p.key("rtt").key(string(name)); !known(name) && c.valid(at) {
			c.reportAtPath(at, Error{Problem: "is not a region of this service", Suggestion: c.knownRegions(string(name))})
		}
	}
}

// checkPublic validates the public URLs of a region's balancers.
func (c *checker) checkPublic(r *RegionSpec, p path) {
	at := p.key("public_urls")
	if c.at[at] == nil || !c.valid(at) {
		return
	}
	if r.Name.Rented() {
		c.reportAtPath(at, Error{Problem: fmt.Sprintf("is only valid for local and static regions, but the region is %s", r.Name), Suggestion: "remove it: the cloud assigns the addresses of balancers"})
		return
	}
	if len(r.PublicURLs) != r.Balancers && c.valid(p.key("balancers")) {
		c.reportAtPath(at, Error{Problem: fmt.Sprintf("must have %d URLs, one per balancer of the region, got %d", r.Balancers, len(r.PublicURLs))})
	}
	for i, base := range r.PublicURLs {
		e := at.index(i)
		switch {
		case !c.valid(e) || validPublic(base):
		case !validURL(base):
			c.reportProblem(e, "%s", urlProblem(base, formPublic))
		default:
			c.reportProblem(e, "must be %s", formPublic.description)
		}
	}
}

// validPublic reports whether a URL has a valid address and port.
func validPublic(base string) bool {
	_, host, _ := strings.Cut(base, "://")
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return !addr.IsUnspecified()
	}
	ap, err := netip.ParseAddrPort(host)
	return err == nil && ap.Port() > 0 && !ap.Addr().IsUnspecified()
}
