package admin

import (
	"context"
	"net/http"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// UsageSource knows what API keys used. complete is false when that is only what
// this balancer knows.
type UsageSource interface {
	Usage(ctx context.Context, month string) (rows []telemetry.UsageRow, complete bool)
}

// usageEntry is a key's usage of a model in a region, as clients of the API see it.
type usageEntry struct {
	Key    string         `json:"key"`
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	telemetry.Usage
	// Today is the part of the present day; null for a month that is over.
	Today *telemetry.Usage `json:"today"`
}

// serveUsage answers what each key used in the running month or in ?month=.
func (a *API) serveUsage(w http.ResponseWriter, r *http.Request) {
	now := a.opts.Now()
	month := telemetry.MonthOf(now)
	running := month
	if text := r.URL.Query().Get("month"); text != "" {
		if t, err := time.Parse("2006-01", text); err != nil || telemetry.MonthOf(t) != text {
			refuse(w, http.StatusBadRequest, "month must be a year and a month such as 2026-11, got "+quoted(text))
			return
		}
		month = text
	}
	ctx, cancel := context.WithTimeout(r.Context(), historyTimeout)
	defer cancel()
	rows, complete := a.opts.Usage.Usage(ctx, month)
	list := make([]usageEntry, 0, len(rows))
	for _, row := range rows {
		e := usageEntry{Key: row.Key, Model: row.Model, Region: row.Region, Usage: row.Month}
		if month == running {
			today := row.On(telemetry.DayOf(now))
			e.Today = &today
		}
		list = append(list, e)
	}
	answer(w, http.StatusOK, struct {
		At       time.Time    `json:"at"`
		Month    string       `json:"month"`
		Complete bool         `json:"complete"`
		Usage    []usageEntry `json:"usage"`
	}{now.UTC(), month, complete, list})
}
