package service

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// KeyLimits are the limits of one API key, of one user with identity tokens, or of a tenant; zero
// means unlimited. Limits per minute and Concurrent apply at each balancer separately. Limits per day and
// month apply to all balancers of a service together. Days and months are UTC. Tokens are prompt plus
// completion tokens, as the engines report them.
type KeyLimits struct {
	RequestsPerMinute int `yaml:"requests_per_minute,omitempty" json:"requests_per_minute,omitempty"`
	TokensPerMinute   int `yaml:"tokens_per_minute,omitempty" json:"tokens_per_minute,omitempty"`
	// Concurrent limits the requests between arrival and the end of their response.
	Concurrent       int `yaml:"concurrent,omitempty" json:"concurrent,omitempty"`
	RequestsPerDay   int `yaml:"requests_per_day,omitempty" json:"requests_per_day,omitempty"`
	TokensPerDay     int `yaml:"tokens_per_day,omitempty" json:"tokens_per_day,omitempty"`
	RequestsPerMonth int `yaml:"requests_per_month,omitempty" json:"requests_per_month,omitempty"`
	TokensPerMonth   int `yaml:"tokens_per_month,omitempty" json:"tokens_per_month,omitempty"`
	// USDPerDay and USDPerMonth are budgets in US dollars, by the prices of the models.
	USDPerDay   float64 `yaml:"usd_per_day,omitempty" json:"usd_per_day,omitempty"`
	USDPerMonth float64 `yaml:"usd_per_month,omitempty" json:"usd_per_month,omitempty"`
}

// HasQuota reports whether the limits contain one per day or month, including budgets.
func (l KeyLimits) HasQuota() bool {
	return l.RequestsPerDay|l.TokensPerDay|l.RequestsPerMonth|l.TokensPerMonth != 0 || l.HasBudget()
}

// HasBudget reports whether the limits contain a budget in US dollars.
func (l KeyLimits) HasBudget() bool { return l.USDPerDay > 0 || l.USDPerMonth > 0 }

// APIKey is a key with which clients authenticate.
type APIKey struct {
	// Secret is the key itself; it is never displayed.
	Secret string
	// Name identifies the key wherever it is displayed. Keys with the same name share their limits,
	// so that a client can rotate its key without a gap.
	Name string
	// Tenant is the tenant whose share of the queue the key's requests use; keys may share a
	// tenant.
	Tenant string
	// Tier is the tier of requests that do not set one; empty = the service's default.
	Tier Tier
	// MaxTier is the most urgent tier that a request may set; empty = any.
	MaxTier Tier
	Limits  KeyLimits
}

// unlimited is the value that removes a default limit from a key.
const unlimited = "unlimited"

// ParseKeys parses a list of API keys: one per line, first the key, then attributes as
// attribute=value: name, tenant, tier, max_tier and the limits. Blank lines and lines that begin
// with # are skipped. Limits that a line does not set are those of defaults. An error contains
// the line and the attribute, never a key.
func ParseKeys(text string, defaults KeyLimits) ([]APIKey, error) {
	var keys []APIKey
	first := map[string]int{} // name -> line
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) { // some Windows editors begin files with it
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		key, err := parseKey(words, defaults)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if at, err := findConflict(keys, key); err != nil {
			return nil, fmt.Errorf("line %d: %w on line %d", number, err, first[at])
		}
		if _, known := first[key.Name]; !known {
			first[key.Name] = number
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// ReadKeys parses text, the value of KeysFrom, with ParseKeys and the limits of the service. A text without keys is an
// error, because the service would not be protected as configured. Errors contain the source and the line, never a key.
func (a *Auth) ReadKeys(text string) ([]APIKey, error) {
	keys, err := ParseKeys(text, a.Limits)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", a.KeysFrom, err)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s contains no key", a.KeysFrom)
	}
	return keys, nil
}

// findConflict returns the conflict of key with the keys above it, and the name of the conflicting
// key.
func findConflict(above []APIKey, key APIKey) (name string, err error) {
	for _, k := range above {
		switch {
		case k.Secret == key.Secret && k.Name != key.Name:
			return k.Name, fmt.Errorf("duplicates the key")
		case k.Name == key.Name && (k.Tenant != key.Tenant || k.Tier != key.Tier || k.MaxTier != key.MaxTier || k.Limits != key.Limits):
			return k.Name, fmt.Errorf("the attributes of %q differ from those", key.Name)
		}
	}
	return "", nil
}

// parseKey parses the words of one line.
func parseKey(words []string, defaults KeyLimits) (APIKey, error) {
	if strings.ContainsFunc(words[0], func(c rune) bool { return c <= ' ' || c > '~' }) {
		return APIKey{}, errors.New("the key must be printable ASCII characters, which clients can send (it is not shown)")
	}
	sum := sha256.Sum256([]byte(words[0]))
	k := APIKey{Secret: words[0], Name: "key-" + hex.EncodeToString(sum[:4]), Limits: defaults}
	seen := map[string]bool{}
	for i, word := range words[1:] {
		attribute, value, ok := strings.Cut(word, "=")
		if !ok {
			return k, fmt.Errorf("word %d must be ATTRIBUTE=VALUE (it is not shown, because it may be a key)", i+2)
		}
		if seen[attribute] {
			return k, fmt.Errorf("%s: must be set only once", attribute)
		}
		if err := k.setAttribute(attribute, value); err != nil {
			return k, err
		}
		seen[attribute] = true
	}
	if k.Tenant == "" {
		k.Tenant = k.Name
	}
	return k, k.applyMaxTier()
}

// applyMaxTier limits the key's default tier to MaxTier.
func (k *APIKey) applyMaxTier() error {
	defaultTier, _ := ParseTier(string(k.Tier))
	switch {
	case !defaultTier.MoreUrgentThan(k.MaxTier):
	case k.Tier != "":
		return fmt.Errorf("tier: must not be more urgent than max_tier (%s), got %s", k.MaxTier, k.Tier)
	default:
		k.Tier = k.MaxTier
	}
	return nil
}

// otherKeys is the label in metrics that aggregates the keys without a label of their own.
const otherKeys = "other"

// setAttribute stores one attribute.
func (k *APIKey) setAttribute(attribute, value string) error {
	switch attribute {
	case "name", "tenant":
		if !formKeyName.matches(value) {
			return fmt.Errorf("%s: must be %s, got %q", attribute, formKeyName.description, shorten(value))
		}
		if value == otherKeys && attribute == "name" {
			return fmt.Errorf("name: must not be %q: metrics aggregate other keys under that name", otherKeys)
		}
		if attribute == "name" {
			k.Name = value
		} else {
			k.Tenant = value
		}
		return nil
	case "tier":
		tier, err := ParseTier(value)
		if err != nil {
			return fmt.Errorf("tier: %w", err)
		}
		k.Tier = tier
		return nil
	case "max_tier":
		if value == "" {
			return fmt.Errorf("max_tier: is empty: must be fast (IW-F), normal (IW-N) or deferred (NIW)")
		}
		tier, err := ParseTier(value)
		if err != nil {
			return fmt.Errorf("max_tier: %w", err)
		}
		k.MaxTier = tier
		return nil
	}
	return k.Limits.setLimit(attribute, value)
}

// setLimit stores the limit with a name.
func (l *KeyLimits) setLimit(attribute, value string) error {
	fields := fieldsOf(reflect.TypeFor[KeyLimits]())
	i := slices.IndexFunc(fields, func(f field) bool { return f.key == attribute })
	if i < 0 {
		return fmt.Errorf("unknown attribute; %s", didYouMean(attribute, append([]string{"name", "tenant", "tier", "max_tier"}, keysOf(fields)...), "valid attributes:"))
	}
	to := reflect.ValueOf(l).Elem().Field(fields[i].index)
	if value == unlimited {
		to.SetZero()
		return nil
	}
	if to.Kind() == reflect.Float64 {
		return setAmount(to, fields[i], value)
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || !wholeNumber.MatchString(value) {
		return fmt.Errorf("%s: must be a whole number or %s, got %q", attribute, unlimited, shorten(value))
	}
	if problem := rules[fields[i].rule].limit.problem(float64(n), formatNumber); problem != "" {
		return fmt.Errorf("%s: %s, got %d", attribute, problem, n)
	}
	to.SetInt(n)
	return nil
}

// setAmount stores an amount in US dollars.
func setAmount(to reflect.Value, f field, value string) error {
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || !anyNumber.MatchString(value) {
		return fmt.Errorf("%s: must be an amount in USD or %s, got %q", f.key, unlimited, shorten(value))
	}
	if problem := rules[f.rule].limit.problem(x, formatNumber); problem != "" {
		return fmt.Errorf("%s: %s, got %s", f.key, problem, formatNumber(x))
	}
	to.SetFloat(x)
	return nil
}

// Check returns an error for limits that a service.yaml may not contain.
func (l KeyLimits) Check() error {
	v := reflect.ValueOf(l)
	for _, f := range fieldsOf(v.Type()) {
		var x float64
		if value := v.Field(f.index); value.Kind() == reflect.Float64 {
			x = value.Float()
		} else {
			x = float64(value.Int())
		}
		if problem := rules[f.rule].limit.problem(x, formatNumber); x != 0 && problem != "" {
			return fmt.Errorf("%s: %s, got %s", f.key, problem, formatNumber(x))
		}
	}
	return nil
}
