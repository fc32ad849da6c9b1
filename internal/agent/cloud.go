package agent

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"skyserve/internal/identity"
)

// acting is the handler that calls the machine's cloud API, for the last deployment that configured
// it.
type acting struct {
	mu      sync.Mutex
	as      *Cloud
	handler http.Handler
}

var errNoCloud = errors.New("this machine has no configuration for its cloud's API")

// actInCloud lets only the controller call the cloud's API through the machine: operators have
// their own cloud identity.
func (a *Agent) actInCloud(w http.ResponseWriter, r *http.Request) {
	if who, err := identity.Of(r.TLS); err != nil || who.Role != identity.Controller {
		refuse(w, http.StatusForbidden, fmt.Errorf("%w: expected the controller, found %s", identity.ErrRole, who))
		return
	}
	h, err := a.cloud()
	if err != nil {
		refuse(w, http.StatusConflict, err)
		return
	}
	h.ServeHTTP(w, r)
}

// cloud returns the handler for the machine's cloud, recreated where its configuration has changed.
func (a *Agent) cloud() (http.Handler, error) {
	a.mu.Lock()
	as := a.wanted.Cloud
	a.mu.Unlock()
	if as == nil || a.opts.Cloud == nil {
		return nil, errNoCloud
	}
	a.acting.mu.Lock()
	defer a.acting.mu.Unlock()
	if a.acting.as == as {
		return a.acting.handler, nil
	}
	h, err := a.opts.Cloud(*as)
	if err != nil {
		return nil, err
	}
	a.acting.as, a.acting.handler = as, h
	return h, nil
}
