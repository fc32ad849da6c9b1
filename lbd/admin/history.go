package admin

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"skyserve/internal/telemetry"
)

const (
	// historyDefault is how far back history goes when nothing is asked for: a
	// week shows every pattern that the forecasters look for.
	historyDefault = 7 * 24 * time.Hour
	// historyTimeout bounds what the store may take.
	historyTimeout = 8 * time.Second
)

// serveHistory answers the points of all minutes from ?since= on.
func (a *API) serveHistory(w http.ResponseWriter, r *http.Request) {
	since := a.opts.Now().Add(-historyDefault).Unix() / 60
	if text := r.URL.Query().Get("since"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			refuse(w, http.StatusBadRequest, "since must be a minute since the Unix epoch, got "+quoted(text))
			return
		}
		since = n
	}
	ctx, cancel := context.WithTimeout(r.Context(), historyTimeout)
	defer cancel()
	points, complete, err := a.opts.History.History(ctx, since)
	if err != nil {
		a.opts.Logger.Error("reading history", "since", since, "err", err)
		refuse(w, http.StatusInternalServerError, "the history cannot be read; the balancer's log says why")
		return
	}
	if points == nil {
		points = []telemetry.Point{}
	}
	answer(w, http.StatusOK, struct {
		Complete bool              `json:"complete"`
		Points   []telemetry.Point `json:"points"`
	}{complete, points})
}
