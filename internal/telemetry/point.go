package telemetry

import "skyserve/internal/service"

// Point is the traffic of one balancer in one minute for one model and tier: the unit of
// the history that forecasts use. Points of several balancers for the same minute, region,
// model and tier add up.
type Point struct {
	// Minute is the minute's number since the Unix epoch (UTC seconds / 60).
	Minute int64 `json:"minute"`
	// Balancer is the id of the balancer that counted. Balancer, Minute, Model and Tier identify a
	// point, so storing a point twice changes nothing.
	Balancer string `json:"balancer"`
	// Region is where the clients' requests arrived, not where they were served.
	Region service.Region `json:"region"`
	Model  string         `json:"model"`
	Tier   service.Tier   `json:"tier"`
	// Requests counts arrivals from clients; forwarded ones count at their origin only.
	Requests int64 `json:"requests"`
	// PromptTokens counts prompt tokens as reported by the engines, or as estimated
	// (bytes/4) for requests that never reached an engine.
	PromptTokens int64 `json:"prompt_tokens"`
	// CachedTokens is the part of PromptTokens that was in the engines' prefix caches.
	CachedTokens int64 `json:"cached_tokens"`
	// OutputTokens counts generated tokens.
	OutputTokens int64 `json:"output_tokens"`
}
