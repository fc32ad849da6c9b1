package service

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// OIDC is an issuer of identity tokens (JSON Web Tokens of OpenID Connect) that clients may present
// instead of API keys.
type OIDC struct {
	// Issuer is the issuer's URL, exactly as its tokens contain it.
	Issuer string `yaml:"issuer" json:"issuer"`
	// Audience is the audience that a token must have: it was issued for this service.
	Audience string `yaml:"audience" json:"audience"`
	// Tenant is the tenant of all tokens, TenantClaim the claim with a token's tenant. If both are empty,
	// each user is a tenant.
	Tenant      string `yaml:"tenant,omitempty" json:"tenant,omitempty"`
	TenantClaim string `yaml:"tenant_claim,omitempty" json:"tenant_claim,omitempty"`
	// Tier, MaxTier and Limits are as those of an APIKey, for tokens without a role that sets them.
	Tier    Tier      `yaml:"tier,omitempty" json:"tier,omitempty"`
	MaxTier Tier      `yaml:"max_tier,omitempty" json:"max_tier,omitempty"`
	Limits  KeyLimits `yaml:"limits,omitempty" json:"limits,omitzero"`
	// RoleClaim is the claim with a token's roles, a text or a list. The first of Roles that the token has
	// applies. RequireRole rejects tokens without any of them.
	RoleClaim   string     `yaml:"role_claim,omitempty" json:"role_claim,omitempty"`
	Roles       []OIDCRole `yaml:"roles,omitempty" json:"roles,omitempty"`
	RequireRole bool       `yaml:"require_role,omitempty" json:"require_role,omitempty"`
}

// OIDCRole contains the rights of tokens with one value of the role claim.
type OIDCRole struct {
	// Name is the value of the claim.
	Name    string    `yaml:"name" json:"name"`
	Tier    Tier      `yaml:"tier,omitempty" json:"tier,omitempty"`
	MaxTier Tier      `yaml:"max_tier,omitempty" json:"max_tier,omitempty"`
	Limits  KeyLimits `yaml:"limits,omitempty" json:"limits,omitzero"`
}

// Or returns the limits with those that are not set taken from others.
func (l KeyLimits) Or(others KeyLimits) KeyLimits {
	for i, to := range l.limits() {
		if *to == 0 {
			*to = *others.limits()[i]
		}
	}
	for i, to := range l.budgets() {
		if *to == 0 {
			*to = *others.budgets()[i]
		}
	}
	return l
}

func (l *KeyLimits) limits() [7]*int {
	return [...]*int{&l.RequestsPerMinute, &l.TokensPerMinute, &l.Concurrent, &l.RequestsPerDay, &l.TokensPerDay, &l.RequestsPerMonth, &l.TokensPerMonth}
}

func (l *KeyLimits) budgets() [2]*float64 { return [...]*float64{&l.USDPerDay, &l.USDPerMonth} }

// Required reports whether clients must authenticate.
func (a *Auth) Required() bool { return a != nil && (a.KeysFrom != "" || len(a.OIDC) > 0) }

// AuthConflict is a key of Auth with the problem of its value and a suggestion.
type AuthConflict struct{ Key, Problem, Suggestion string }

// Conflicts returns the conflicts between keys; none if a is nil.
func (a *Auth) Conflicts() (all []AuthConflict) {
	if a == nil {
		return nil
	}
	add := func(key, problem, suggestion string) { all = append(all, AuthConflict{key, problem, suggestion}) }
	if !a.Required() {
		add("keys_from", "is required", "set it to env:NAME or file:PATH, which contains the API keys, one per line; without API keys, remove auth, or list issuers of identity tokens in oidc")
	}
	first := map[string]int{}
	for i, o := range a.OIDC {
		p := fmt.Sprintf("oidc[%d].", i)
		if j, duplicate := first[o.Issuer]; duplicate && o.Issuer != "" {
			add(p+"issuer", fmt.Sprintf("duplicates oidc[%d].issuer", j), "")
		} else {
			first[o.Issuer] = i
		}
		o.conflicts(func(key, problem, suggestion string) { add(p+key, problem, suggestion) })
	}
	return all
}

// conflicts reports the conflicts in one issuer.
func (o *OIDC) conflicts(add func(key, problem, suggestion string)) {
	if !formIssuer.matches(o.Issuer) {
		add("issuer", fmt.Sprintf("must be %s, got %q", formIssuer.description, shorten(o.Issuer)), "")
	}
	if o.Audience == "" {
		add("audience", "is required", "set it to the name of the service at the issuer")
	}
	if o.Tenant != "" && !ValidKeyName(o.Tenant) {
		add("tenant", fmt.Sprintf("must be %s, got %q", formKeyName.description, shorten(o.Tenant)), "")
	}
	checkTiers("OIDC", o.Tier, o.MaxTier, add)
	if o.Tenant != "" && o.TenantClaim != "" {
		add("tenant_claim", "cannot be combined with tenant", "remove one of them")
	}
	if len(o.Roles) > 0 && o.RoleClaim == "" {
		add("role_claim", "is required with roles", "set it to the claim that contains a token's roles, such as roles or realm_access.roles")
	}
	if o.RequireRole && len(o.Roles) == 0 {
		add("require_role", "requires roles: without them every token would be rejected", "")
	}
	first := map[string]int{}
	for i, r := range o.Roles {
		p := fmt.Sprintf("roles[%d].", i)
		if j, duplicate := first[r.Name]; duplicate && r.Name != "" {
			add(p+"name", fmt.Sprintf("duplicates roles[%d].name", j), "")
		} else {
			first[r.Name] = i
		}
		checkTiers("OIDCRole", r.Tier, r.MaxTier, func(key, problem, suggestion string) { add(p+key, problem, suggestion) })
		if r.MaxTier == "" && r.Tier.MoreUrgentThan(o.MaxTier) {
			add(p+"tier", fmt.Sprintf("must not be more urgent than the issuer's max_tier (%s), got %s", o.MaxTier, r.Tier), "set max_tier of the role")
		}
	}
}

// checkTiers checks the tiers of an issuer or a role.
func checkTiers(typ string, tier, maxTier Tier, add func(key, problem, suggestion string)) {
	for _, t := range []struct {
		key   string
		value Tier
	}{{"tier", tier}, {"max_tier", maxTier}} {
		if err := CheckValue(typ+"."+t.key, string(t.value)); t.value != "" && err != nil {
			add(t.key, err.Error(), "")
		}
	}
	if tier.MoreUrgentThan(maxTier) {
		add("tier", fmt.Sprintf("must not be more urgent than max_tier (%s), got %s", maxTier, tier), "")
	}
}

// Budget returns the key below Auth of the first budget in US dollars; empty if there is none. Keys from
// KeysFrom may have others.
func (a *Auth) Budget() string {
	if a == nil {
		return ""
	}
	if a.Limits.HasBudget() {
		return "limits"
	}
	for _, tenant := range slices.Sorted(maps.Keys(a.Tenants)) {
		if a.Tenants[tenant].HasBudget() {
			return "tenants." + tenant
		}
	}
	for i, o := range a.OIDC {
		if o.Limits.HasBudget() {
			return fmt.Sprintf("oidc[%d].limits", i)
		}
		for j, r := range o.Roles {
			if r.Limits.HasBudget() {
				return fmt.Sprintf("oidc[%d].roles[%d].limits", i, j)
			}
		}
	}
	return ""
}

// checkAuth checks how clients authenticate, and that budgets can be enforced.
func (c *checker) checkAuth() {
	a, p := c.spec.Balancer.Auth, path("balancer").key("auth")
	if a == nil || !c.valid(p) {
		return
	}
	for _, conflict := range a.Conflicts() {
		if at := p + path("."+conflict.Key); c.valid(at, p.key("keys_from"), p.key("oidc")) {
			c.reportAtPath(at, Error{Problem: conflict.Problem, Suggestion: conflict.Suggestion})
		}
	}
	budget := a.Budget()
	if budget == "" {
		return
	}
	for i, m := range c.spec.Models {
		if at := path("models").index(i).key("price"); m.Price == nil && c.valid(at) {
			c.reportAtPath(at, Error{
				Problem:    fmt.Sprintf("is required: balancer.auth.%s is a budget in USD, and keys with a budget cannot use a model without a price", budget),
				Suggestion: "set it in USD per million tokens, for example price: {input: 0.20, output: 0.60}",
			})
		}
	}
}

// checkPrice checks that cached prompt tokens are not costlier than others: the reservation of a request
// assumes that nothing is cached.
func (c *checker) checkPrice(price *Price, p path) {
	if price == nil || price.CachedInput == nil || !c.valid(p, p.key("input"), p.key("cached_input")) {
		return
	}
	if *price.CachedInput > price.Input {
		c.reportProblem(p.key("cached_input"), "must be at most input, which is %s", formatNumber(price.Input))
	}
}

// Grant returns the rights and limits of a user whose token has some roles, without a name and tenant;
// limits are the defaults. ok is false if the token has none of the required roles.
func (o *OIDC) Grant(roles []string, limits KeyLimits) (user APIKey, ok bool) {
	i := slices.IndexFunc(o.Roles, func(r OIDCRole) bool { return slices.Contains(roles, r.Name) })
	if i < 0 && o.RequireRole {
		return APIKey{}, false
	}
	var role OIDCRole
	if i >= 0 {
		role = o.Roles[i]
	}
	user = APIKey{Tier: cmp.Or(role.Tier, o.Tier), MaxTier: cmp.Or(role.MaxTier, o.MaxTier), Limits: role.Limits.Or(o.Limits.Or(limits))}
	if tier, _ := ParseTier(string(user.Tier)); tier.MoreUrgentThan(user.MaxTier) {
		user.Tier = user.MaxTier
	}
	return user, true
}

// ValidKeyName reports whether text is a valid name of a key or tenant.
func ValidKeyName(text string) bool { return formKeyName.matches(text) }
