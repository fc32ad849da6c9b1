package oidc

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	gooidc "github.com/coreos/go-oidc/v3/oidc"

	"skyserve/internal/service"
)

// grant maps the claims of a verified token to its user with rights and limits.
func (o *issuer) grant(token *gooidc.IDToken, subject string, limits service.KeyLimits) (service.APIKey, error) {
	var all map[string]any
	if err := token.Claims(&all); err != nil {
		return service.APIKey{}, errors.New("the claims of the token are not a JSON object")
	}
	tenant, err := o.tenantOf(all)
	if err != nil {
		return service.APIKey{}, err
	}
	user, ok := o.Grant(rolesIn(findClaim(all, o.RoleClaim)), limits)
	if !ok {
		return service.APIKey{}, &Rejection{Kind: RejectForbidden, Reason: "the claim " + quote(o.RoleClaim) + " of the token contains none of the accepted roles"}
	}
	user.Name, user.Tenant = userName(o.Issuer, tenant, subject), tenant
	if tenant == "" {
		user.Tenant = user.Name
	}
	return user, nil
}

// tenantOf returns the tenant of a token; empty if each user is a tenant.
func (o *issuer) tenantOf(all map[string]any) (string, error) {
	if o.TenantClaim == "" {
		return o.Tenant, nil
	}
	value := findClaim(all, o.TenantClaim)
	tenant, ok := value.(string)
	switch {
	case value == nil:
		return "", errors.New("the token has no claim " + quote(o.TenantClaim) + ", which contains the tenant")
	case !ok:
		return "", errors.New("the claim " + quote(o.TenantClaim) + " of the token, which contains the tenant, is not text")
	case !service.ValidKeyName(tenant):
		return "", fmt.Errorf("the claim %s of the token is not the name of a tenant: %s", quote(o.TenantClaim), quote(tenant))
	}
	return tenant, nil
}

// findClaim returns the claim with a name, or at a path of names with periods between them; nil if there
// is none.
func findClaim(all map[string]any, path string) any {
	if value, ok := all[path]; ok || path == "" {
		return value
	}
	first, rest, nested := strings.Cut(path, ".")
	if inner, ok := all[first].(map[string]any); ok && nested {
		return findClaim(inner, rest)
	}
	return nil
}

// rolesIn returns the roles in a claim, a text or a list of texts.
func rolesIn(value any) []string {
	switch value := value.(type) {
	case string:
		return []string{value}
	case []any:
		var roles []string
		for _, role := range value {
			if text, ok := role.(string); ok {
				roles = append(roles, text)
			}
		}
		return roles
	}
	return nil
}

// maxShownSubject is the maximum length of the part of a subject in the name of a user.
const maxShownSubject = 40

// userName returns the name of a user in accounts, metrics and usage: the start of the subject, and a hash
// of all that identifies the user. It contains a character that names of API keys do not contain.
func userName(issuer, tenant, subject string) string {
	shown := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._@/-", r):
			return r
		}
		return '-'
	}, subject)
	shown = shown[:min(len(shown), maxShownSubject)]
	sum := sha256.Sum256([]byte(issuer + "\x00" + tenant + "\x00" + subject))
	return shown + "~" + hex.EncodeToString(sum[:8])
}
