package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// keysOfProvider are the keys of dns that only one provider has.
var keysOfProvider = map[string][]string{DNSRoute53: {"private"}, DNSEmbedded: {"listen", "clients"}}

// dns checks that the keys of dns fit each other and the regions.
func (c *checker) dns() {
	d := c.spec.DNS
	if d == nil || !c.fine("dns", "dns.provider") {
		return
	}
	for _, provider := range sortedKeys(keysOfProvider) {
		for _, key := range keysOfProvider[provider] {
			if p := path("dns").key(key); provider != d.Provider && c.at[p] != nil {
				c.failPath(p, Error{Problem: fmt.Sprintf("belongs to provider %s only, and the provider is %s", provider, d.Provider)})
			}
		}
	}
	if d.Provider == DNSRoute53 && d.Zone == "" {
		c.failPath("dns.zone", Error{Problem: "is missing", Suggestion: "want " + formHost.words + ", a hosted zone of the account"})
		return
	}
	if c.fine("dns.name", "dns.zone") && d.Name != d.Zone && !strings.HasSuffix(d.Name, "."+d.Zone) {
		c.problem("dns.name", "must be in the zone %s", d.Zone)
	}
	if c.fine("dns.ttl") && d.TTL%time.Second != 0 {
		c.problem("dns.ttl", "must be whole seconds")
	}
	if d.Provider == DNSEmbedded {
		c.nameServer(d)
	}
}

// nameServer checks what an embedded name server is told.
func (c *checker) nameServer(d *DNS) {
	for i, r := range c.spec.Regions {
		if r.Name.rented() {
			c.problem("dns.provider", "answers for machines of its own only, and regions[%d] is %s", i, r.Name)
			break
		}
	}
	if _, err := netip.ParseAddrPort(d.Listen); err != nil && c.fine("dns.listen") {
		c.problem("dns.listen", "must be %s", formListen.words)
	}
	first := map[netip.Prefix]int{}
	for i, client := range d.Clients {
		p := path("dns.clients").index(i)
		network, err := netip.ParsePrefix(client.Network)
		if at := p.key("network"); client.Network != "" && c.fine(p, at) && (err != nil || network != network.Masked()) {
			c.problem(at, "must be %s, with no bits beyond its length", formNetwork.words)
		} else if j, twice := first[network]; twice && c.fine(p, at) {
			c.problem(at, "repeats dns.clients[%d]", j)
		} else {
			first[network] = i
		}
		c.dnsClient(client, p)
	}
}

// dnsClient checks that a network is near to regions of this service.
func (c *checker) dnsClient(client DNSClient, p path) {
	if client.Region == "" && len(client.RTT) == 0 && c.fine(p, p.key("region"), p.key("rtt")) {
		c.failPath(p, Error{Problem: "says nothing of where the network is", Suggestion: "write region, or rtt"})
	}
	known := func(name Region) bool {
		return slices.ContainsFunc(c.spec.Regions, func(r RegionSpec) bool { return r.Name == name })
	}
	if at := p.key("region"); client.Region != "" && c.fine(p, at) && !known(client.Region) {
		c.failPath(at, Error{Problem: "is not a region of this service", Found: c.foundAt(at), Suggestion: c.knownRegions(string(client.Region))})
	}
	for _, name := range sortedKeys(client.RTT) {
		if at := p.key("rtt").key(string(name)); !known(name) && c.fine(at) {
			c.failPath(at, Error{Problem: "is not a region of this service", Suggestion: c.knownRegions(string(name))})
		}
	}
}

// public checks where others reach the balancers of a region.
func (c *checker) public(r *RegionSpec, p path) {
	at := p.key("public")
	if c.at[at] == nil || !c.fine(at) {
		return
	}
	if r.Name.rented() {
		c.failPath(at, Error{Problem: fmt.Sprintf("belongs to regions of machines that are already there, and this is %s", r.Name), Suggestion: "the cloud gives balancers their addresses"})
		return
	}
	if len(r.Public) != r.Balancers && c.fine(p.key("balancers")) {
		c.failPath(at, Error{Problem: fmt.Sprintf("must name each balancer of the region, %d, got %d", r.Balancers, len(r.Public))})
	}
	for i, base := range r.Public {
		if e := at.index(i); c.fine(e) && !validPublic(base) {
			c.problem(e, "must be %s", formPublic.words)
		}
	}
}

// validPublic says whether a URL has an address that exists, and a port.
func validPublic(base string) bool {
	_, host, _ := strings.Cut(base, "://")
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return !addr.IsUnspecified()
	}
	ap, err := netip.ParseAddrPort(host)
	return err == nil && ap.Port() > 0 && !ap.Addr().IsUnspecified()
}
