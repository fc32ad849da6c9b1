package service

import (
	"net/netip"
	"net/url"
	"slices"
)

// checkFallbacks checks that every fallback is another model of the service or a model of a provider.
func (c *checker) checkFallbacks() {
	c.checkProviders()
	var names []string
	for _, m := range c.spec.Models {
		names = append(names, m.Name)
	}
	targets := ProviderTargets(c.spec.Providers)
	for i, m := range c.spec.Models {
		p := path("models").index(i)
		for j, name := range m.Fallback {
			at := p.key("fallback").index(j)
			switch {
			case !c.valid(at) || name == "":
			case name == m.Name:
				c.reportProblem(at, "must not be the model itself")
			case !slices.Contains(names, name) && !slices.Contains(targets, name):
				valid := slices.DeleteFunc(slices.Concat(names, targets), func(name string) bool { return name == m.Name })
				suggestion := "this service has no other model: add one, or a model of a provider in providers"
				if len(valid) > 0 {
					suggestion = didYouMean(name, valid, "valid fallbacks:")
				}
				c.reportAtPath(at, Error{
					Problem: "is neither another model of this service nor PROVIDER/MODEL of providers", Found: c.describePath(at), Suggestion: suggestion,
				})
			}
		}
		if at := p.key("fallback_after"); m.FallbackAfter > 0 && len(m.Fallback) == 0 && c.valid(at, p.key("fallback")) {
			c.reportAtPath(at, Error{Problem: "requires fallback"})
		}
	}
}

// checkProviders checks names, URLs and prices of providers.
func (c *checker) checkProviders() {
	first := map[string]int{}
	for i, pr := range c.spec.Providers {
		p := path("providers").index(i)
		if j, duplicate := first[pr.Name]; duplicate && pr.Name != "" {
			c.reportProblem(p.key("name"), "duplicates providers[%d]", j)
		} else {
			first[pr.Name] = i
		}
		if at := p.key("url"); pr.URL != "" && c.valid(at) {
			switch {
			case !validURL(pr.URL):
				c.reportProblem(at, "%s", urlProblem(pr.URL, formEndpoint))
			case !SafeProviderURL(pr.URL):
				c.reportProblem(at, "must start with https://: prompts and the API key leave the machine")
			}
			c.checkAboveV1(at, pr.URL)
		}
		seen := map[string]bool{}
		for j, m := range pr.Models {
			at := p.key("models").index(j)
			if seen[m.Name] && m.Name != "" {
				c.reportProblem(at.key("name"), "duplicates another model of the provider")
			}
			seen[m.Name] = true
			target := pr.Target(m.Name)
			if slices.ContainsFunc(c.spec.Models, func(own Model) bool { return own.Name == target }) {
				c.reportProblem(at.key("name"), "makes %q ambiguous: a model of this service has that name", target)
			}
			if pr.USDPerDay > 0 && m.Price == nil && c.valid(at, at.key("price")) {
				c.reportAtPath(at, Error{Problem: "requires price, because the provider has usd_per_day"})
			}
		}
	}
}

// SafeProviderURL reports whether prompts and a key may be sent to a URL: it uses https, or stays on
// this machine.
func SafeProviderURL(raw string) bool {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "https" {
		return err == nil
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return err == nil && addr.IsLoopback()
}
