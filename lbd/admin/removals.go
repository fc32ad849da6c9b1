package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
)

// RemovalStore stores the replicas that operators are removing.
type RemovalStore interface {
	// AnnounceRemovals stores the handles of their machines.
	AnnounceRemovals(ctx context.Context, handles []string) error
}

// announceRemovals stores which replicas an operator's command removes, before it removes them.
func (a *API) announceRemovals(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(deadlineAfter(bodyTimeout)) // as in ServeHTTP
	var body struct {
		Machines []string `json:"machines"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxEventsBody)).Decode(&body); err != nil {
		writeError(w, http.StatusBadRequest, "reading the machines: "+err.Error())
		return
	}
	if len(body.Machines) == 0 || slices.Contains(body.Machines, "") {
		writeError(w, http.StatusBadRequest, "machines: at least one id of a machine is required, and none may be empty")
		return
	}
	if a.opts.Removals == nil {
		writeNoStore(w, "this balancer has no store, so nothing replaces its replicas")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), storedTimeout)
	defer cancel()
	if err := a.opts.Removals.AnnounceRemovals(ctx, body.Machines); err != nil {
		a.opts.Logger.Error("storing removals failed", "err", err)
		writeError(w, http.StatusServiceUnavailable, "the store does not respond; see the balancer's log")
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"announced": len(body.Machines)})
}
