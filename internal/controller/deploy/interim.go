package deploy

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Interim is a service on its way to another service.yaml, in which names that clients use belong to other models, for
// example because a model was renamed. Until the replicas of the new models are ready, the models that the new file does
// not contain serve beside those that it contains, and each name belongs to its earlier model.
type Interim struct {
	Spec *service.Spec
	Text []byte // its service.yaml
	// Removed are the models that the new file does not contain and that have replicas.
	Removed []service.Model
}

// MovedNames returns the names that clients use in both services and that belong to other models in next, sorted.
func MovedNames(next, last *service.Spec) (moved []string) {
	then := ownersOf(next)
	for name, owner := range ownersOf(last) {
		if to, stays := then[name]; stays && to != owner {
			moved = append(moved, name)
		}
	}
	slices.Sort(moved)
	return moved
}

// ownersOf returns the model of each name that clients use; of a split, its models.
func ownersOf(spec *service.Spec) map[string]string {
	owners := map[string]string{}
	for _, m := range spec.Models {
		for _, name := range slices.Concat([]string{m.Name}, m.Aliases) {
			owners[name] = m.Name
		}
	}
	for _, s := range spec.Splits {
		owners[s.Name] = strings.Join(slices.Sorted(maps.Keys(s.Weights)), " ")
	}
	return owners
}

// NewInterim returns the interim service between last and next; have are its objects. It returns an error where no such
// service is possible.
func NewInterim(next, last *service.Spec, have []provision.Object) (*Interim, error) {
	if slices.ContainsFunc(next.Regions, func(r service.RegionSpec) bool { return r.Name.Cloud() == service.CloudStatic }) {
		return nil, errors.New("the engines of static regions serve the models that you start them with")
	}
	in, owners, s := &Interim{}, ownersOf(last), *next
	s.Models, s.Splits = slices.Clone(next.Models), last.Splits
	for i := range s.Models {
		m := &s.Models[i]
		m.Aliases = slices.DeleteFunc(slices.Clone(m.Aliases), func(alias string) bool { return owners[alias] != "" })
		if before := ModelNamed(last, m.Name); before != nil {
			m.Aliases = append(m.Aliases, before.Aliases...)
		}
	}
	for _, m := range last.Models {
		if ModelNamed(next, m.Name) != nil {
			continue
		}
		running := false
		m.Regions = map[service.Region]service.Bounds{}
		for _, r := range cloud.ManagedRegions(next) { // lost replicas are replaced; apart from that their number stays
			n := len(replicasIn(have, cloud.ReplicaGroup{Model: m.Name, Region: r}))
			m.Regions[r] = service.Bounds{Min: n, Max: n}
			running = running || n > 0
		}
		if s.Models = append(s.Models, m); running {
			in.Removed = append(in.Removed, m)
		}
	}
	var err error
	if in.Text, err = service.Marshal(&s); err != nil {
		return nil, err
	}
	if in.Spec, err = service.ParseDeployed("interim", in.Text); err != nil {
		return nil, err
	}
	return in, nil
}

// Retains reports whether an object is a running replica of a removed model in a region that stays.
func (in *Interim) Retains(o provision.Object) bool {
	return o.Kind == provision.KindReplica && o.TerminatedReason == "" && slices.Contains(cloud.ManagedRegions(in.Spec), o.Region) &&
		slices.ContainsFunc(in.Removed, func(m service.Model) bool { return m.Name == o.Labels["model"] })
}

// ModelNamed returns the model with a name, which is not an alias; nil without one.
func ModelNamed(spec *service.Spec, name string) *service.Model {
	if i := slices.IndexFunc(spec.Models, func(m service.Model) bool { return m.Name == name }); i >= 0 {
		return &spec.Models[i]
	}
	return nil
}
