package testcloud

import (
	"fmt"
	"slices"
)

// AWSMachine is the state of an instance, for tests.
type AWSMachine struct {
	ID, Region, Zone, Type, Market, State, Image, Group, Profile, Reservation, Public string
	Tags                                                                              map[string]string
	// Request contains the parameters of the launch, by their names in the query protocol.
	Request map[string]string
}

// Machines returns the instances that have not ended, sorted by region and id.
func (a *AWS) Machines() []AWSMachine {
	a.mu.Lock()
	defer a.mu.Unlock()
	var machines []AWSMachine
	for _, r := range a.regions {
		for _, i := range r.instances {
			if i.state == "terminated" || i.state == "shutting-down" {
				continue
			}
			machines = append(machines, AWSMachine{i.id, r.name, i.zone, i.kind, i.market, i.state, i.image, i.group, i.profile, i.reservation, i.public, i.tags, i.request})
		}
	}
	slices.SortFunc(machines, func(a, b AWSMachine) int { return slices.Compare([]string{a.Region, a.ID}, []string{b.Region, b.ID}) })
	return machines
}

// RemainingResources describes every existing resource of any owner, sorted; duplicates are repeated. It omits
// the default network.
func (a *AWS) RemainingResources() []string {
	var left []string
	for _, m := range a.Machines() {
		left = append(left, fmt.Sprintf("instance %s in %s: %s %s", m.Tags["Name"], m.Zone, m.Market, m.Type))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.regions {
		for _, g := range r.groups {
			if !g.deleted {
				left = append(left, fmt.Sprintf("group %s in %s with %d rules", g.name, r.name, len(g.rules)))
			}
		}
	}
	for _, role := range a.roles {
		left = append(left, fmt.Sprintf("role %s with %d policies", role.name, len(role.policies)))
	}
	for _, p := range a.profiles {
		left = append(left, fmt.Sprintf("profile %s with role %q", p.name, p.role))
	}
	for _, b := range a.buckets {
		if !b.deleted {
			left = append(left, fmt.Sprintf("bucket in %s with %d objects", b.region, len(b.objects)))
		}
	}
	slices.Sort(left)
	return left
}
