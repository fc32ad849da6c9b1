package agent

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"skyserve/internal/identity"
)

// cloudHandler is the handler that calls the machine's cloud API, with the configuration for which it
// was created.
type cloudHandler struct {
	mu      sync.Mutex
	config  *CloudAccess
	handler http.Handler
}

var errNoCloud = errors.New("this machine is not configured to call its cloud's API; run 'skyserve up'")

// serveCloud lets only the controller call the cloud's API through the machine: operators have
// their own cloud identity.
func (a *Agent) serveCloud(w http.ResponseWriter, r *http.Request) {
	if who, err := identity.PeerName(r.TLS); err != nil || who.Role != identity.Controller {
		writeError(w, http.StatusForbidden, fmt.Errorf("%w: must be the controller, got %s", identity.ErrRole, who))
		return
	}
	h, err := a.currentCloudHandler()
	if err != nil {
		writeError(w, http.StatusConflict, err)
		return
	}
	h.ServeHTTP(w, r)
}

// currentCloudHandler returns the handler for the machine's cloud. It creates a new one when the configuration has
// changed.
func (a *Agent) currentCloudHandler() (http.Handler, error) {
	a.mu.Lock()
	as := a.desired.Cloud
	a.mu.Unlock()
	if as == nil || a.opts.CloudHandler == nil {
		return nil, errNoCloud
	}
	a.cloudHandler.mu.Lock()
	defer a.cloudHandler.mu.Unlock()
	if a.cloudHandler.config == as {
		return a.cloudHandler.handler, nil
	}
	h, err := a.opts.CloudHandler(*as)
	if err != nil {
		return nil, err
	}
	a.cloudHandler.config, a.cloudHandler.handler = as, h
	return h, nil
}
