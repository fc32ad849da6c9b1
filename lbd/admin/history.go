package admin

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"skyserve/internal/telemetry"
)

const (
	// historyDefault is the default length of the history: a week contains every pattern that the
	// forecasters use.
	historyDefault = 7 * 24 * time.Hour
	// historyTimeout is the timeout of the query of the store.
	historyTimeout = 8 * time.Second
)

// serveHistory responds with the points of all minutes from ?since= on.
func (a *API) serveHistory(w http.ResponseWriter, r *http.Request) {
	since := a.opts.Now().Add(-historyDefault).Unix() / 60
	if text := r.URL.Query().Get("since"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			writeError(w, http.StatusBadRequest, "since must be a minute since the Unix epoch, got "+quoteClipped(text))
			return
		}
		since = n
	}
	ctx, cancel := context.WithTimeout(r.Context(), historyTimeout)
	defer cancel()
	var points []telemetry.Point
	var complete bool
	var err error
	if r.URL.Query().Get("points") == telemetry.PointsUnstored {
		points = a.opts.History.UnstoredPoints(since)
	} else {
		points, complete, err = a.opts.History.History(ctx, since)
	}
	if err != nil {
		a.opts.Logger.Error("reading history failed", "since", since, "err", err)
		writeError(w, http.StatusInternalServerError, "reading the history failed; see the balancer's log")
		return
	}
	if points == nil {
		points = []telemetry.Point{}
	}
	writeJSON(w, http.StatusOK, struct {
		Complete bool              `json:"complete"`
		Points   []telemetry.Point `json:"points"`
	}{complete, points})
}
