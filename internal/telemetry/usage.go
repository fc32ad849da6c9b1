package telemetry

import (
	"cmp"
	"time"

	"skyserve/internal/service"
)

// UsageMonths is the number of months of usage, before the current one, that are kept for billing.
const UsageMonths = 2

// Usage counts requests that engines served, and their tokens as reported by the engines or else
// estimated. CachedTokens is a part of PromptTokens.
type Usage struct {
	Requests     int64 `json:"requests"`
	PromptTokens int64 `json:"prompt_tokens"`
	CachedTokens int64 `json:"cached_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	// PricedRequests are the requests with a known cost, and Cost is their cost. The cost of the others is
	// unknown: their model had no price.
	PricedRequests int64           `json:"priced_requests"`
	Cost           service.NanoUSD `json:"cost_nano_usd"`
}

// Plus returns u + v.
func (u Usage) Plus(v Usage) Usage {
	return Usage{
		u.Requests + v.Requests, u.PromptTokens + v.PromptTokens, u.CachedTokens + v.CachedTokens, u.OutputTokens + v.OutputTokens,
		u.PricedRequests + v.PricedRequests, u.Cost + v.Cost,
	}
}

// Minus returns u - v.
func (u Usage) Minus(v Usage) Usage {
	return Usage{
		u.Requests - v.Requests, u.PromptTokens - v.PromptTokens, u.CachedTokens - v.CachedTokens, u.OutputTokens - v.OutputTokens,
		u.PricedRequests - v.PricedRequests, u.Cost - v.Cost,
	}
}

// Priced returns u with its cost; unchanged if the price is unknown.
func (u Usage) Priced(p *service.TokenPrice) Usage {
	if p != nil {
		u.PricedRequests, u.Cost = u.Requests, p.Cost(u.PromptTokens, u.CachedTokens, u.OutputTokens)
	}
	return u
}

// CostUSD returns the cost in US dollars; nil if the cost of any request is unknown.
func (u Usage) CostUSD() *float64 {
	if u.PricedRequests < u.Requests {
		return nil
	}
	usd := u.Cost.USD()
	return &usd
}

// Tokens returns the tokens that count towards limits: prompt and output.
func (u Usage) Tokens() int64 { return u.PromptTokens + u.OutputTokens }

// KeyUsage is the usage of one API key, by its name, or of one user with identity tokens, and model.
type KeyUsage struct {
	Key string `json:"key"`
	// Tenant is set only if it is required: for users, and for keys of tenants with limits.
	Tenant string `json:"tenant,omitempty"`
	Model  string `json:"model"`
	// Account is the number of the quota account that counted. If that account is dropped from memory, a new one counts
	// from 0, with another number.
	Account int64 `json:"account,omitempty"`
	Usage
}

// UsageRow is a key's usage of a model in one month and the region that received the
// requests, and the part of the latest day with usage.
type UsageRow struct {
	Key    string         `json:"key"`
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	// Tenant is as in KeyUsage, as last counted.
	Tenant string `json:"tenant,omitempty"`
	Month  Usage  `json:"month"`
	// Day is the number of that day since the Unix epoch (UTC), Today its usage.
	Day   int64 `json:"day"`
	Today Usage `json:"today"`
}

// Plus adds two rows of the same key, model and region. If their days differ, Today is the usage of
// the later day.
func (r UsageRow) Plus(s UsageRow) UsageRow {
	r.Month, r.Tenant = r.Month.Plus(s.Month), cmp.Or(s.Tenant, r.Tenant)
	switch {
	case s.Day > r.Day:
		r.Day, r.Today = s.Day, s.Today
	case s.Day == r.Day:
		r.Today = r.Today.Plus(s.Today)
	}
	return r
}

// NotAfter returns the row without Today if its day is after day. Such a row was counted while a
// clock was ahead, and would replace later usage until that day.
func (r UsageRow) NotAfter(day int64) UsageRow {
	if r.Day > day {
		r.Day, r.Today = day, Usage{}
	}
	return r
}

// On returns the usage of a day; zero if it is not the row's day.
func (r UsageRow) On(day int64) Usage {
	if r.Day != day {
		return Usage{}
	}
	return r.Today
}

// DayOf returns the number of a day (UTC) since the Unix epoch.
func DayOf(t time.Time) int64 { return t.Unix() / (24 * 60 * 60) }

// MonthOf returns the month of t (UTC), such as 2026-11.
func MonthOf(t time.Time) string { return t.UTC().Format("2006-01") }

// KeyQuota is the usage of one API key, user or tenant at all balancers, as one balancer has it in memory to compare
// it with the key's quotas.
type KeyQuota struct {
	// At is the time of the counts. Day and Month are the usage of the day and the month of At (UTC).
	At         time.Time
	Day, Month Usage
	// Own is the part that this balancer counted since its start, for a user in the quota account with the number Account
	// (see KeyUsage).
	Own     Usage
	Account int64
}

// By returns the usage of the day and the month that contain t; zero if none was reported
// for them.
func (q KeyQuota) By(t time.Time) (day, month Usage) {
	if DayOf(q.At) == DayOf(t) { // the common case, and a cheap test
		return q.Day, q.Month
	}
	if at, t := q.At.UTC(), t.UTC(); at.Year() == t.Year() && at.Month() == t.Month() {
		month = q.Month
	}
	return Usage{}, month
}
