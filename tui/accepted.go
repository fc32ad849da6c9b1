package tui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
)

// deployment is what is known of the deployment of the service, on which the accepted actions depend.
type deployment struct {
	known bool
	// spec is the service.yaml that was deployed from this machine; nil if the service was deployed from another one.
	spec *service.Spec
}

// isHere reports whether the service may have been deployed from this machine: only there the operator can change it,
// read logs and open shells.
func (d deployment) isHere() bool { return !d.known || d.spec != nil }

// CommandLine returns the command that does the same as an action, without the program's name. The name of the service may
// be empty.
func (a Action) CommandLine(name string) string {
	command := map[Verb]string{
		VerbDrain: "replica drain %s", VerbUndrain: "replica drain %s --undo", VerbDonate: "replica donate %s", VerbReclaim: "replica reclaim %s",
	}[a.Verb]
	switch {
	case a.Verb == VerbApply && name == "":
		return "plan --apply"
	case a.Verb == VerbApply:
		return "plan " + name + " --apply"
	case name != "":
		command += " --service " + name
	}
	return fmt.Sprintf(command, a.Replica)
}

// cloudRefusals are why a service with cloud regions rejects the actions on replicas, with the next step: decisions about
// single replicas are not delivered to its controller.
var cloudRefusals = map[Verb]string{
	VerbDrain:   "not available with cloud regions; 'skyserve replica remove %s' drains and deletes a VM",
	VerbUndrain: "not available with cloud regions; a drain by POST /workers/%s/drain ends when its balancer restarts",
	VerbDonate:  "not available with cloud regions; 'skyserve replica remove %s' drains and deletes a VM",
	VerbReclaim: "not available with cloud regions; 'skyserve replica add' adds replicas",
}

// staticRefusals are cloudRefusals of a replica of a static region, which no command removes.
var staticRefusals = map[Verb]string{
	VerbDrain:  "not available with cloud regions; POST /workers/%s/drain at its balancer drains it until the balancer restarts",
	VerbDonate: "not available with cloud regions; change regions[].endpoints in service.yaml, then 'skyserve up'",
}

// usesClouds reports whether the service has regions in clouds.
func (s *screen) usesClouds() bool {
	if s.data.deployment.spec != nil {
		return slices.ContainsFunc(s.data.deployment.spec.Regions, func(r service.RegionSpec) bool { return isCloud(r.Name) })
	}
	for i := range s.snapshot.Regions {
		if isCloud(s.snapshot.Regions[i].Name) {
			return true
		}
	}
	return false
}

// isCloud reports whether a region is in a cloud.
func isCloud(r service.Region) bool {
	return r.Cloud() == service.CloudAWS || r.Cloud() == service.CloudGCP
}

// refusal returns why a verb does not apply to a replica, with the next step; empty if it applies. earlier are the
// replicas to which the same command applies it before.
func (s *screen) refusal(verb Verb, id string, earlier []string) string {
	r := s.replica(id)
	switch {
	case r == nil && verb != VerbUndrain:
		return id + " no longer exists"
	case s.usesClouds():
		text := cloudRefusals[verb]
		if region, _ := s.regionOfReplica(id); r != nil && cmp.Or(r.Region, region).Cloud() == service.CloudStatic {
			text = cmp.Or(staticRefusals[verb], text)
		}
		return strings.ReplaceAll(text, "%s", id)
	case !s.data.deployment.isHere():
		return s.otherMachine(Action{Verb: verb, Replica: id})
	case r == nil: // a drained replica may no longer be shown
		return ""
	}
	donated, draining := r.Donated || r.State == service.StateDonated, r.State == service.StateDraining
	switch verb {
	case VerbDrain:
		switch {
		case draining:
			return id + " is already draining; u undrains it"
		case donated:
			return id + " is donated and receives no requests; c reclaims it"
		}
	case VerbUndrain:
		switch {
		case donated:
			return id + " is donated; c reclaims it"
		case !draining:
			return id + " is not draining; x drains it"
		}
		return ""
	case VerbReclaim:
		if !donated {
			return id + " is not donated; view 6 lists the donated replicas"
		}
		return ""
	case VerbDonate:
		if donated {
			return id + " is already donated; c reclaims it"
		}
	}
	switch r.State {
	case service.StatePending:
		return id + " has no machine yet; wait until it has started"
	case service.StateShuttingDown:
		return id + " is being removed"
	case service.StateFailed: // its process or machine may have ended
		return id + " has failed and receives no requests; 'skyserve up' restarts it"
	}
	if verb == VerbDonate {
		return s.belowMinimum(id, earlier)
	}
	return ""
}

// otherMachine returns why an action is rejected on a machine from which the service was not deployed.
func (s *screen) otherMachine(a Action) string {
	return "deployed from another machine; run there: skyserve " + a.CommandLine(s.snapshot.Service)
}

// belowMinimum returns why a replica cannot be donated because of replicas.min, after earlier ones were donated; empty if it
// can be. Replicas count in any state except donated.
func (s *screen) belowMinimum(id string, earlier []string) string {
	spec := s.data.deployment.spec
	name, _ := s.regionOfReplica(id)
	region, model := findRegion(s.snapshot, name), s.replica(id).Model
	if spec == nil || region == nil || spec.ModelByName(model) == nil {
		return ""
	}
	others := 0
	for i := range region.Replicas {
		r := &region.Replicas[i]
		if r.Model == model && r.ID != id && !r.Donated && r.State != service.StateDonated && !slices.Contains(earlier, r.ID) {
			others++
		}
	}
	if minimum := spec.BoundsFor(model, name).Min; others < minimum {
		return fmt.Sprintf("replicas.min of %s is %d, and %d would serve; lower it in service.yaml, then 'skyserve up'", name.ShortName(), minimum, others)
	}
	return ""
}

// accepts reports whether a verb applies to a selected or marked row.
func (s *screen) accepts(verb Verb) bool {
	if s.readOnly || s.pastFrame != nil || s.snapshot == nil || s.link.err != "" {
		return false
	}
	if verb == VerbApply {
		return s.snapshot.Plan != nil && len(s.snapshot.Plan.Changes) > 0 && s.data.deployment.isHere()
	}
	if s.usesClouds() || !s.data.deployment.isHere() {
		return false
	}
	return slices.ContainsFunc(s.targetReplicas(), func(id string) bool { return s.refusal(verb, id, nil) == "" })
}
