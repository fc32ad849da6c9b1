package service

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// KeyLimits is what one API key may use; zero means without limit. Requests and
// tokens of a minute, and Concurrent, are counted by each balancer for itself,
// those of a day and a month by all balancers of a service together. Days and
// months are UTC's. Tokens are prompt plus answer, by the engines' own figures.
type KeyLimits struct {
	RequestsPerMinute int `yaml:"requests_per_minute,omitempty" json:"requests_per_minute,omitempty"`
	TokensPerMinute   int `yaml:"tokens_per_minute,omitempty" json:"tokens_per_minute,omitempty"`
	// Concurrent bounds the requests between arrival and the end of their answer.
	Concurrent       int `yaml:"concurrent,omitempty" json:"concurrent,omitempty"`
	RequestsPerDay   int `yaml:"requests_per_day,omitempty" json:"requests_per_day,omitempty"`
	TokensPerDay     int `yaml:"tokens_per_day,omitempty" json:"tokens_per_day,omitempty"`
	RequestsPerMonth int `yaml:"requests_per_month,omitempty" json:"requests_per_month,omitempty"`
	TokensPerMonth   int `yaml:"tokens_per_month,omitempty" json:"tokens_per_month,omitempty"`
}

// APIKey is a key that clients may present.
type APIKey struct {
	// Secret is what they present; it is never shown.
	Secret string
	// Name stands for the key wherever it is shown. Keys of one name are one: they
	// share their limits, which lets a client change its key without a gap.
	Name string
	// Tenant is whom the queue counts the key's requests for; keys may share one.
	Tenant string
	// Tier is that of requests that do not name one; empty = the service's own default.
	Tier Tier
	// MaxTier is the most urgent tier that its requests may name; empty = any.
	MaxTier Tier
	Limits  KeyLimits
}

// unlimited is the word for a limit that a key does not have although the
// others do.
const unlimited = "unlimited"

// ParseKeys reads a list of API keys: one a line, first the key, then what is
// said of it as attribute=value: name, tenant, tier, max_tier and the limits. Blank lines
// and those that begin with # are passed over. Limits that a line does not state
// are those of usual. An error names the line and the attribute, never a key.
func ParseKeys(text string, usual KeyLimits) ([]APIKey, error) {
	var keys []APIKey
	first := map[string]int{} // name -> line
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		key, err := parseKey(words, usual)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if at, err := clash(keys, key); err != nil {
			return nil, fmt.Errorf("line %d: %w of line %d", number, err, first[at])
		}
		if _, known := first[key.Name]; !known {
			first[key.Name] = number
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// clash says what key contradicts of the keys above it, and the name of that one.
func clash(above []APIKey, key APIKey) (name string, err error) {
	for _, k := range above {
		switch {
		case k.Secret == key.Secret && k.Name != key.Name:
			return k.Name, fmt.Errorf("repeats the key")
		case k.Name == key.Name && (k.Tenant != key.Tenant || k.Tier != key.Tier || k.MaxTier != key.MaxTier || k.Limits != key.Limits):
			return k.Name, fmt.Errorf("name: says something else of %q than the one", key.Name)
		}
	}
	return "", nil
}

// parseKey reads the words of one line.
func parseKey(words []string, usual KeyLimits) (APIKey, error) {
	sum := sha256.Sum256([]byte(words[0]))
	k := APIKey{Secret: words[0], Name: "key-" + hex.EncodeToString(sum[:4]), Limits: usual}
	seen := map[string]bool{}
	for i, word := range words[1:] {
		attribute, value, ok := strings.Cut(word, "=")
		if !ok {
			return k, fmt.Errorf("word %d: must be attribute=value", i+2)
		}
		if seen[attribute] {
			return k, fmt.Errorf("%s: is stated twice", attribute)
		}
		if err := k.set(attribute, value); err != nil {
			return k, err
		}
		seen[attribute] = true
	}
	if k.Tenant == "" {
		k.Tenant = k.Name
	}
	return k, k.ceiling()
}

// ceiling makes the key's tier one that its requests may have.
func (k *APIKey) ceiling() error {
	usual, _ := ParseTier(string(k.Tier))
	switch {
	case !usual.Above(k.MaxTier):
	case k.Tier != "":
		return fmt.Errorf("tier: must not be above max_tier (%s), got %s", k.MaxTier, k.Tier)
	default:
		k.Tier = k.MaxTier
	}
	return nil
}

// otherKeys is what keys that have no name of their own in metrics are added up as.
const otherKeys = "other"

// set stores one attribute.
func (k *APIKey) set(attribute, value string) error {
	switch attribute {
	case "name", "tenant":
		if !formKeyName.expr.MatchString(value) {
			return fmt.Errorf("%s: must be %s, got %q", attribute, formKeyName.words, shorten(value))
		}
		if value == otherKeys && attribute == "name" {
			return fmt.Errorf("name: must not be %q, which metrics add keys up as", otherKeys)
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
			return fmt.Errorf("max_tier: must be IW-F, IW-N or NIW, got nothing")
		}
		tier, err := ParseTier(value)
		if err != nil {
			return fmt.Errorf("max_tier: %w", err)
		}
		k.MaxTier = tier
		return nil
	}
	return k.Limits.set(attribute, value)
}

// set stores the limit of a name.
func (l *KeyLimits) set(attribute, value string) error {
	fields := fieldsOf(reflect.TypeFor[KeyLimits]())
	i := slices.IndexFunc(fields, func(f field) bool { return f.key == attribute })
	if i < 0 {
		return fmt.Errorf("unknown attribute; %s", didYouMean(attribute, append([]string{"name", "tenant", "tier", "max_tier"}, keysOf(fields)...), "the attributes are"))
	}
	to := reflect.ValueOf(l).Elem().Field(fields[i].index)
	if value == unlimited {
		to.SetInt(0)
		return nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || !wholeNumber.MatchString(value) {
		return fmt.Errorf("%s: must be a whole number or %s, got %q", attribute, unlimited, shorten(value))
	}
	if problem := rules[fields[i].rule].limit.problem(float64(n), briefNumber); problem != "" {
		return fmt.Errorf("%s: %s, got %d", attribute, problem, n)
	}
	to.SetInt(n)
	return nil
}

// Check says whether the limits are ones that a service.yaml may state.
func (l KeyLimits) Check() error {
	v := reflect.ValueOf(l)
	for _, f := range fieldsOf(v.Type()) {
		n := v.Field(f.index).Int()
		if problem := rules[f.rule].limit.problem(float64(n), briefNumber); n != 0 && problem != "" {
			return fmt.Errorf("%s: %s, got %d", f.key, problem, n)
		}
	}
	return nil
}
