package service

import (
	"fmt"
	"slices"
	"strings"
)

// WordList is the words that one key of service.yaml takes. It is the one place
// that says which of them are built: a word moves from Planned to Built with
// the code that acts on it.
type WordList struct {
	// Key is the type and key it belongs to, as in the rules: BalancerSpec.policy.
	Key string
	// Built are accepted, the default first where there is one.
	Built []string
	// Planned are known words that are refused until they are built.
	Planned []string
}

// StrategyManual is the word for no scaling strategy: only people and plan --apply
// change the number of replicas.
const StrategyManual = "manual"

// StrategyAuto is the word for this product's own scaling strategy.
const StrategyAuto = "auto"

// All is every word, built or planned.
func (w WordList) All() []string { return slices.Concat(w.Built, w.Planned) }

// wordLists is the table of every key that takes words.
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

// Words is the list of a key such as BalancerSpec.policy; ok is false where the
// key does not take words.
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

// CheckWord refuses a word that the key does not take: as unknown, or as
// planned but not built. It is nil for a key that does not take words.
func CheckWord(key, word string) error {
	list, ok := wordsOf(key)
	if !ok {
		return nil
	}
	if problem, suggestion := list.judge(word); problem != "" {
		return fmt.Errorf("%s, got %q; %s", problem, word, suggestion)
	}
	return nil
}

// judge says what is wrong with a word and what to write instead.
func (w WordList) judge(word string) (problem, suggestion string) {
	if slices.Contains(w.Built, word) {
		return "", ""
	}
	available := "available: " + strings.Join(w.Built, ", ")
	if slices.Contains(w.Planned, word) {
		return "is not built yet in this version", available
	}
	if near := Nearest(word, w.Built); near != "" {
		return "must be one of " + strings.Join(w.Built, ", "), fmt.Sprintf("did you mean %q?", near)
	}
	return "is not a word known here", available
}

// BuiltPolicies are the balancing policies that can be chosen, the default first.
func BuiltPolicies() []string { return built("BalancerSpec.policy") }

// ContractPolicies are all balancing policies, built or planned.
func ContractPolicies() []string { return all("BalancerSpec.policy") }

// BuiltOrders are the queue orders that can be chosen, the default first.
func BuiltOrders() []string { return built("BalancerSpec.order") }

// ContractOrders are all queue orders, built or planned.
func ContractOrders() []string { return all("BalancerSpec.order") }

// BuiltStrategies are the scaling strategies that can be chosen, the default first.
func BuiltStrategies() []string { return built("Autoscale.strategy") }

// BuiltForecasts are the forecasters that can be chosen, the default first.
func BuiltForecasts() []string { return built("Autoscale.forecast") }

func built(key string) []string {
	w, _ := Words(key)
	return w.Built
}

func all(key string) []string {
	w, _ := Words(key)
	return w.All()
}

// plannedKeys are keys that belong to what is not built yet, with what they
// wait for. They are refused by name so that nobody believes they act.
var plannedKeys = map[string]string{
	"BalancerSpec.peers_cidr": "restricting peers by address",
	"BalancerSpec.epsilon":    "tuning the policy cost",
}
