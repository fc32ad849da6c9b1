package telemetry

import "skyserve/internal/service"

// Point is what one balancer carried in one minute for one model and tier: the
// unit of history that forecasts are made from. Points of several balancers
// for the same minute, region, model and tier add up.
type Point struct {
	// Minute is the minute's number since the Unix epoch (UTC seconds / 60).
	Minute int64 `json:"minute"`
	// Balancer is the id of the balancer that counted; with Minute, Model and
	// Tier it makes the point unique, so storing a point twice changes nothing.
	Balancer string `json:"balancer"`
	// Region is where the clients' requests arrived, not where they were served.
	Region service.Region `json:"region"`
	Model  string         `json:"model"`
	Tier   service.Tier   `json:"tier"`
	// Requests counts arrivals from clients; forwarded ones count at their origin only.
	Requests int64 `json:"requests"`
	// PromptTokens counts the prompts' tokens by the engines' own figures once
	// known, by estimate (bytes/4) for requests that never reached an engine.
	PromptTokens int64 `json:"prompt_tokens"`
	// CachedTokens is the part of PromptTokens that engines took from their prefix cache.
	CachedTokens int64 `json:"cached_tokens"`
	// OutputTokens counts generated tokens.
	OutputTokens int64 `json:"output_tokens"`
}
