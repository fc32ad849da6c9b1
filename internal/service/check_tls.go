package service

import (
	"fmt"
	"slices"
)

// tls wants a certificate with its key, or ACME.
func (c *checker) tls() {
	t, p := c.spec.Balancer.TLS, path("balancer").key("tls")
	if t == nil || !c.fine(p, p.key("cert"), p.key("key"), p.key("acme")) {
		return
	}
	switch {
	case t.ACME != nil && (t.Cert != "" || t.Key != ""):
		c.failPath(p.key("acme"), Error{Problem: "cannot stand beside cert and key", Suggestion: "remove one of them"})
	case t.ACME != nil:
		c.acme(t.ACME, p.key("acme"))
	case t.Cert == "":
		c.failPath(p.key("cert"), Error{Problem: "is missing", Suggestion: "name a certificate and its key, or write acme"})
	case t.Key == "":
		c.failPath(p.key("key"), Error{Problem: "is missing", Suggestion: "a certificate is no use without its key"})
	}
}

// acme checks that an authority can make sure of the service's name.
func (c *checker) acme(a *ACME, p path) {
	d := c.spec.DNS
	if d == nil && c.fine("dns") {
		c.failPath(p, Error{Problem: "needs dns.name: a certificate is issued for a name", Suggestion: "write dns: {provider: route53, name: chat.example.com, zone: example.com}"})
	}
	own := a.CA != CALetsEncrypt && a.CA != CALetsEncryptStaging
	if at := p.key("root"); a.Root != "" && !own && c.fine(at, p.key("ca")) {
		c.failPath(at, Error{Problem: "belongs to an authority of your own, and ca is " + a.CA, Suggestion: "remove it or write ca: https://..."})
	}
	if at := p.key("ca"); d != nil && d.Private && !own && c.fine(at, "dns", "dns.private") {
		c.failPath(at, Error{Problem: "must be an authority inside your network: dns.private hides the name from " + a.CA, Suggestion: "write ca: https://..."})
	}
	if at := p.key("resolvers"); len(a.Resolvers) > 0 && a.Challenge != ChallengeDNS && c.fine(at, p.key("challenge")) {
		c.failPath(at, Error{Problem: fmt.Sprintf("belongs to challenge %s only, and the challenge is %s", ChallengeDNS, a.Challenge)})
	}
	if at := p.key("resolvers"); d != nil && d.Private && a.Challenge == ChallengeDNS && len(a.Resolvers) == 0 && c.fine(at, "dns", "dns.private", p.key("challenge")) {
		c.failPath(at, Error{Problem: "is missing: the name servers of a private zone cannot be asked whether a record is there", Suggestion: `write resolvers: ["169.254.169.253:53"], which a network of AWS answers by`})
	}
	if d != nil && c.fine("dns", "dns.provider", p.key("challenge")) {
		c.challenge(a, p.key("challenge"))
	}
}

// challenge checks that somebody can answer the challenge of an authority.
func (c *checker) challenge(a *ACME, p path) {
	regions := c.spec.Regions
	cloud := func(name string) func(RegionSpec) bool {
		return func(r RegionSpec) bool { return r.Name.Cloud() == name }
	}
	rented := slices.ContainsFunc(regions, func(r RegionSpec) bool { return r.Name.rented() })
	others := "http-01 or tls-alpn-01"
	switch {
	case a.Challenge == ChallengeDNS && c.spec.DNS.Provider != DNSRoute53:
		c.failPath(p, Error{Problem: fmt.Sprintf("must be %s: dns-01 writes records to Route 53, and dns.provider is %s", others, c.spec.DNS.Provider), Found: c.foundAt(p)})
	case a.Challenge == ChallengeDNS && rented && !slices.ContainsFunc(regions, cloud(CloudAWS)):
		c.failPath(p, Error{Problem: fmt.Sprintf("must be %s: records of Route 53 are written by a balancer's machine at AWS, and no region is there", others), Found: c.foundAt(p)})
	case a.Challenge == ChallengeHTTP && !rented && c.fine("local", "local.port") && c.spec.LocalHosts.Port > 65535-challengePorts:
		c.failPath("local.port", Error{Problem: fmt.Sprintf("must be at most %d: the ports on which balancers answer an authority are 400 above theirs", 65535-challengePorts), Found: c.foundAt("local.port")})
	case a.Challenge != ChallengeDNS && !rented:
		for i, r := range regions {
			if at := path("regions").index(i); len(r.Public) == 0 && c.fine(at, at.key("name"), at.key("public")) {
				c.failPath(at.key("public"), Error{
					Problem:    fmt.Sprintf("is missing: with the challenge %s the authority connects to %s from outside, and balancers of %s listen on loopback", a.Challenge, c.spec.DNS.Name, r.Name),
					Suggestion: `say what forwards to them: public: ["https://203.0.113.7"]`,
				})
			}
		}
	}
}

// plainHTTP refuses balancers in a cloud that would serve plain HTTP to the world,
// unless the file asks for that by name, and refuses to ask for it elsewhere.
func (c *checker) plainHTTP() {
	p := path("balancer").key("insecure")
	if !c.fine("balancer", p, path("balancer").key("tls")) {
		return
	}
	b := c.spec.Balancer
	i := slices.IndexFunc(c.spec.Regions, func(r RegionSpec) bool { return r.Name.rented() })
	switch {
	case i >= 0 && !c.fine(path("regions").index(i), path("regions").index(i).key("name")):
	case i < 0 && b.Insecure:
		c.failPath(p, Error{
			Problem:    "belongs to services with a region in a cloud: balancers of local and static regions listen on loopback",
			Suggestion: "remove it",
		})
	case b.Insecure && b.TLS != nil:
		c.failPath(p, Error{Problem: "cannot stand beside tls: with it the public port serves HTTPS alone", Suggestion: "remove one of them"})
	case i >= 0 && b.TLS == nil && !b.Insecure:
		c.failPath(path("balancer").key("tls"), Error{
			Problem:    fmt.Sprintf("is missing: balancers in %s would serve plain HTTP to the world", c.spec.Regions[i].Name),
			Suggestion: "have a certificate obtained (tls: {acme: {email: YOU@example.com}}), name one (tls: {cert: FILE, key: FILE}), or accept plain HTTP (insecure: true)",
		})
	}
}
