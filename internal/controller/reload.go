package controller

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// options are the options of Run.
type options struct {
	readConfig    func() (service.ControllerConfig, error)
	reloadSignals <-chan os.Signal
	actuator      Actuator
	machines      MachineReconciler
	alerts        []func() []telemetry.Alert
	version       string
	openBucket    func(ctx context.Context, url string) (store.CloudBucket, error) // nil = no buckets
}

// Option is an option of Run.
type Option func(*options)

// WithReload enables reloading: read returns the current configuration. If its immutable part has changed
// (service.ControllerConfig.Immutable), nothing of it is applied until a restart.
func WithReload(read func() (service.ControllerConfig, error)) Option {
	return func(o *options) { o.readConfig = read }
}

// WithReloadSignals reloads the configuration on every signal of a channel, as POST /reload does; the result
// is logged.
func WithReloadSignals(signals <-chan os.Signal) Option {
	return func(o *options) { o.reloadSignals = signals }
}

// WithMachines lets the controller reconcile machines while it holds the lease.
func WithMachines(m MachineReconciler) Option { return func(o *options) { o.machines = m } }

// applyReload applies a reloaded configuration.
func (c *Controller) applyReload() {
	c.mu.Lock()
	next := c.reloaded
	c.reloaded = nil
	c.mu.Unlock()
	if next == nil {
		return
	}
	primaries := primaryBalancers(c.config)
	c.config = *next
	c.trackBalancers(next.Balancers)
	for _, r := range next.Replicas {
		c.managed[r.ID] = true
		switch before := primaries[r.ID]; {
		case before == "":
			delete(c.reassigned, r.ID)
		case before != r.Primary:
			owner := c.current.Owners[r.ID]
			c.reassigned[r.ID] = owner != "" && owner != r.Primary
		}
	}
	c.log.Info("configuration applied", "balancers", len(next.Balancers), "replicas", len(next.Replicas))
	if c.loop != nil {
		c.loop.trigger()
	}
}

// primaryBalancers returns the primary balancer of each replica of a configuration, by ID.
func primaryBalancers(config service.ControllerConfig) map[string]string {
	primaries := make(map[string]string, len(config.Replicas))
	for _, r := range config.Replicas {
		primaries[r.ID] = r.Primary
	}
	return primaries
}

// trackBalancers sets the balancers of the next round. A balancer that is unchanged in the configuration keeps the
// results of its probes.
func (c *Controller) trackBalancers(balancers []service.ControlledBalancer) {
	before := c.balancers
	c.balancers = nil
	for _, b := range balancers {
		i := slices.IndexFunc(before, func(old *trackedBalancer) bool { return old.ControlledBalancer == b })
		if i >= 0 {
			c.balancers = append(c.balancers, before[i])
		} else {
			c.balancers = append(c.balancers, &trackedBalancer{ControlledBalancer: b, admin: c.dial(b.Admin)})
		}
	}
}

// serveReload serves POST /reload as a balancer does: the next round applies the balancers and replicas of
// the configuration; a change of its immutable part requires a restart.
func (c *Controller) serveReload(w http.ResponseWriter, r *http.Request) {
	if !isLocalRequest(r) {
		writeError(w, http.StatusForbidden, "only programs on this machine may reload the configuration")
		return
	}
	if c.options.readConfig == nil {
		writeError(w, http.StatusNotFound, "this controller has no configuration file to reload")
		return
	}
	done, err := c.reload()
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(done) // fails only when the client has disconnected
}

// reload reloads the configuration. The list of balancers that the control loop observes, the members of the store, the
// number of controllers and the backups take effect at once. The next round applies the replicas, and the balancers to
// which it assigns them. If the immutable part has changed, reload applies nothing and reports that a restart is
// required. It fails if the configuration cannot be read, or the members cannot be changed.
func (c *Controller) reload() (telemetry.Reload, error) {
	done := telemetry.Reload{Changed: []string{}, Restart: []string{}, NotApplied: []string{}}
	next, err := c.options.readConfig()
	if err != nil {
		return done, err
	}
	if !reflect.DeepEqual(next.Immutable(), c.immutable) {
		done.Restart = append(done.Restart, "a key other than replicas, balancers, controllers, backup and the members of store_cluster")
		return done, nil
	}
	if c.applyImmediately != nil {
		if err := c.applyImmediately(next); err != nil {
			return done, err
		}
	}
	c.mu.Lock()
	done.Revision, done.Changed = next.Revision, changedKeys(c.lastRead, next)
	c.reloaded, c.lastRead, c.controllers, c.backupSpec = &next, next, len(next.Controllers), next.Backup
	c.mu.Unlock()
	return done, nil
}

// changedKeys returns the keys that differ between two configurations with the same immutable part.
func changedKeys(before, after service.ControllerConfig) []string {
	var membersBefore, membersAfter service.StoreCluster
	if before.StoreCluster != nil {
		membersBefore = *before.StoreCluster
	}
	if after.StoreCluster != nil {
		membersAfter = *after.StoreCluster
	}
	keys := []string{}
	for _, k := range []struct {
		name  string
		equal bool
	}{
		{"replicas", slices.EqualFunc(before.Replicas, after.Replicas, func(a, b service.ControlledReplica) bool { return reflect.DeepEqual(a, b) })},
		{"balancers", slices.Equal(before.Balancers, after.Balancers)},
		{"controllers", slices.Equal(before.Controllers, after.Controllers)},
		{"backup", reflect.DeepEqual(before.Backup, after.Backup)},
		{"store_cluster", slices.Equal(membersBefore.Members, membersAfter.Members) && slices.Equal(membersBefore.Routes, membersAfter.Routes) && slices.Equal(membersBefore.Clients, membersAfter.Clients)},
	} {
		if !k.equal {
			keys = append(keys, k.name)
		}
	}
	return keys
}

// reloadOnSignal reloads the configuration on every signal until ctx ends.
func (c *Controller) reloadOnSignal(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.options.reloadSignals:
		}
		done, err := c.reload()
		switch {
		case err != nil:
			c.log.Error("reloading the configuration failed", "err", err)
		case len(done.Restart) > 0:
			c.log.Error("the configuration was not reloaded: restart the controller to apply it", "changed", done.Restart)
		default:
			c.log.Info("configuration reloaded", "changed", done.Changed)
		}
	}
}

// isLocalRequest reports whether a request comes from a program on this machine. The listener is at a loopback address
// (checkConfig), so only the requests of web pages in a browser on this machine have to be rejected: those of another
// origin, and those with a DNS name that resolves to this machine.
func isLocalRequest(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	ip := net.ParseIP(host)
	return (host == "localhost" || ip != nil && ip.IsLoopback()) && http.NewCrossOriginProtection().Check(r) == nil
}

// writeError writes an error in the format of the admin APIs.
func writeError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"message": message}})
}
