package admin

import (
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/peer"
)

// A balancer without replicas, or whose replicas all drain, is ready if it can forward to a ready one.
func TestBalancerThatForwardsAll(t *testing.T) {
	region := func(state service.ReplicaState) *telemetry.RegionSnapshot {
		return &telemetry.RegionSnapshot{Replicas: []telemetry.ReplicaSnapshot{{State: state}}}
	}
	no := false
	for _, tt := range []struct {
		name    string
		peer    peer.Health
		forward *bool
		state   service.ReplicaState
	}{
		{"a peer has one", peer.Health{Reported: true, Region: region(service.StateReady)}, nil, "READY"},
		{"its one starts", peer.Health{Reported: true, Region: region(service.StateStarting)}, nil, "STARTING"},
		{"the peer has told nothing", peer.Health{Reported: true}, nil, "STARTING"},
		{"the peer is gone", peer.Health{Reported: true, Silence: time.Hour, Region: region(service.StateReady)}, nil, "STARTING"},
		{"the peer ends", peer.Health{Reported: true, Draining: true, Region: region(service.StateReady)}, nil, "STARTING"},
		{"it forwards nothing", peer.Health{Reported: true, Region: region(service.StateReady)}, &no, "STARTING"},
	} {
		for name, replicas := range map[string][]Replica{"without replicas": nil, "draining": {{State: service.StateDraining}}} {
			b := &balancer{peers: []peer.Health{tt.peer}, replicas: replicas}
			got := api(b, func(o *Options) { o.Self.Balancer.Forward = tt.forward }).Region().Balancers[0]
			want := tt.state
			if len(replicas) > 0 && want == service.StateStarting { // nothing starts
				want = service.StateNotReady
			}
			if got.State != want || want == service.StateReady && got.Reason != "no ready replica, forwarding all requests" || want == service.StateNotReady && got.Reason != "all its replicas are drained" {
				t.Errorf("%s, %s: %+v", tt.name, name, got)
			}
		}
	}
	for _, state := range []service.ReplicaState{service.StateStarting, service.StateNotReady} { // it may serve soon
		b := &balancer{peers: []peer.Health{{Reported: true, Region: region(service.StateReady)}}, replicas: []Replica{{State: service.StateDraining}, {State: state}}}
		if got := api(b, nil).Region().Balancers[0]; got.State != service.StateStarting || got.Reason != "none of 2 replicas is ready" {
			t.Errorf("a replica is %s: %+v", state, got)
		}
	}
}
