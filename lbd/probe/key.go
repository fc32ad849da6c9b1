package probe

import (
	"errors"
	"fmt"
	"net/http"

	"skyserve/internal/service"
)

// modelError reports that an engine does not serve the model of its replica.
type modelError struct {
	served []string
	want   string
}

func (e *modelError) Error() string {
	return fmt.Sprintf("GET /v1/models returned %s, not %q", shortList(e.served), e.want)
}

// misconfigurationOf returns which part of the replica's configuration made a probe fail; empty if none is known.
func misconfigurationOf(err error) service.Misconfiguration {
	var status *statusError
	var model *modelError
	switch {
	case errors.As(err, &model):
		return service.MisconfiguredModel
	case errors.As(err, &status) && (status.status == http.StatusUnauthorized || status.status == http.StatusForbidden):
		return service.MisconfiguredKey
	}
	return ""
}

// explainKey returns the addition to the reason of a probe that failed because of the engine's API key. It names the source
// of the key, never the key.
func (w *watch) explainKey() string {
	if source := w.config.KeySource(); source != "" {
		return ": the engine rejects the key from " + source
	}
	return ": the engine requires an API key, and none is configured: set api_key in service.yaml, or --replica-key of 'skyserve lb'"
}
