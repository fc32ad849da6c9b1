package controller

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// View is what the controller says about itself: GET /v1/state.
type View struct {
	Service string `json:"service"`
	// Leading tells whether it holds the lease, Token by which fencing token.
	Leading bool   `json:"leading"`
	Token   uint64 `json:"token"`
	// Store says where state is kept: "not replicated" or "external".
	Store string `json:"store"`
	// Epoch numbers the assignment; 0 before the first one.
	Epoch     uint64         `json:"epoch"`
	Balancers []BalancerView `json:"balancers"`
	Replicas  []ReplicaView  `json:"replicas"`
	// Alerts are what somebody has to act on, the worst first.
	Alerts []telemetry.Alert `json:"alerts"`
}

// BalancerView is a balancer as the controller's probes find it.
type BalancerView struct {
	ID     string         `json:"id"`
	Region service.Region `json:"region"`
	Alive  bool           `json:"alive"`
	// FailedProbes counts those in a row.
	FailedProbes int `json:"failed_probes"`
}

// ReplicaView is a replica and the balancer that it is assigned to.
type ReplicaView struct {
	ID       string `json:"id"`
	Balancer string `json:"balancer"`
	// Adopted is true while that is not its home.
	Adopted bool `json:"adopted"`
}

// The words for where state is kept.
const (
	StoreNotReplicated = "not replicated"
	StoreExternal      = "external"
)

// hold notes the lease; nil when it is gone.
func (c *Controller) hold(l lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view.Leading, c.view.Token = l != nil, 0
	if l != nil {
		c.view.Token = l.Token()
	}
}

// show brings what is shown up to date.
func (c *Controller) show() {
	homes := map[string]string{}
	for _, r := range c.config.Replicas {
		homes[r.ID] = r.Home
	}
	v := View{Service: c.config.Service, Store: StoreNotReplicated, Epoch: c.current.Epoch(), Balancers: []BalancerView{}, Replicas: []ReplicaView{}}
	if c.config.StoreListen == "" {
		v.Store = StoreExternal
	}
	for _, w := range c.balancers {
		v.Balancers = append(v.Balancers, BalancerView{ID: w.ID, Region: w.Region, Alive: w.alive(), FailedProbes: w.failures})
	}
	for _, id := range slices.Sorted(maps.Keys(c.current.Owners)) {
		owner := c.current.Owners[id]
		v.Replicas = append(v.Replicas, ReplicaView{ID: id, Balancer: owner, Adopted: owner != homes[id]})
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
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		v := c.view
		c.mu.Unlock()
		v.Alerts = c.alerts(time.Now())
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // whoever asked is gone
	})
	return mux
}
