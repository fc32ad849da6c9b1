package controller

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"reflect"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// options are what Run may be told beyond the configuration.
type options struct {
	read     func() (service.ControllerConfig, error)
	hangups  <-chan os.Signal
	actuator Actuator
	machines Machines
	alerts   []func() []telemetry.Alert
}

// Option tells Run more than the configuration.
type Option func(*options)

// Reread lets the controller take up what read finds when it is asked to read its configuration
// again: another list of replicas.
func Reread(read func() (service.ControllerConfig, error)) Option {
	return func(o *options) { o.read = read }
}

// Hangups lets every signal on a channel have the configuration read again, as
// POST /reload does; what came of it is logged.
func Hangups(signals <-chan os.Signal) Option { return func(o *options) { o.hangups = signals } }

// ReconciledBy lets the controller keep machines for as long as it holds the lease.
func ReconciledBy(m Machines) Option { return func(o *options) { o.machines = m } }

// takeUp makes what was read again the configuration.
func (c *Controller) takeUp() {
	c.mu.Lock()
	next := c.asked
	c.asked = nil
	c.mu.Unlock()
	if next == nil {
		return
	}
	c.config = *next
	for _, r := range next.Replicas {
		c.known[r.ID] = true
	}
	c.log.Info("configuration taken up", "replicas", len(next.Replicas))
	if c.reconciler != nil {
		c.reconciler.soon()
	}
}

// serveReload answers POST /reload as a balancer does: the replicas of the
// configuration are taken up by the next round, all else asks for another process.
func (c *Controller) serveReload(w http.ResponseWriter, r *http.Request) {
	if !fromHere(r) {
		refuse(w, http.StatusForbidden, "pages of other origins may not change anything here")
		return
	}
	if c.options.read == nil {
		refuse(w, http.StatusNotFound, "this controller was not started from a file")
		return
	}
	done, err := c.reread()
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(done) // whoever asked is gone
}

// reread reads the configuration again and has the next round take its replicas up.
// Errors are of reading.
func (c *Controller) reread() (telemetry.Reload, error) {
	done := telemetry.Reload{Changed: []string{}, Restart: []string{}, Left: []string{}}
	next, err := c.options.read()
	if err != nil {
		return done, err
	}
	if !reflect.DeepEqual(next.Fixed(), c.fixed) {
		done.Restart = append(done.Restart, "the configuration apart from replicas")
		return done, nil
	}
	c.mu.Lock()
	c.asked = &next
	c.mu.Unlock()
	done.Revision, done.Changed = next.Revision, append(done.Changed, "replicas")
	return done, nil
}

// heed reads the configuration again at every signal until ctx ends.
func (c *Controller) heed(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.options.hangups:
		}
		done, err := c.reread()
		switch {
		case err != nil:
			c.log.Error("reading the configuration again", "err", err)
		case len(done.Restart) > 0:
			c.log.Error("the configuration needs another controller", "changed", done.Restart)
		}
	}
}

// fromHere tells a program of this machine from a page in a browser: of another
// origin, or of a name that somebody's DNS points here.
func fromHere(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	ip := net.ParseIP(host)
	return (host == "localhost" || ip != nil && ip.IsLoopback()) && http.NewCrossOriginProtection().Check(r) == nil
}

// refuse writes an error in the form of the admin APIs.
func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"message": message}})
}
