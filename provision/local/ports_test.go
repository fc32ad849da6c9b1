package local

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"skyserve/provision"
)

// A service whose ports overlap with those of a running one, at whatever distance, is not started: the error names both
// services, and there is another base port with which it can start. A store that does not run yet counts too.
func TestPortsOfTwoServices(t *testing.T) {
	p, svc := provider(t)
	launch(t, p, machine("lb-us-0", provision.KindBalancer))
	launch(t, p, machine("us-0", provision.KindReplica))
	other, err := svc.home.Service("other")
	if err != nil {
		t.Fatal(err)
	}
	changes := provision.Changes{
		{Action: provision.ActionLaunch, Desired: machine("lb-us-0", provision.KindBalancer)},
		{Action: provision.ActionLaunch, Desired: machine("us-0", provision.KindReplica)},
	}
	ports := []int{0, 100, 500, 300, 310, 200, 700, 600} // public, admin, agent, store, controller, engine, for balancers, agent
	for delta := -900; delta <= 900; delta++ {
		shares := slices.ContainsFunc(ports, func(a int) bool { return slices.Contains(ports, a+delta) })
		if !shares && delta%50 != 0 {
			continue
		}
		spec := twoRegionsOf(t)
		spec.Name, spec.LocalHosts.Port = "other", firstPort+delta
		second := NewProvider(other, "", "", 0).WithSpec(spec)
		err := second.CheckPorts(changes)
		if !shares {
			if err != nil {
				t.Errorf("%+d: %v", delta, err)
			}
			continue
		}
		var taken *provision.PortTakenError
		if !errors.As(err, &taken) || !strings.Contains(taken.Holder, "of service chat") || taken.Service != "other" || taken.Setting != "local.port" || !taken.Reserved {
			t.Errorf("%+d: got %v", delta, err)
			continue
		}
		if want := fmt.Sprintf("%s is reserved for %s and required by %s of service other (%s port); set local.port", taken.Addr, taken.Holder, taken.ID, taken.Purpose); !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+d: got %q, want %q", delta, err, want)
		}
		spec.LocalHosts.Port = second.FreePort()
		if err := second.CheckPorts(changes); err != nil || spec.LocalHosts.Port == 0 {
			t.Errorf("%+d: with the free port %d: %v", delta, spec.LocalHosts.Port, err)
		}
	}

	// A port that is bound is in use. The error names one of another service, if there is one.
	spec := twoRegionsOf(t)
	spec.Name, spec.LocalHosts.Port = "other", firstPort+400
	ln, err := net.Listen("tcp", portAt(700))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	err = NewProvider(other, "", "", 0).WithSpec(spec).CheckPorts(provision.Changes{changes[0]})
	if want := portAt(500) + " is reserved for lb-us-0 of service chat and required by lb-us-0 of service other (admin port); set local.port to another port; another required port is in use too"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// While the service runs, its ports cannot change: the error says what can.
func TestTakenPortOfRunningService(t *testing.T) {
	p, _ := provider(t)
	launch(t, p, machine("us-0", provision.KindReplica))
	ln, err := net.Listen("tcp", portAt(engineOffset+1))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	err = p.CheckPorts(provision.Changes{{Action: provision.ActionLaunch, Desired: machine("us-1", provision.KindReplica)}})
	want := portAt(engineOffset+1) + " is in use by another process and required by us-1 of service chat (engine port); stop this process: the service is running and keeps its ports"
	var taken *provision.PortTakenError
	if !errors.As(err, &taken) || err.Error() != want || !taken.Fixed {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Two replicas that are launched together, beyond the minimum of the service, do not share a slot: the ports of both are
// checked.
func TestPortsOfSecondExtraReplicaAreChecked(t *testing.T) {
	p, _ := provider(t)
	_, minimum := slotIDs(p.spec)
	ln, err := net.Listen("tcp", portAt(engineOffset+len(minimum)+1))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	err = p.CheckPorts(provision.Changes{
		{Action: provision.ActionLaunch, Desired: machine("us-50", provision.KindReplica)},
		{Action: provision.ActionLaunch, Desired: machine("us-51", provision.KindReplica)},
	})
	var taken *provision.PortTakenError
	if !errors.As(err, &taken) || taken.ID != "us-51" || taken.Addr != ln.Addr().String() {
		t.Errorf("got %v", err)
	}
}
