package cloud

import (
	"net/netip"
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
)

// ControlMachineCount is the number of machines that run a controller and a member of the store's cluster. With
// three, a majority remains if one is lost. A service with fewer suitable balancers has one such machine.
const ControlMachineCount = 3

// maxControlCandidates is the maximum number of balancers that may run a controller. Firewalls admit them by address,
// and the list of addresses is stored in an AWS tag, which has no space for more.
const maxControlCandidates = 32

// BalancerMachine is the machine of a balancer, which may also run a controller and a member of the store's cluster.
type BalancerMachine struct {
	ID     string
	Region service.Region
	Zone   string // empty = unknown
	// Alive is true while the machine runs. A lost machine is replaced by one with the same ID.
	Alive bool
	// Spot is true for a spot machine. Balancers are launched on demand only (addBalancer). A spot machine would not be
	// suitable for a controller, because the cloud can take several spot machines at once.
	Spot bool
}

// ControlCandidates returns the balancers that may run a controller: the first maxControlCandidates of Balancers.
func ControlCandidates(spec *service.Spec, have []provision.Object) []BalancerMachine {
	all := Balancers(spec, have)
	return all[:min(len(all), maxControlCandidates)]
}

// Balancers returns all balancers of a service in the order of service.yaml. have contains the existing objects, which
// determine Zone, Alive and Spot.
func Balancers(spec *service.Spec, have []provision.Object) []BalancerMachine {
	var all []BalancerMachine
	for _, name := range ManagedRegions(spec) {
		r := spec.Regions[slices.IndexFunc(spec.Regions, func(r service.RegionSpec) bool { return r.Name == name })]
		for n := range max(r.Balancers, 1) {
			c := BalancerMachine{ID: provision.BalancerID(name, n), Region: name}
			for _, o := range have {
				if o.ID != c.ID || o.Kind != provision.KindBalancer || o.TerminatedReason != "" {
					continue
				}
				c.Alive = true
				if o.Offering != nil {
					c.Zone, c.Spot = o.Offering.Zone, o.Offering.Capacity == service.CapacitySpot
				}
			}
			all = append(all, c)
		}
	}
	return all
}

// ReplicatesStore reports whether a service in clouds has enough balancers for a replicated store, and no external one.
func ReplicatesStore(spec *service.Spec) bool {
	return UsesClouds(spec) && spec.Store.URL == "" && len(ControlCandidates(spec, nil)) >= ControlMachineCount
}

// ReplacesBalancers reports whether the controllers of a service replace the machine of a lost balancer. They do so if
// the service has several controllers, because the lost machine may have run one of them.
func ReplacesBalancers(spec *service.Spec) bool {
	return UsesClouds(spec) && len(ControlCandidates(spec, nil)) >= ControlMachineCount
}

// ReplacesBalancersIn reports whether controllers replace the balancers of a service in a cloud. An attacker with root
// on a machine that may launch balancers can become root on all of them. Therefore only some balancers may launch
// others. The rest (see Spares) must have another identity: at AWS one that `up` creates, at Google the service account
// gcp.spare_account. If a service has spares at Google and the user has not set this account, controllers
// replace no balancer at Google.
func ReplacesBalancersIn(spec *service.Spec, cloud string) bool {
	return ReplacesBalancers(spec) && (cloud != service.CloudGCP || spec.GCP.SpareAccount != "" || !hasSpares(spec, cloud))
}

// Spares returns the IDs of a service's spares, in the order of service.yaml. A spare is a balancer that serves like the
// others, but whose identity has no permission to launch balancers. The three balancers that run controllers at first are
// not spares. At least two balancers of each cloud, if it has two, are not spares, so that one can replace the other. The
// result depends only on service.yaml, because the identity of a machine is fixed at launch.
func Spares(spec *service.Spec) (ids []string) {
	if !ReplacesBalancers(spec) {
		return nil
	}
	all := Balancers(spec, nil)
	for i := range all {
		all[i].Alive = true
	}
	chosen := ChooseControlMachines(all[:min(len(all), maxControlCandidates)], nil)
	count := map[string]int{}
	for _, c := range all {
		if slices.Contains(chosen, c.ID) {
			count[c.Region.Cloud()]++
		}
	}
	for _, c := range all {
		switch {
		case slices.Contains(chosen, c.ID):
		case count[c.Region.Cloud()] < 2:
			count[c.Region.Cloud()]++
		default:
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// hasSpares reports whether a service has spares in a cloud.
func hasSpares(spec *service.Spec, cloud string) bool {
	spares := Spares(spec)
	return slices.ContainsFunc(Balancers(spec, nil), func(c BalancerMachine) bool {
		return c.Region.Cloud() == cloud && slices.Contains(spares, c.ID)
	})
}

// UpdatesRecords reports whether controllers change the DNS records of the public name when they replace a balancer. The
// controllers at AWS do this, or those at Google if the service has no machines at AWS (UpdatesRecordsByFederation).
func UpdatesRecords(spec *service.Spec) bool {
	return ReplacesBalancers(spec) && spec.DNS != nil && (slices.Contains(Clouds(spec), service.CloudAWS) || UpdatesRecordsByFederation(spec))
}

// UpdatesRecordsByFederation reports whether controllers at Google change the DNS records of the public name by workload
// identity federation. They then assume an identity at AWS that has no other permission. They do so only if the service
// has no machines at AWS, and service.yaml permits federation.
func UpdatesRecordsByFederation(spec *service.Spec) bool {
	return ReplacesBalancersIn(spec, service.CloudGCP) && spec.DNS != nil && !slices.Contains(Clouds(spec), service.CloudAWS) && permitsFederation(spec)
}

// permitsFederation reports whether service.yaml permits workload identity federation, as it does by default.
func permitsFederation(spec *service.Spec) bool {
	return spec.GCP.Federation == nil || *spec.GCP.Federation
}

// FederatedCloud returns the cloud in which the service has only one balancer, so that no other machine of this cloud can
// replace it. Controllers in the other cloud replace it by workload identity federation. Empty = there is no such cloud,
// or service.yaml does not permit federation.
func FederatedCloud(spec *service.Spec) string {
	if !ReplacesBalancersIn(spec, service.CloudGCP) || !permitsFederation(spec) || len(Clouds(spec)) < 2 {
		return ""
	}
	count := map[string]int{}
	for _, c := range Balancers(spec, nil) {
		count[c.Region.Cloud()]++
	}
	for _, name := range []string{service.CloudAWS, service.CloudGCP} {
		if count[name] == 1 {
			return name
		}
	}
	return ""
}

// SharesNetwork reports whether the machines of two regions reach each other at their private addresses. A network
// at AWS belongs to one region, a network at Google to all.
func SharesNetwork(a, b service.Region) bool {
	return a == b || a.Cloud() == service.CloudGCP && b.Cloud() == service.CloudGCP
}

// storePeerAddresses returns the public addresses, sorted, of the machines that may run a member of the store's cluster
// and that a region does not reach at private addresses (SharesNetwork).
func storePeerAddresses(spec *service.Spec, region service.Region, have []provision.Object) []netip.Addr {
	candidates := ControlCandidates(spec, nil)
	var peers []netip.Addr
	for _, o := range have {
		if o.Kind == provision.KindBalancer && o.TerminatedReason == "" && o.PublicIP.Is4() && !SharesNetwork(region, o.Region) && containsMachine(candidates, o.ID) {
			peers = append(peers, o.PublicIP)
		}
	}
	slices.SortFunc(peers, netip.Addr.Compare)
	return slices.Compact(peers)
}

// ChooseControlMachines returns the IDs of the machines to run a controller and a member of the store's cluster:
// ControlMachineCount of them, or one if fewer candidates are suitable. current contains the IDs of the machines that
// run them now.
//
// A machine of current stays while it is alive and suitable. A dead one stays until another machine can take its place,
// so that the number of members does not fall when machines are lost. New machines are preferred in regions without a
// member, then in zones without a member, then in the order of the candidates. The result contains first the live
// machines of current, and then new live ones. If these are too few, the dead ones of current follow, and then other dead
// candidates.
func ChooseControlMachines(candidates []BalancerMachine, current []string) []string {
	suitable := slices.DeleteFunc(slices.Clone(candidates), func(c BalancerMachine) bool { return c.Spot })
	want := ControlMachineCount
	if len(suitable) < ControlMachineCount {
		want = 1
	}
	if len(suitable) == 0 {
		suitable = candidates // one on a spot machine is better than none
	}
	var chosen []BalancerMachine
	for _, alive := range []bool{true, false} {
		for _, id := range current {
			i := slices.IndexFunc(suitable, func(c BalancerMachine) bool { return c.ID == id && c.Alive == alive })
			if i >= 0 && len(chosen) < want && !containsMachine(chosen, id) {
				chosen = append(chosen, suitable[i])
			}
		}
		for len(chosen) < want {
			next, ok := nextControlMachine(suitable, chosen, alive)
			if !ok {
				break
			}
			chosen = append(chosen, next)
		}
	}
	ids := []string{}
	for _, c := range chosen {
		ids = append(ids, c.ID)
	}
	return ids
}

// nextControlMachine returns the candidate to add to the chosen ones: one in another region, else in another zone,
// else any. It considers only live candidates, or with alive = false only dead ones. ok is false if no candidate is left.
func nextControlMachine(candidates, chosen []BalancerMachine, alive bool) (best BalancerMachine, ok bool) {
	distance := -1
	for _, c := range candidates {
		if c.Alive != alive || containsMachine(chosen, c.ID) {
			continue
		}
		d := 2 // 2 = no chosen machine in its region, 1 = none in its zone, 0 = one in its zone
		for _, other := range chosen {
			switch {
			case other.Region == c.Region && other.Zone == c.Zone:
				d = 0
			case other.Region == c.Region:
				d = min(d, 1)
			}
		}
		if d > distance {
			best, distance, ok = c, d, true
		}
	}
	return best, ok
}

// containsMachine reports whether one of the machines has an ID.
func containsMachine(machines []BalancerMachine, id string) bool {
	return slices.ContainsFunc(machines, func(c BalancerMachine) bool { return c.ID == id })
}
