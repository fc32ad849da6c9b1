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
	// PromptTokens counts prompt tokens of arrivals, estimated (bytes/4). The difference from the
	// engine's count is added to, or subtracted from, the minute in which the response ends, or a
	// later one, so that no count is negative.
	PromptTokens int64 `json:"prompt_tokens"`
	// CachedTokens is the part of PromptTokens that was in the engines' prefix caches, counted when
	// responses end.
	CachedTokens int64 `json:"cached_tokens"`
	// OutputTokens counts generated tokens.
	OutputTokens int64 `json:"output_tokens"`
}
