package deploy

import (
	"fmt"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Desired machines on this computer that do not exist are listed; the name server has a row of its own.
func TestStatusListsMissingMachines(t *testing.T) {
	launch := func(id string, kind provision.ObjectKind) StatusChange {
		return StatusChange{Action: provision.ActionLaunch, ID: id, Kind: kind, Region: "local/us"}
	}
	s := &ServiceStatus{
		Regions: []RegionStatus{{Name: "local/us"}},
		Drift:   []StatusChange{launch("lb-us-0", provision.KindBalancer), launch("us-0", provision.KindReplica), launch(provision.NameServerID, provision.KindNameServer)},
	}
	i := &Inspector{Deployer: &Deployer{Spec: &service.Spec{}}}
	i.addMissing(s)
	var got []string
	for _, m := range append(s.Regions[0].Balancers, s.Regions[0].Replicas...) {
		got = append(got, fmt.Sprintf("%s %s %s", m.ID, m.State, m.Reason))
	}
	want := "lb-us-0 UNREACHABLE not started; run 'skyserve up'\nus-0 PENDING not started; run 'skyserve up'"
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}
