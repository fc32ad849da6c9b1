package controller

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// View is the controller's state: GET /v1/state.
type View struct {
	Service string `json:"service"`
	// Leading is true while the controller holds the lease; Token is the fencing token of the lease.
	Leading bool   `json:"leading"`
	Token   uint64 `json:"token"`
	// Standbys are the names of the other controllers that wait for the lease.
	Standbys []string `json:"standbys"`
	// Store is the state of the store in one line: telemetry.StoreState.Line.
	Store string `json:"store"`
	// Epoch is the number of the assignment; 0 before the first one.
	Epoch     uint64         `json:"epoch"`
	Balancers []BalancerView `json:"balancers"`
	Replicas  []ReplicaView  `json:"replicas"`
	// Alerts are the current alerts, the most severe first.
	Alerts []telemetry.Alert `json:"alerts"`
}

// BalancerView is a balancer with its probe results.
type BalancerView struct {
	ID     string         `json:"id"`
	Region service.Region `json:"region"`
	Alive  bool           `json:"alive"`
	// FailedProbes is the number of consecutive failed probes.
	FailedProbes int `json:"failed_probes"`
}

// ReplicaView is a replica with its assigned balancer.
type ReplicaView struct {
	ID       string `json:"id"`
	Balancer string `json:"balancer"`
	// Adopted is true while the balancer is not its primary one.
	Adopted bool `json:"adopted"`
}

// The states of a store without known members, as in telemetry.StoreState.Line, for deploy.ServiceStatus.
const (
	StoreNotReplicated = "not replicated"
	StoreExternal      = "external"
	StoreStarting      = "starting" // no controller has reported the state of the cluster yet
)

// setLease records the lease in the view; nil when it has ended.
func (c *Controller) setLease(l lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view.Leading, c.view.Token, c.termStart = l != nil, 0, time.Now()
	if l != nil {
		c.view.Token = l.Token()
	}
}

// updateView replaces the balancers and replicas of the view with the current ones.
func (c *Controller) updateView() {
	primaries := map[string]string{}
	for _, r := range c.config.Replicas {
		primaries[r.ID] = r.Primary
	}
	v := View{Service: c.immutable.Service, Epoch: c.current.Epoch(), Balancers: []BalancerView{}, Replicas: []ReplicaView{}}
	for _, b := range c.balancers {
		v.Balancers = append(v.Balancers, BalancerView{ID: b.ID, Region: b.Region, Alive: b.alive(), FailedProbes: b.failures})
	}
	for _, id := range slices.Sorted(maps.Keys(c.current.Owners)) {
		owner := c.current.Owners[id]
		v.Replicas = append(v.Replicas, ReplicaView{ID: id, Balancer: owner, Adopted: owner != primaries[id]})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v.Leading, v.Token = c.view.Leading, c.view.Token
	c.view = v
}

// handler serves the controller's own listener.
func (c *Controller) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", c.serveHealth)
	mux.HandleFunc("POST /reload", c.serveReload)
	if c.events != nil {
		registry := prometheus.NewRegistry()
		registry.MustRegister(store.EventMetrics{Queue: c.events})
		mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	}
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		v := c.view
		c.mu.Unlock()
		storeState := c.storeState()
		v.Alerts, v.Standbys, v.Store = c.alerts(time.Now()), c.standbys.names(c.name(), time.Now()), storeState.Line()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // fails only when the client has disconnected
	})
	return mux
}
