package controller

import (
	"encoding/json"
	"net"
	"net/http"
	"reflect"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// options are what Run may be told beyond the configuration.
type options struct {
	read     func() (service.ControllerConfig, error)
	reloaded func(revision string)
	actuator Actuator
}

// Option tells Run more than the configuration.
type Option func(*options)

// Reread lets POST /reload read the configuration again by read. reloaded, unless
// it is nil, is told the Revision of one that was taken up.
func Reread(read func() (service.ControllerConfig, error), reloaded func(revision string)) Option {
	return func(o *options) { o.read, o.reloaded = read, reloaded }
}

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
	if c.planner != nil {
		c.planner.again()
	}
	if c.scaler != nil {
		c.scaler.soon()
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
	next, err := c.options.read()
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	done := telemetry.Reload{Changed: []string{}, Restart: []string{}, Left: []string{}}
	if reflect.DeepEqual(next.Fixed(), c.fixed) {
		c.mu.Lock()
		c.asked = &next
		c.mu.Unlock()
		done.Revision, done.Changed = next.Revision, append(done.Changed, "replicas")
		if c.options.reloaded != nil {
			c.options.reloaded(next.Revision)
		}
	} else {
		done.Restart = append(done.Restart, "the configuration apart from replicas")
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(done) // whoever asked is gone
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
