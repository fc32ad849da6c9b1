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

// UsageReport is the usage of API keys and users in one month, and their remaining quotas: the
// response of GET /v1/usage.
type UsageReport struct {
	At    time.Time `json:"at"`
	Month string    `json:"month"` // UTC: 2026-11
	// Complete is false if the store does not respond: the report then contains only the usage
	// that the responding balancer has in memory.
	Complete bool         `json:"complete"`
	Usage    []UsageEntry `json:"usage"`
	// Quotas are the quotas of the valid keys, users and tenants; empty for a past month. Budgets are
	// those in US dollars.
	Quotas  []Quota  `json:"quotas"`
	Budgets []Budget `json:"budgets"`
}

// UsageEntry is a key's usage of a model in a region.
type UsageEntry struct {
	Key string `json:"key"` // its name
	// Tenant is the key's tenant; empty if the key is no longer valid and its tenant had no limits.
	Tenant string         `json:"tenant"`
	Model  string         `json:"model"`
	Region service.Region `json:"region"` // where its clients sent their requests
	Usage
	// CostUSD is the cost in US dollars; nil if the cost of any request is unknown.
	CostUSD *float64 `json:"cost_usd"`
	// Today is the usage of the current day; nil for a past month.
	Today *Usage `json:"today"`
}

// Budget is a limit of a key, user or tenant on its cost per day or month, over all regions.
type Budget struct {
	Key    string `json:"key"` // empty = the whole tenant
	Tenant string `json:"tenant"`
	Period string `json:"period"` // day or month, by UTC's calendar
	// The remaining budget is never negative, as in Quota.
	LimitUSD     float64   `json:"limit_usd"`
	UsedUSD      float64   `json:"used_usd"`
	RemainingUSD float64   `json:"remaining_usd"`
	ResetsAt     time.Time `json:"resets_at"`
}

// Quota is a limit of a key, user or tenant on requests or tokens per day or month, over all regions.
type Quota struct {
	Key    string `json:"key"` // empty = the whole tenant
	Tenant string `json:"tenant"`
	Unit   string `json:"unit"`   // requests or tokens (prompt and output)
	Period string `json:"period"` // day or month, by UTC's calendar
	Limit  int64  `json:"limit"`
	Used   int64  `json:"used"`
	// Remaining is the remaining quota. It is never negative, although requests in flight when a quota is
	// reached may exceed it.
	Remaining int64     `json:"remaining"`
	ResetsAt  time.Time `json:"resets_at"`
}

// MarshalJSON adds the former keys of Unit and Remaining.
func (q Quota) MarshalJSON() ([]byte, error) {
	type plain Quota
	return json.Marshal(struct {
		plain
		OldUnit      string `json:"what"`
		OldRemaining int64  `json:"left"`
	}{plain(q), q.Unit, q.Remaining})
}

// UnmarshalJSON also reads the former keys of Unit and Remaining, which older balancers send.
func (q *Quota) UnmarshalJSON(data []byte) error {
	type plain Quota
	var read struct {
		plain
		OldUnit      string `json:"what"`
		OldRemaining int64  `json:"left"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*q = Quota(read.plain)
	q.Unit, q.Remaining = cmp.Or(q.Unit, read.OldUnit), max(q.Remaining, read.OldRemaining)
	return nil
}

// LimitedName is the name and the limits of a key, user or tenant.
type LimitedName struct {
	Key    string // empty = the whole tenant
	Tenant string
	Limits service.KeyLimits
}

// LimitedKeys returns the names and limits of API keys.
func LimitedKeys(keys []service.APIKey) []LimitedName {
	var list []LimitedName
	for _, k := range keys {
		list = append(list, LimitedName{k.Name, k.Tenant, k.Limits})
	}
	return list
}

// NewUsageReport returns the report of a month at time now. limited are the valid keys, and the users and
// tenants with limits.
func NewUsageReport(month string, now time.Time, rows []UsageRow, complete bool, limited []LimitedName) UsageReport {
	r := UsageReport{At: now.UTC(), Month: month, Complete: complete, Usage: make([]UsageEntry, 0, len(rows)), Quotas: []Quota{}, Budgets: []Budget{}}
	tenants := map[string]string{}
	for _, k := range limited {
		tenants[k.Key] = k.Tenant
	}
	isCurrent := month == MonthOf(now)
	for _, row := range rows {
		e := UsageEntry{Key: row.Key, Tenant: cmp.Or(tenants[row.Key], row.Tenant), Model: row.Model, Region: row.Region, Usage: row.Month, CostUSD: row.Month.CostUSD()}
		if isCurrent {
			today := row.On(DayOf(now))
			e.Today = &today
		}
		r.Usage = append(r.Usage, e)
	}
	if isCurrent {
		r.addQuotas(limited)
	}
	return r
}

// addQuotas adds the quotas and budgets, tenants first, then by key.
func (r *UsageReport) addQuotas(limited []LimitedName) {
	used := map[LimitedName]KeyQuota{} // without limits
	add := func(name LimitedName, e UsageEntry) {
		q := used[name]
		q.Month, q.Day = q.Month.Plus(e.Usage), q.Day.Plus(*e.Today)
		used[name] = q
	}
	for _, e := range r.Usage {
		add(LimitedName{Key: e.Key}, e)
		add(LimitedName{Tenant: e.Tenant}, e)
	}
	sorted := slices.SortedFunc(slices.Values(limited), func(a, b LimitedName) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Tenant, b.Tenant))
	})
	sorted = slices.CompactFunc(sorted, func(a, b LimitedName) bool { return a.Key == b.Key && (a.Key != "" || a.Tenant == b.Tenant) })
	for _, k := range sorted {
		name := LimitedName{Key: k.Key}
		if k.Key == "" {
			name.Tenant = k.Tenant
		}
		r.addQuotasOf(k, used[name])
	}
}

// addQuotasOf adds the quotas and budgets of one name.
func (r *UsageReport) addQuotasOf(k LimitedName, used KeyQuota) {
	y, m, d := r.At.Date()
	tomorrow, next := time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC), time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
	for _, q := range []Quota{
		{Unit: "requests", Period: "day", Limit: int64(k.Limits.RequestsPerDay), Used: used.Day.Requests, ResetsAt: tomorrow},
		{Unit: "tokens", Period: "day", Limit: int64(k.Limits.TokensPerDay), Used: used.Day.Tokens(), ResetsAt: tomorrow},
		{Unit: "requests", Period: "month", Limit: int64(k.Limits.RequestsPerMonth), Used: used.Month.Requests, ResetsAt: next},
		{Unit: "tokens", Period: "month", Limit: int64(k.Limits.TokensPerMonth), Used: used.Month.Tokens(), ResetsAt: next},
	} {
		if q.Limit > 0 {
			q.Key, q.Tenant, q.Remaining = k.Key, k.Tenant, max(q.Limit-q.Used, 0)
			r.Quotas = append(r.Quotas, q)
		}
	}
	for _, b := range []struct {
		period   string
		limitUSD float64
		used     service.NanoUSD
		resets   time.Time
	}{{"day", k.Limits.USDPerDay, used.Day.Cost, tomorrow}, {"month", k.Limits.USDPerMonth, used.Month.Cost, next}} {
		if b.limitUSD > 0 {
			remaining := max(service.NanoUSDOf(b.limitUSD)-b.used, 0)
			r.Budgets = append(r.Budgets, Budget{k.Key, k.Tenant, b.period, b.limitUSD, b.used.USD(), remaining.USD(), b.resets})
		}
	}
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
