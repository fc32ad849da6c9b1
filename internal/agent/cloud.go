package agent

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"skyserve/internal/identity"
)

// acting is what acts in the machine's cloud, as the last deployment that asked for it has it.
type acting struct {
	mu      sync.Mutex
	as      *Cloud
	handler http.Handler
}

var errNoCloud = errors.New("this machine was not told how to act in its cloud")

// actInCloud lets the controller, and nobody else, have the machine act in its cloud:
// operators have an identity of their own there.
func (a *Agent) actInCloud(w http.ResponseWriter, r *http.Request) {
	if who, err := identity.Of(r.TLS); err != nil || who.Role != identity.Controller {
		refuse(w, http.StatusForbidden, fmt.Errorf("%w: want the controller, found %s", identity.ErrRole, who))
		return
	}
	h, err := a.cloud()
	if err != nil {
		refuse(w, http.StatusConflict, err)
		return
	}
	h.ServeHTTP(w, r)
}

// cloud is what acts in the machine's cloud, made anew where another deployment says how.
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
