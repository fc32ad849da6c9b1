package telemetry

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"time"

	"skyserve/internal/service"
)

// UsageReport is the usage of API keys in one month, and their remaining quotas: the
// response of GET /v1/usage.
type UsageReport struct {
	At    time.Time `json:"at"`
	Month string    `json:"month"` // UTC: 2026-11
	// Complete is false if the store does not respond: the report then contains only the usage
	// that the responding balancer has in memory.
	Complete bool         `json:"complete"`
	Usage    []UsageEntry `json:"usage"`
	// Quotas are the quotas of the valid keys; empty for a past month.
	Quotas []Quota `json:"quotas"`
}

// UsageEntry is a key's usage of a model in a region.
type UsageEntry struct {
	Key string `json:"key"` // its name
	// Tenant is the key's tenant; empty if the key is no longer valid.
	Tenant string         `json:"tenant"`
	Model  string         `json:"model"`
	Region service.Region `json:"region"` // where its clients sent their requests
	Usage
	// Today is the usage of the current day; nil for a past month.
	Today *Usage `json:"today"`
}

// Quota is a key's limit on requests or tokens per day or month, over all regions.
type Quota struct {
	Key    string `json:"key"`
	Tenant string `json:"tenant"`
	What   string `json:"what"`   // requests or tokens (prompt and output)
	Period string `json:"period"` // day or month, by UTC's calendar
	Limit  int64  `json:"limit"`
	Used   int64  `json:"used"`
	// Remaining is the remaining quota. It is never negative, although requests in flight when a quota is
	// reached may exceed it.
	Remaining int64     `json:"remaining"`
	ResetsAt  time.Time `json:"resets_at"`
}

// MarshalJSON adds the former key of Remaining.
func (q Quota) MarshalJSON() ([]byte, error) {
	type plain Quota
	return json.Marshal(struct {
		plain
		OldRemaining int64 `json:"left"`
	}{plain(q), q.Remaining})
}

// UnmarshalJSON also reads the former key of Remaining, which older balancers send.
func (q *Quota) UnmarshalJSON(data []byte) error {
	type plain Quota
	var read struct {
		plain
		OldRemaining int64 `json:"left"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*q = Quota(read.plain)
	q.Remaining = max(read.Remaining, read.OldRemaining)
	return nil
}

// NewUsageReport returns the report of a month at time now. keys are the valid keys; their
// secrets are not used.
func NewUsageReport(month string, now time.Time, rows []UsageRow, complete bool, keys []service.APIKey) UsageReport {
	r := UsageReport{At: now.UTC(), Month: month, Complete: complete, Usage: make([]UsageEntry, 0, len(rows)), Quotas: []Quota{}}
	tenants := map[string]string{}
	for _, k := range keys {
		tenants[k.Name] = k.Tenant
	}
	isCurrent := month == MonthOf(now)
	for _, row := range rows {
		e := UsageEntry{Key: row.Key, Tenant: tenants[row.Key], Model: row.Model, Region: row.Region, Usage: row.Month}
		if isCurrent {
			today := row.On(DayOf(now))
			e.Today = &today
		}
		r.Usage = append(r.Usage, e)
	}
	if isCurrent {
		r.Quotas = quotas(keys, r.Usage, r.At)
	}
	return r
}

// quotas lists the quotas, by key.
func quotas(keys []service.APIKey, usage []UsageEntry, now time.Time) []Quota {
	byKey := map[string]KeyQuota{}
	for _, e := range usage {
		q := byKey[e.Key]
		q.Month, q.Day = q.Month.Plus(e.Usage), q.Day.Plus(*e.Today)
		byKey[e.Key] = q
	}
	sorted := slices.SortedFunc(slices.Values(keys), func(a, b service.APIKey) int { return cmp.Compare(a.Name, b.Name) })
	sorted = slices.CompactFunc(sorted, func(a, b service.APIKey) bool { return a.Name == b.Name })
	y, m, d := now.Date()
	tomorrow, next := time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC), time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
	list := []Quota{}
	for _, k := range sorted {
		used := byKey[k.Name]
		for _, q := range []Quota{
			{What: "requests", Period: "day", Limit: int64(k.Limits.RequestsPerDay), Used: used.Day.Requests, ResetsAt: tomorrow},
			{What: "tokens", Period: "day", Limit: int64(k.Limits.TokensPerDay), Used: used.Day.Tokens(), ResetsAt: tomorrow},
			{What: "requests", Period: "month", Limit: int64(k.Limits.RequestsPerMonth), Used: used.Month.Requests, ResetsAt: next},
			{What: "tokens", Period: "month", Limit: int64(k.Limits.TokensPerMonth), Used: used.Month.Tokens(), ResetsAt: next},
		} {
			if q.Limit > 0 {
				q.Key, q.Tenant, q.Remaining = k.Name, k.Tenant, max(q.Limit-q.Used, 0)
				list = append(list, q)
			}
		}
	}
	return list
}

// Usage returns the usage report of a month such as 2026-11; empty means the current month.
func (c *Client) Usage(ctx context.Context, month string) (*UsageReport, error) {
	path := "/v1/usage"
	if month != "" {
		path += "?month=" + url.QueryEscape(month)
	}
	r := new(UsageReport)
	if err := c.getJSON(ctx, path, r); err != nil {
		return nil, err
	}
	return r, nil
}
