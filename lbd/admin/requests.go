package admin

import (
	"fmt"
	"net/http"
	"strconv"

	"skyserve/internal/telemetry"
)

// requestsDefault is the default number of listed requests: more than fit on one screen.
const requestsDefault = 100

// serveRequests lists the latest ?limit= requests, newest first.
func (a *API) serveRequests(w http.ResponseWriter, r *http.Request) {
	limit := requestsDefault
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > telemetry.MaxRequests {
			writeError(w, http.StatusBadRequest, fmt.Sprintf("limit must be a number from 1 to %d, got %s", telemetry.MaxRequests, quoteClipped(text)))
			return
		}
		limit = n
	}
	writeJSON(w, http.StatusOK, map[string]any{"requests": a.opts.Requests(limit)})
}
