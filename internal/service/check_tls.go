package service

import (
	"fmt"
	"slices"
)

// checkTLS requires either a certificate with its key, or ACME.
func (c *checker) checkTLS() {
	t, p := c.spec.Balancer.TLS, path("balancer").key("tls")
	if t == nil || !c.valid(p, p.key("cert"), p.key("key"), p.key("acme")) {
		return
	}
	switch {
	case t.ACME != nil && (t.Cert != "" || t.Key != ""):
		c.reportAtPath(p.key("acme"), Error{Problem: "cannot be combined with cert and key", Suggestion: "remove one of them"})
	case t.ACME != nil:
		c.checkACME(t.ACME, p.key("acme"))
	case t.Cert == "":
		c.reportAtPath(p.key("cert"), Error{Problem: "is required", Suggestion: "set cert and key, or acme"})
	case t.Key == "":
		c.reportAtPath(p.key("key"), Error{Problem: "is required with cert", Suggestion: "set the file of the certificate's key"})
	}
}

// checkACME checks that a certificate authority can validate the service's DNS name.
func (c *checker) checkACME(a *ACME, p path) {
	d := c.spec.DNS
	if d == nil && c.valid("dns") {
		c.reportAtPath(p, Error{Problem: "requires dns.name: a certificate is issued for a name", Suggestion: "set dns, for example dns: {provider: route53, name: chat.example.com, zone: example.com}"})
	}
	private := a.CA != CALetsEncrypt && a.CA != CALetsEncryptStaging
	if at := p.key("root"); a.Root != "" && !private && c.valid(at, p.key("ca")) {
		c.reportAtPath(at, Error{Problem: "is only valid for a private certificate authority, but ca is " + a.CA, Suggestion: "remove it or set ca: https://..."})
	}
	if at := p.key("ca"); d != nil && d.Private && !private && c.valid(at, "dns", "dns.private") {
		c.reportAtPath(at, Error{Problem: "must be a private certificate authority: with dns.private, " + a.CA + " cannot resolve the name", Suggestion: "set ca: https://..."})
	}
	if at := p.key("resolvers"); len(a.Resolvers) > 0 && a.Challenge != ChallengeDNS && c.valid(at, p.key("challenge")) {
		c.reportAtPath(at, Error{Problem: fmt.Sprintf("is only valid for challenge %s, but the challenge is %s", ChallengeDNS, a.Challenge)})
	}
	if at := p.key("resolvers"); d != nil && d.Private && a.Challenge == ChallengeDNS && len(a.Resolvers) == 0 && c.valid(at, "dns", "dns.private", p.key("challenge")) {
		c.reportAtPath(at, Error{Problem: "is required with dns.private: the name servers of a private hosted zone cannot be queried", Suggestion: `in an AWS network set resolvers: ["169.254.169.253:53"]`})
	}
	if at := p.key("resolvers"); c.valid(at) {
		for i, resolver := range a.Resolvers {
			c.checkAddress(resolver, at.index(i))
		}
	}
	if d != nil && c.valid("dns", "dns.provider", p.key("challenge")) {
		c.checkChallenge(a, p.key("challenge"))
	}
}

// checkChallenge checks that a balancer can solve the certificate authority's challenge.
func (c *checker) checkChallenge(a *ACME, p path) {
	regions := c.spec.Regions
	cloud := func(name string) func(RegionSpec) bool {
		return func(r RegionSpec) bool { return r.Name.Cloud() == name }
	}
	rented := slices.ContainsFunc(regions, func(r RegionSpec) bool { return r.Name.Rented() })
	others := "http-01 or tls-alpn-01"
	switch {
	case a.Challenge == ChallengeDNS && c.spec.DNS.Provider != DNSRoute53:
		c.reportAtPath(p, Error{Problem: fmt.Sprintf("must be %s: dns-01 requires dns.provider route53, but dns.provider is %s", others, c.spec.DNS.Provider), Found: c.describePath(p)})
	case a.Challenge == ChallengeDNS && rented && !slices.ContainsFunc(regions, cloud(CloudAWS)):
		c.reportAtPath(p, Error{Problem: fmt.Sprintf("must be %s: dns-01 requires a balancer on AWS, which writes the DNS records, but there is no AWS region", others), Found: c.describePath(p)})
	case a.Challenge != ChallengeDNS && !rented:
		for i, r := range regions {
			if at := path("regions").index(i); len(r.PublicURLs) == 0 && c.valid(at, at.key("name"), at.key("public_urls")) {
				c.reportAtPath(at.key("public_urls"), Error{
					Problem:    fmt.Sprintf("is required: with challenge %s the certificate authority connects to %s from the internet, but balancers of %s listen on loopback", a.Challenge, c.spec.DNS.Name, r.Name),
					Suggestion: `set the URL of the address that forwards to them, for example public_urls: ["https://203.0.113.7"]`,
				})
			}
		}
	}
}

// checkPlainHTTP rejects cloud balancers without TLS unless insecure is set, and rejects insecure
// elsewhere.
func (c *checker) checkPlainHTTP() {
	p := path("balancer").key("insecure")
	if !c.valid("balancer", p, path("balancer").key("tls")) {
		return
	}
	b := c.spec.Balancer
	i := slices.IndexFunc(c.spec.Regions, func(r RegionSpec) bool { return r.Name.Rented() })
	switch {
	case i >= 0 && !c.valid(path("regions").index(i), path("regions").index(i).key("name")):
	case i < 0 && b.Insecure && !c.validRegionNames(): // one of them may be meant to be in a cloud
	case i < 0 && b.Insecure:
		c.reportAtPath(p, Error{
			Problem:    "is only valid for services with a cloud region: balancers of local and static regions listen on loopback",
			Suggestion: "remove it",
		})
	case b.Insecure && b.TLS != nil:
		c.reportAtPath(p, Error{Problem: "cannot be combined with tls, which makes the public port serve only HTTPS", Suggestion: "remove one of them"})
	case i >= 0 && b.TLS == nil && !b.Insecure:
		c.reportAtPath(path("balancer").key("tls"), Error{
			Problem:    fmt.Sprintf("is required: balancers in %s would serve plain HTTP on the public internet", c.spec.Regions[i].Name),
			Suggestion: "obtain a certificate (tls: {acme: {email: YOU@example.com}}), use an existing one (tls: {cert: FILE, key: FILE}), or allow plain HTTP (insecure: true)",
		})
	}
}
