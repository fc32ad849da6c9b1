package service_test

import (
	"testing"

	"skyserve/internal/service"
)

// A balancer without attached replicas is starting, unless all replicas of its region are drained: then nothing starts.
func TestBalancerWhoseReplicasAreDrained(t *testing.T) {
	starting := service.StateReason{State: service.StateStarting, Reason: "no attached replicas"}
	drained := service.StateReason{State: service.StateNotReady, Reason: "all its replicas are drained"}
	certificate := service.StateReason{State: service.StateStarting, Reason: "waiting for certificate: no record may be written"}
	forwards := service.StateReason{State: service.StateReady, Reason: "no ready replica, forwarding all requests"}
	for name, tt := range map[string]struct {
		reported service.StateReason
		replicas []service.ReplicaState
		want     service.StateReason
	}{
		"none":                    {starting, nil, starting},
		"one starts":              {starting, []service.ReplicaState{service.StateDraining, service.StateStarting}, starting},
		"all are drained":         {starting, []service.ReplicaState{service.StateDraining, service.StateDraining}, drained},
		"the others are donated":  {starting, []service.ReplicaState{service.StateDraining, service.StateDonated}, drained},
		"it waits for more":       {certificate, []service.ReplicaState{service.StateDraining}, certificate},
		"a peer serves instead":   {forwards, []service.ReplicaState{service.StateDraining}, forwards},
		"a failed one is started": {starting, []service.ReplicaState{service.StateDraining, service.StateFailed}, starting},
	} {
		for _, machine := range []service.ReplicaState{"", service.StateStarting, service.StateReady} {
			f := service.BalancerFacts{Machine: service.StateReason{State: machine}, Reported: tt.reported, Replicas: tt.replicas}
			if got := f.State(); got != tt.want {
				t.Errorf("%s, its machine is %q: got %+v, want %+v", name, machine, got, tt.want)
			}
		}
	}
}
