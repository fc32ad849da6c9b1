package admin

import (
	"errors"
	"net/http"

	"skyserve/internal/telemetry"
)

// serveReload reloads the balancer's configuration.
func (a *API) serveReload(w http.ResponseWriter, _ *http.Request) {
	if a.opts.Reload == nil {
		writeError(w, http.StatusNotFound, "this balancer has no configuration file to reload")
		return
	}
	done, err := a.opts.Reload()
	var refused *telemetry.ReloadRefused
	switch {
	case errors.As(err, &refused):
		type problem struct {
			Message  string   `json:"message"`
			Problems []string `json:"problems"`
		}
		writeJSON(w, http.StatusBadRequest, struct {
			Error problem `json:"error"`
		}{problem{refused.Error(), refused.Problems}})
	case err != nil:
		writeError(w, http.StatusInternalServerError, err.Error())
	default:
		writeJSON(w, http.StatusOK, done)
	}
}
