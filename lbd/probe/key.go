package probe

import (
	"errors"
	"net/http"
)

// explainKey returns the addition to the reason of a probe that failed because of the engine's API key;
// otherwise it is empty. It names the source of the key, never the key.
func (w *watch) explainKey(err error) string {
	var s *statusError
	if !errors.As(err, &s) || s.status != http.StatusUnauthorized && s.status != http.StatusForbidden {
		return ""
	}
	if source := w.config.KeySource(); source != "" {
		return ": the engine rejects the key from " + source
	}
	return ": the engine requires an API key, and none is configured: set api_key in service.yaml, or --replica-key of 'skyserve lb'"
}
