package service

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ValueList is the list of values of one key of service.yaml. It is the only place that records
// which of them are implemented: a value moves from Planned to Implemented with the code that
// implements it.
type ValueList struct {
	// Key is the type and key of the list, as in the rules: BalancerSpec.policy.
	Key string
	// Implemented are the accepted values, the default first where there is one.
	Implemented []string
	// Planned are known values that are rejected until they are implemented.
	Planned []string
	// Words are other names of Implemented, in the same order; nil = none.
	Words []string
	// Note explains a value whose name does not; empty = none.
	Note string
}

// StrategyManual disables automatic scaling: only operators and plan --apply change the number of
// replicas.
const StrategyManual = "manual"

// StrategyAuto is skyserve's own scaling strategy.
const StrategyAuto = "auto"

// All returns every value, implemented or planned.
func (w ValueList) All() []string { return slices.Concat(w.Implemented, w.Planned) }

// wordLists is the table of every key with a fixed list of values.
var wordLists = []ValueList{
	{
		Key:         "BalancerSpec.policy",
		Implemented: []string{"cost", "skylb", "skylb-ch", "longest-prefix", "cache-aware", "sageserve", "bf-io", "consistent-hash", "power-of-two", "least-load", "round-robin", "lmetric", "gorgo", "dualmap", "scorer-sum", "sticky"},
	},
	{Key: "BalancerSpec.order", Implemented: []string{"fcfs", "edf", "pf", "dpa"}},
	{Key: "BalancerSpec.allow_parameters", Implemented: guardedNames()},
	{
		Key:         "Autoscale.strategy",
		Implemented: []string{StrategyManual, "reactive", "lt-i", "lt-u", "lt-ua", "predictive", "auto"},
		Planned:     []string{"chiron"},
	},
	{
		Key:         "Autoscale.forecast",
		Implemented: []string{"auto", "seasonal-naive", "moving-average", "seasonal-profile", "damped-trend", "har", "tvar", "hmm", "arima"},
	},
	{Key: "Engine.kind", Implemented: []string{string(EngineVLLM), string(EngineSGLang), string(EngineOpenAI), string(EngineSim)}, Note: "openai is any other server with OpenAI's API, sim the simulated engine"},
	{Key: "Engine.flavor", Implemented: []string{string(EngineVLLM), string(EngineSGLang)}},
	{Key: "GPU.type", Implemented: []string{"L4", "A10G", "L40S", "A100", "H100", "H200"}},
	{Key: "RegionSpec.capacity", Implemented: []string{string(CapacityReserved), string(CapacitySpot), string(CapacityOnDemand), string(CapacityFlexStart)}},
	{Key: "RegionSpec.access", Implemented: []string{AccessSSM}},
	{Key: "DNS.provider", Implemented: []string{DNSRoute53, DNSEmbedded}},
	{Key: "DNS.routing", Implemented: []string{"latency", "geo"}},
	{Key: "ACME.challenge", Implemented: []string{ChallengeDNS, ChallengeHTTP, ChallengeTLSALPN}},
	tierValues("OIDC.tier"),
	tierValues("OIDC.max_tier"),
	tierValues("OIDCRole.tier"),
	tierValues("OIDCRole.max_tier"),
	tierValues("Model.slo"),
}

// tierValues returns the values of a key with a tier.
func tierValues(key string) ValueList {
	list := ValueList{Key: key}
	for _, t := range Tiers() {
		list.Implemented, list.Words = append(list.Implemented, string(t)), append(list.Words, t.Word())
	}
	return list
}

// wordFor returns the word for a value; "" = none.
func (w ValueList) wordFor(value string) string {
	if i := slices.Index(w.Implemented, value); i >= 0 && i < len(w.Words) {
		return w.Words[i]
	}
	return ""
}

// canonical returns the value that a word stands for; any other text as it is.
func (w ValueList) canonical(text string) string {
	if i := slices.Index(w.Words, text); i >= 0 {
		return w.Implemented[i]
	}
	return text
}

// ValuesOf returns the list of a key such as BalancerSpec.policy; ok is false where the key has no
// fixed list of values.
func ValuesOf(key string) (list ValueList, ok bool) {
	w, ok := wordsOf(key)
	return ValueList{Key: w.Key, Implemented: slices.Clone(w.Implemented), Planned: slices.Clone(w.Planned), Words: slices.Clone(w.Words)}, ok
}

// wordsOf is ValuesOf without a copy of the table.
func wordsOf(key string) (list ValueList, ok bool) {
	i := slices.IndexFunc(wordLists, func(w ValueList) bool { return w.Key == key })
	if i < 0 {
		return ValueList{}, false
	}
	return wordLists[i], true
}

// CheckValue returns an error for a value that the key does not accept: unknown, or planned but not
// implemented. It returns nil for a key without a fixed list of values.
func CheckValue(key, word string) error {
	list, ok := wordsOf(key)
	if !ok {
		return nil
	}
	list.Words = nil // only the parser of service.yaml replaces them
	if problem, suggestion := list.problemOf(word); problem != "" {
		return errors.New(strings.TrimSuffix(fmt.Sprintf("%s, got %q; %s", problem, word, suggestion), "; "))
	}
	return nil
}

// problemOf returns the problem of a value and a suggestion.
func (w ValueList) problemOf(word string) (problem, suggestion string) {
	if slices.Contains(w.Implemented, word) {
		return "", ""
	}
	values := strings.Join(w.Implemented, ", ")
	if len(w.Words) > 0 {
		named := make([]string, len(w.Words))
		for i, name := range w.Words {
			named[i] = name + " (" + w.Implemented[i] + ")"
		}
		values = strings.Join(named, ", ")
	}
	if slices.Contains(w.Planned, word) {
		return "is not implemented in this version", "use one of " + values
	}
	if near := Nearest(word, slices.Concat(w.Implemented, w.Words)); near != "" {
		return "must be one of " + values, fmt.Sprintf("did you mean %q?", near)
	}
	return "must be one of " + values, w.Note
}

// ImplementedPolicies returns the implemented balancing policies, the default first.
func ImplementedPolicies() []string { return implementedValues("BalancerSpec.policy") }

// AllPolicies returns all balancing policies, implemented or planned.
func AllPolicies() []string { return allValues("BalancerSpec.policy") }

// ImplementedOrders returns the implemented queue orders, the default first.
func ImplementedOrders() []string { return implementedValues("BalancerSpec.order") }

// AllOrders returns all queue orders, implemented or planned.
func AllOrders() []string { return allValues("BalancerSpec.order") }

// ImplementedStrategies returns the implemented scaling strategies, the default first.
func ImplementedStrategies() []string { return implementedValues("Autoscale.strategy") }

// ImplementedForecasters returns the implemented forecasters, the default first.
func ImplementedForecasters() []string { return implementedValues("Autoscale.forecast") }

func implementedValues(key string) []string {
	w, _ := ValuesOf(key)
	return w.Implemented
}

func allValues(key string) []string {
	w, _ := ValuesOf(key)
	return w.All()
}

// unimplementedKeys are the keys of unimplemented features, with the feature. They are rejected by name
// so that nobody assumes that they work.
var unimplementedKeys = map[string]string{
	"BalancerSpec.peers_cidr": "restricting peers by address",
	"BalancerSpec.epsilon":    "parameters of the policy `cost`",
}
