package service

import "time"

// Provider is an external OpenAI-compatible API. It receives requests, with their prompts, only as a
// fallback of a model: see Model.Fallback. Each balancer counts the limits on its own.
type Provider struct {
	// Name identifies the provider in fallbacks, headers and metrics.
	Name string `yaml:"name" json:"name"`
	// URL is the base URL, below which the API has paths such as /v1/chat/completions.
	URL string `yaml:"url" json:"url"`
	// APIKey is the source (env:NAME or file:PATH) of the key of the API; empty = none.
	APIKey string `yaml:"api_key,omitempty" json:"api_key,omitempty"`
	// Models are the models of the provider that may be a fallback.
	Models []ProviderModel `yaml:"models" json:"models"`
	// Concurrent limits the requests in flight at the provider; RequestsPerMinute and
	// TokensPerMinute limit the rates. 0 = no limit.
	Concurrent        int `yaml:"concurrent,omitempty" json:"concurrent,omitempty"`
	RequestsPerMinute int `yaml:"requests_per_minute,omitempty" json:"requests_per_minute,omitempty"`
	TokensPerMinute   int `yaml:"tokens_per_minute,omitempty" json:"tokens_per_minute,omitempty"`
	// USDPerDay limits the cost of a day (UTC), by the prices of the models; 0 = no limit.
	USDPerDay float64 `yaml:"usd_per_day,omitempty" json:"usd_per_day,omitempty"`
}

// ProviderModel is a model of a provider.
type ProviderModel struct {
	Name string `yaml:"name" json:"name"` // as the provider names it
	// Price is the price of its tokens; nil = unknown.
	Price *Price `yaml:"price,omitempty" json:"price,omitempty"`
}

// DefaultFallbackAfter is the time in the queue after which a request goes to the next fallback: longer
// than a burst takes, and shorter than interactive clients wait.
const DefaultFallbackAfter = 10 * time.Second

// Target returns the name of one of the provider's models in fallbacks: provider/model.
func (p *Provider) Target(model string) string { return p.Name + "/" + model }

// ProviderTargets returns the names of all models of providers in fallbacks.
func ProviderTargets(providers []Provider) []string {
	var all []string
	for i := range providers {
		for _, m := range providers[i].Models {
			all = append(all, providers[i].Target(m.Name))
		}
	}
	return all
}
