package cloud

import (
	"net/netip"
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
)

// ControlNodes is the number of machines with a controller and a member of the store's cluster: a majority
// is left when one is lost. A service with fewer suitable balancers has one.
const ControlNodes = 3

// maxControlCandidates is the number of balancers that may run a controller: firewalls contain their addresses, and
// a tag of AWS has place for as many.
const maxControlCandidates = 32

// ControlCandidate is a balancer's machine that may run a controller with a member of the store.
type ControlCandidate struct {
	ID     string
	Region service.Region
	Zone   string // empty = unknown
	// Alive is true while its machine runs. A machine that does not is replaced by one with the same ID.
	Alive bool
	// Spot machines are not suitable: several can be taken at once.
	Spot bool
}

// ControlCandidates returns a service's balancers that may run a controller, in the order of service.yaml, with the
// machines that exist: the first maxControlCandidates of Balancers.
func ControlCandidates(spec *service.Spec, have []provision.Object) []ControlCandidate {
	all := Balancers(spec, have)
	return all[:min(len(all), maxControlCandidates)]
}

// Balancers returns all balancers of a service in the order of service.yaml, with the machines that exist.
func Balancers(spec *service.Spec, have []provision.Object) []ControlCandidate {
	var all []ControlCandidate
	for _, name := range ManagedRegions(spec) {
		r := spec.Regions[slices.IndexFunc(spec.Regions, func(r service.RegionSpec) bool { return r.Name == name })]
		for n := range max(r.Balancers, 1) {
			c := ControlCandidate{ID: provision.BalancerID(name, n), Region: name}
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

// ReplicatesStore reports whether the machines of a service in clouds may form the cluster of a replicated store.
func ReplicatesStore(spec *service.Spec) bool {
	return UsesClouds(spec) && spec.Store.URL == "" && len(ControlCandidates(spec, nil)) >= ControlNodes
}

// ReplacesBalancers reports whether the controllers of a service replace the machine of a lost balancer: where another
// machine with a controller is left.
func ReplacesBalancers(spec *service.Spec) bool {
	return UsesClouds(spec) && len(ControlCandidates(spec, nil)) >= ControlNodes
}

// ReplacesBalancersIn reports whether controllers replace the balancers of a service in a cloud. Root on a machine that
// may launch balancers can become root on all. Spares therefore must have another identity: at AWS one that `up`
// creates, at Google the service account gcp.spare_account.
func ReplacesBalancersIn(spec *service.Spec, name string) bool {
	return ReplacesBalancers(spec) && (name != service.CloudGCP || spec.GCP.SpareAccount != "" || !hasSpares(spec, name))
}

// Spares returns the IDs of the balancers whose machines may not launch balancers, in the order of service.yaml: all
// except the three that run controllers at first. In each cloud two may, where there are as many, so that one can
// replace the other. The result depends on service.yaml only: the identity of a machine is fixed at launch.
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
func hasSpares(spec *service.Spec, name string) bool {
	spares := Spares(spec)
	return slices.ContainsFunc(Balancers(spec, nil), func(c ControlCandidate) bool {
		return c.Region.Cloud() == name && slices.Contains(spares, c.ID)
	})
}

// MovesRecords reports whether controllers change the records of the public name when they replace a balancer. Machines at
// AWS make these changes, or those at Google (FederatesRecords).
func MovesRecords(spec *service.Spec) bool {
	return ReplacesBalancers(spec) && spec.DNS != nil && (slices.Contains(Clouds(spec), service.CloudAWS) || FederatesRecords(spec))
}

// FederatesRecords reports whether controllers at Google change the records of the public name by workload identity
// federation: with an identity at AWS that may do only this, where the service has no machines at AWS.
func FederatesRecords(spec *service.Spec) bool {
	return ReplacesBalancersIn(spec, service.CloudGCP) && spec.DNS != nil && !slices.Contains(Clouds(spec), service.CloudAWS) && usesFederation(spec)
}

// usesFederation reports whether service.yaml permits workload identity federation.
func usesFederation(spec *service.Spec) bool {
	return spec.GCP.Federation == nil || *spec.GCP.Federation
}

// FederatedCloud returns the cloud whose only balancer the controllers in the other cloud replace, by workload identity
// federation; empty without one. With another balancer in its cloud, that one calls the cloud's API.
func FederatedCloud(spec *service.Spec) string {
	if !ReplacesBalancersIn(spec, service.CloudGCP) || !usesFederation(spec) || len(Clouds(spec)) < 2 {
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

// SharesNetwork reports whether the machines of two regions reach each other at their private addresses: a network
// of AWS is regional, one of Google Cloud is global.
func SharesNetwork(a, b service.Region) bool {
	return a == b || a.Cloud() == service.CloudGCP && b.Cloud() == service.CloudGCP
}

// peersOf returns the public addresses of the machines in other networks that may run a member of the store's
// cluster, sorted.
func peersOf(spec *service.Spec, region service.Region, have []provision.Object) []netip.Addr {
	candidates := ControlCandidates(spec, nil)
	var peers []netip.Addr
	for _, o := range have {
		if o.Kind == provision.KindBalancer && o.TerminatedReason == "" && o.PublicIP.Is4() && !SharesNetwork(region, o.Region) && containsControl(candidates, o.ID) {
			peers = append(peers, o.PublicIP)
		}
	}
	slices.SortFunc(peers, netip.Addr.Compare)
	return slices.Compact(peers)
}

// ChooseControlMachines returns the IDs of the machines that run a controller and a member of the store:
// ControlNodes of them, or one where fewer candidates are suitable. current are those that run one now.
// Such a machine stays while it is alive and suitable, and a dead one until another can take its place, so that
// the number of members never falls because machines are lost. New ones are in regions without a member where
// possible, else in zones without one, and come first in the order of the candidates. The result begins
// with those of current that stay, in their order.
func ChooseControlMachines(candidates []ControlCandidate, current []string) []string {
	suitable := slices.DeleteFunc(slices.Clone(candidates), func(c ControlCandidate) bool { return c.Spot })
	want := ControlNodes
	if len(suitable) < ControlNodes {
		want = 1
	}
	if len(suitable) == 0 {
		suitable = candidates // one on a spot machine is better than none
	}
	var chosen []ControlCandidate
	for _, alive := range []bool{true, false} {
		for _, id := range current {
			i := slices.IndexFunc(suitable, func(c ControlCandidate) bool { return c.ID == id && c.Alive == alive })
			if i >= 0 && len(chosen) < want && !containsControl(chosen, id) {
				chosen = append(chosen, suitable[i])
			}
		}
		for len(chosen) < want {
			next, ok := nextControl(suitable, chosen, alive)
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

// nextControl returns the candidate to add to the chosen ones: one in another region, else in another zone,
// else any; false without one.
func nextControl(candidates, chosen []ControlCandidate, alive bool) (best ControlCandidate, ok bool) {
	distance := -1
	for _, c := range candidates {
		if c.Alive != alive || containsControl(chosen, c.ID) {
			continue
		}
		d := 2
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

// containsControl reports whether candidates contain an ID.
func containsControl(candidates []ControlCandidate, id string) bool {
	return slices.ContainsFunc(candidates, func(c ControlCandidate) bool { return c.ID == id })
}
