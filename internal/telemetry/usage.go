package telemetry

import (
	"time"

	"skyserve/internal/service"
)

// UsageMonths is how many months of usage are kept before the running one: what an
// operator may still bill.
const UsageMonths = 2

// Usage is what was used: requests that were let in and, by the engines' own
// figures, their tokens. CachedTokens is a part of PromptTokens.
type Usage struct {
	Requests     int64 `json:"requests"`
	PromptTokens int64 `json:"prompt_tokens"`
	CachedTokens int64 `json:"cached_tokens"`
	OutputTokens int64 `json:"output_tokens"`
}

// Plus is both together.
func (u Usage) Plus(v Usage) Usage {
	return Usage{u.Requests + v.Requests, u.PromptTokens + v.PromptTokens, u.CachedTokens + v.CachedTokens, u.OutputTokens + v.OutputTokens}
}

// Minus is u without v.
func (u Usage) Minus(v Usage) Usage {
	return Usage{u.Requests - v.Requests, u.PromptTokens - v.PromptTokens, u.CachedTokens - v.CachedTokens, u.OutputTokens - v.OutputTokens}
}

// Tokens is what limits count: prompt and answer.
func (u Usage) Tokens() int64 { return u.PromptTokens + u.OutputTokens }

// KeyUsage is the usage of one API key, by its name, and model.
type KeyUsage struct {
	Key   string `json:"key"`
	Model string `json:"model"`
	Usage
}

// UsageRow is a key's usage of a model in one month, where its clients sent
// their requests to, with the part of the latest day that had any.
type UsageRow struct {
	Key    string         `json:"key"`
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	Month  Usage          `json:"month"`
	// Day is the number of that day since the Unix epoch (UTC), Today its usage.
	Day   int64 `json:"day"`
	Today Usage `json:"today"`
}

// Plus is both rows together, of one key, model and region: of the later day
// where they are of different ones.
func (r UsageRow) Plus(s UsageRow) UsageRow {
	r.Month = r.Month.Plus(s.Month)
	switch {
	case s.Day > r.Day:
		r.Day, r.Today = s.Day, s.Today
	case s.Day == r.Day:
		r.Today = r.Today.Plus(s.Today)
	}
	return r
}

// NotAfter is the row without the usage of a day that has not come: the clock of
// whoever counted that was ahead, and it would hide what is used until then.
func (r UsageRow) NotAfter(day int64) UsageRow {
	if r.Day > day {
		r.Day, r.Today = day, Usage{}
	}
	return r
}

// On is the row's usage of a day; none where that is not the row's.
func (r UsageRow) On(day int64) Usage {
	if r.Day != day {
		return Usage{}
	}
	return r.Today
}

// DayOf is the number of a day (UTC) since the Unix epoch.
func DayOf(t time.Time) int64 { return t.Unix() / (24 * 60 * 60) }

// MonthOf names a month (UTC): 2026-11.
func MonthOf(t time.Time) string { return t.UTC().Format("2006-01") }

// KeyQuota is what one API key has used as far as its balancer was told, all
// balancers together; it is what quotas are held against.
type KeyQuota struct {
	// At is when it was so: Day and Month are of the day and month (UTC) that hold it.
	At         time.Time
	Day, Month Usage
	// Own is how much of this balancer's own usage since its start is in it.
	Own Usage
}

// By is what is used of the day and the month that hold t; nothing of those that
// nobody told of yet.
func (q KeyQuota) By(t time.Time) (day, month Usage) {
	if DayOf(q.At) == DayOf(t) { // most often, and quick to see
		return q.Day, q.Month
	}
	if at, t := q.At.UTC(), t.UTC(); at.Year() == t.Year() && at.Month() == t.Month() {
		month = q.Month
	}
	return Usage{}, month
}
