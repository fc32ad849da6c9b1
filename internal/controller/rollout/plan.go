package rollout

import (
	"fmt"
	"maps"
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/local"
	"skyserve/provision/static"
)

// Plan is what bringing a service up would change. Making one changes nothing.
type Plan struct {
	Spec    *service.Spec
	Layout  *local.Layout
	Have    []provision.Object
	Changes provision.Changes

	svc  local.Service
	text []byte
	// within says that the controller itself carries the plan out, so that a process
	// which cannot take its configuration up must not be replaced for it.
	within bool
}

// Read reads and checks a service.yaml for this machine; file is the name that
// errors show. Errors are *provision.SpecError.
func Read(file string, text []byte) (*service.Spec, error) {
	spec, err := service.Parse(file, text)
	if err != nil {
		return nil, &provision.SpecError{Err: err}
	}
	for i, r := range spec.Regions {
		if c := r.Name.Cloud(); c != service.CloudLocal && c != service.CloudStatic {
			return nil, &provision.SpecError{Err: fmt.Errorf("reading %s: regions[%d].name: this build provisions local and static regions only, got %s", file, i, r.Name)}
		}
	}
	if what := misnamed(spec); what != "" {
		return nil, &provision.SpecError{Err: fmt.Errorf("reading %s: %s", file, what)}
	}
	return spec, nil
}

// NewPlan finds what has to change for svc to become what spec says; text is
// the service.yaml that spec was read from. With upgrade, objects that run
// another executable than this one are replaced too. Errors are of
// configuration (*provision.SpecError), or of reading the state directory.
func NewPlan(svc local.Service, spec *service.Spec, text []byte, upgrade bool) (*Plan, error) {
	wanted, err := svc.Wanted()
	if err != nil {
		return nil, err
	}
	return newPlan(svc, spec, text, wanted, upgrade)
}

// newPlan is NewPlan with another decision about replicas than the one that is kept.
func newPlan(svc local.Service, spec *service.Spec, text []byte, wanted local.Wanted, upgrade bool) (*Plan, error) {
	layout, err := svc.LayoutOf(spec, wanted, attached(spec))
	if err != nil {
		return nil, err
	}
	if upgrade {
		_, build, err := local.Executable()
		if err != nil {
			return nil, err
		}
		for i := range layout.Wants {
			layout.Wants[i].Build = build
		}
	}
	have, err := svc.Objects()
	if err != nil {
		return nil, err
	}
	return &Plan{Spec: spec, Layout: layout, Have: have, Changes: provision.Diff(layout.Wants, have), svc: svc, text: text}, nil
}

// attached are the replicas of the static regions.
func attached(spec *service.Spec) map[service.Region][]service.ReplicaConfig {
	replicas := map[service.Region][]service.ReplicaConfig{}
	for _, r := range spec.Regions {
		if r.Name.Cloud() == service.CloudStatic {
			replicas[r.Name] = static.Replicas(spec, r)
		}
	}
	return replicas
}

// CostPerHour is what the service costs an hour now and after the changes, in USD.
func (p *Plan) CostPerHour() (now, then float64) {
	for _, o := range p.Have {
		if o.Gone == "" {
			now += o.CostPerHour
		}
	}
	return now, now + p.Changes.CostPerHour()
}

// Endpoints is the public base URL of the first balancer of each region, by place.
func (p *Plan) Endpoints() map[string]string {
	endpoints := map[string]string{}
	for _, w := range p.Layout.Wants {
		if _, has := endpoints[w.Region.Place()]; w.Kind == provision.KindBalancer && !has {
			endpoints[w.Region.Place()] = w.Address
		}
	}
	return endpoints
}

// Places are the places of the endpoints in the order of the service.yaml.
func (p *Plan) Places() []string {
	var places []string
	for _, r := range p.Spec.Regions {
		places = append(places, r.Name.Place())
	}
	return places
}

// ids lists what a set holds, sorted.
func ids[V any](set map[string]V) []string { return slices.Sorted(maps.Keys(set)) }
