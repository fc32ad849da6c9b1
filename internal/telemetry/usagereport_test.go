package telemetry_test

import (
	"reflect"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

func TestUsageReportShowsRemainingQuota(t *testing.T) {
	now := time.Date(2026, 11, 30, 22, 0, 0, 0, time.UTC)
	keys := []service.APIKey{
		{Secret: "b", Name: "nightly", Tenant: "batch", Limits: service.KeyLimits{RequestsPerDay: 10, TokensPerMonth: 1000}},
		{Secret: "a", Name: "acme", Tenant: "acme"},
		{Secret: "c", Name: "nightly", Tenant: "batch", Limits: service.KeyLimits{RequestsPerDay: 10, TokensPerMonth: 1000}},
		{Secret: "d", Name: "idle", Tenant: "idle", Limits: service.KeyLimits{TokensPerDay: 5, RequestsPerMonth: 7}},
	}
	row := func(key, model string, day int64, today int64) telemetry.UsageRow {
		return telemetry.UsageRow{
			Key: key, Model: model, Region: "local/us", Day: day,
			Month: telemetry.Usage{Requests: 6, PromptTokens: 500, CachedTokens: 100, OutputTokens: 50}, Today: telemetry.Usage{Requests: today},
		}
	}
	today := telemetry.DayOf(now)
	rows := []telemetry.UsageRow{row("gone", "m", today, 1), row("nightly", "m", today, 4), row("nightly", "n", today-1, 6)}
	r := telemetry.NewUsageReport("2026-11", now, rows, true, telemetry.LimitedKeys(keys))
	midnight := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	want := []telemetry.Quota{
		{"idle", "idle", "tokens", "day", 5, 0, 5, midnight},
		{"idle", "idle", "requests", "month", 7, 0, 7, midnight},
		{"nightly", "batch", "requests", "day", 10, 4, 6, midnight},
		{"nightly", "batch", "tokens", "month", 1000, 1100, 0, midnight}, // exceeded by requests in flight
	}
	if !reflect.DeepEqual(r.Quotas, want) {
		t.Errorf("got %+v\nwant %+v", r.Quotas, want)
	}
	if len(r.Usage) != 3 || r.Usage[0].Tenant != "" || r.Usage[1].Tenant != "batch" || r.Usage[1].Today.Requests != 4 || r.Usage[2].Today.Requests != 0 {
		t.Errorf("got %+v", r.Usage)
	}
	past := telemetry.NewUsageReport("2026-10", now, rows, true, telemetry.LimitedKeys(keys))
	if len(past.Quotas) != 0 || past.Usage[1].Today != nil || past.Usage[1].Requests != 6 {
		t.Errorf("of a month that is over: %+v", past)
	}
}

func TestClientUsage(t *testing.T) {
	c := serve(t, exchange{"GET", "/v1/usage?month=2026-10", "", 200, `{"month":"2026-10","complete":true,"usage":[{"key":"acme","requests":3,"today":null}],"quotas":[]}`})
	r, err := c.Usage(t.Context(), "2026-10")
	if err != nil || !r.Complete || len(r.Usage) != 1 || r.Usage[0].Requests != 3 {
		t.Errorf("got %+v, %v", r, err)
	}
	c = serve(t, exchange{"GET", "/v1/usage", "", 400, `{"error":{"message":"no"}}`})
	if _, err := c.Usage(t.Context(), ""); err == nil {
		t.Error("the error was not returned")
	}
}
