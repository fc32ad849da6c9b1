package admin

import (
	"context"
	"net/http"
	"time"

	"skyserve/internal/telemetry"
)

// UsageSource returns the usage of API keys. complete is false if the usage of other balancers is
// missing.
type UsageSource interface {
	Usage(ctx context.Context, month string) (rows []telemetry.UsageRow, complete bool)
}

// serveUsage responds with the usage of each key in the current month or in ?month=.
func (a *API) serveUsage(w http.ResponseWriter, r *http.Request) {
	now := a.opts.Now()
	month := telemetry.MonthOf(now)
	if text := r.URL.Query().Get("month"); text != "" {
		if t, err := time.Parse("2006-01", text); err != nil || telemetry.MonthOf(t) != text {
			writeError(w, http.StatusBadRequest, "month must be a year and a month such as 2026-11, got "+quoteClipped(text))
			return
		}
		month = text
	}
	ctx, cancel := context.WithTimeout(r.Context(), historyTimeout)
	defer cancel()
	rows, complete := a.opts.Usage.Usage(ctx, month)
	var limited []telemetry.LimitedName
	if a.opts.Limited != nil {
		limited = a.opts.Limited()
	}
	writeJSON(w, http.StatusOK, telemetry.NewUsageReport(month, now, rows, complete, limited))
}
