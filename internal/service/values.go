package service

import (
	"fmt"
	"slices"
	"strings"
)

// WordList is the list of values of one key of service.yaml. It is the only place that records
// which of them are implemented: a value moves from Planned to Built with the code that implements
// it.
type WordList struct {
	// Key is the type and key of the list, as in the rules: BalancerSpec.policy.
	Key string
	// Built are the accepted values, the default first where there is one.
	Built []string
	// Planned are known values that are rejected until they are implemented.
	Planned []string
}

// StrategyManual disables automatic scaling: only operators and plan --apply change the number of
// replicas.
const StrategyManual = "manual"

// StrategyAuto is skyserve's own scaling strategy.
const StrategyAuto = "auto"

// All returns every value, implemented or planned.
func (w WordList) All() []string { return slices.Concat(w.Built, w.Planned) }

// wordLists is the table of every key with a fixed list of values.
var wordLists = []WordList{
	{
		Key:   "BalancerSpec.policy",
		Built: []string{"cost", "skylb", "skylb-ch", "longest-prefix", "cache-aware", "sageserve", "bf-io", "consistent-hash", "power-of-two", "least-load", "round-robin"},
	},
	{Key: "BalancerSpec.order", Built: []string{"fcfs", "edf", "pf", "dpa"}},
	{Key: "BalancerSpec.allow_parameters", Built: guardedNames()},
	{
		Key:     "Autoscale.strategy",
		Built:   []string{StrategyManual, "reactive", "lt-i", "lt-u", "lt-ua", "auto"},
		Planned: []string{"chiron"},
	},
	{
		Key:   "Autoscale.forecast",
		Built: []string{"auto", "seasonal-naive", "moving-average", "seasonal-profile", "damped-trend", "har", "tvar", "hmm", "arima"},
	},
	{Key: "Engine.kind", Built: []string{string(EngineVLLM), string(EngineSGLang), string(EngineOpenAI), string(EngineSim)}},
	{Key: "Engine.flavor", Built: []string{string(EngineVLLM), string(EngineSGLang)}},
	{Key: "GPU.type", Built: []string{"L4", "A100", "H100"}},
	{Key: "RegionSpec.capacity", Built: []string{string(CapacityReserved), string(CapacitySpot), string(CapacityOnDemand)}},
	{Key: "RegionSpec.access", Built: []string{AccessSSM}},
	{Key: "DNS.provider", Built: []string{DNSRoute53, DNSEmbedded}},
	{Key: "DNS.routing", Built: []string{"latency", "geo"}},
	{Key: "ACME.challenge", Built: []string{ChallengeDNS, ChallengeHTTP, ChallengeTLSALPN}},
	{Key: "Model.slo", Built: []string{string(TierFast), string(TierNormal), string(TierDeferred)}},
}

// Words returns the list of a key such as BalancerSpec.policy; ok is false where the key has no
// fixed list of values.
func Words(key string) (list WordList, ok bool) {
	w, ok := wordsOf(key)
	return WordList{Key: w.Key, Built: slices.Clone(w.Built), Planned: slices.Clone(w.Planned)}, ok
}

// wordsOf is Words without a copy of the table.
func wordsOf(key string) (list WordList, ok bool) {
	i := slices.IndexFunc(wordLists, func(w WordList) bool { return w.Key == key })
	if i < 0 {
		return WordList{}, false
	}
	return wordLists[i], true
}

// CheckWord returns an error for a value that the key does not accept: unknown, or planned but not
// implemented. It returns nil for a key without a fixed list of values.
func CheckWord(key, word string) error {
	list, ok := wordsOf(key)
	if !ok {
		return nil
	}
	if problem, suggestion := list.problemOf(word); problem != "" {
		return fmt.Errorf("%s, got %q; %s", problem, word, suggestion)
	}
	return nil
}

// problemOf returns the problem of a value and a suggestion.
func (w WordList) problemOf(word string) (problem, suggestion string) {
	if slices.Contains(w.Built, word) {
		return "", ""
	}
	available := "available: " + strings.Join(w.Built, ", ")
	if slices.Contains(w.Planned, word) {
		return "is not implemented in this version", available
	}
	if near := Nearest(word, w.Built); near != "" {
		return "must be one of " + strings.Join(w.Built, ", "), fmt.Sprintf("did you mean %q?", near)
	}
	return "unsupported value", available
}

// BuiltPolicies returns the implemented balancing policies, the default first.
func BuiltPolicies() []string { return implementedValues("BalancerSpec.policy") }

// ContractPolicies returns all balancing policies, implemented or planned.
func ContractPolicies() []string { return allValues("BalancerSpec.policy") }

// BuiltOrders returns the implemented queue orders, the default first.
func BuiltOrders() []string { return implementedValues("BalancerSpec.order") }

// ContractOrders returns all queue orders, implemented or planned.
func ContractOrders() []string { return allValues("BalancerSpec.order") }

// BuiltStrategies returns the implemented scaling strategies, the default first.
func BuiltStrategies() []string { return implementedValues("Autoscale.strategy") }

// BuiltForecasts returns the implemented forecasters, the default first.
func BuiltForecasts() []string { return implementedValues("Autoscale.forecast") }

func implementedValues(key string) []string {
	w, _ := Words(key)
	return w.Built
}

func allValues(key string) []string {
	w, _ := Words(key)
	return w.All()
}

// unimplementedKeys are the keys of unimplemented features, with the feature. They are rejected by name
// so that nobody assumes that they work.
var unimplementedKeys = map[string]string{
	"BalancerSpec.peers_cidr": "restricting peers by address",
	"BalancerSpec.epsilon":    "tuning the policy cost",
}
