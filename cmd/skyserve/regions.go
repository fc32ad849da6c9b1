package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// noteRegions is the note that records the regions in which a service may have objects. It outlives the stored
// service.yaml, because `up` replaces that file before it has removed the machines of regions that the new file lacks.
const noteRegions = "regions.json"

// deployment is what this machine knows about where a service was deployed.
type deployment struct {
	// regions are those of the last `up`, and earlier ones whose objects may not be removed yet.
	regions []service.Region
	// inClouds states that the service has machines in clouds, also if the regions are unknown.
	inClouds bool
}

// readDeployment reads the deployment of a service; the zero value if this machine did not deploy it. It does not need
// a valid service.yaml.
func readDeployment(svc local.Service) (d deployment, err error) {
	if err := svc.LoadValue(noteRegions, &d.regions); err != nil {
		return d, err
	}
	text, err := os.ReadFile(svc.SpecFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("reading the service file: %w", err)
	}
	if err == nil {
		if last, err := service.ParseDeployed(svc.SpecFile(), text); err == nil {
			d.regions = union(d.regions, cloud.RegionsWithObjects(last))
		}
	}
	var program machineProgram // which only machines in clouds get
	if err := svc.LoadValue(noteProgram, &program); err != nil {
		return d, err
	}
	d.inClouds = slices.ContainsFunc(d.regions, service.Region.Rented) || len(d.regions) == 0 && program.isChosen()
	return d, nil
}

// possibleRegions returns the regions in which a service may have objects: those of spec first, then those of its
// deployment.
func possibleRegions(svc local.Service, spec *service.Spec) ([]service.Region, error) {
	d, err := readDeployment(svc)
	return union(cloud.RegionsWithObjects(spec), d.regions), err
}

// union returns the regions of a, then those of b that are not in a.
func union(a, b []service.Region) []service.Region {
	all := slices.Clone(a)
	for _, r := range b {
		if !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// joinRegions returns the names of regions with a separator between them.
func joinRegions(regions []service.Region, separator string) string {
	names := make([]string, len(regions))
	for i, r := range regions {
		names[i] = string(r)
	}
	return strings.Join(names, separator)
}

// checkSameKind returns an error if a file describes a service on this computer and the service was deployed in clouds, or
// the reverse: the objects of the deployed service are not found among the other kind.
func checkSameKind(svc local.Service, file string, spec *service.Spec) error {
	d, err := readDeployment(svc)
	if err != nil || len(d.regions) == 0 && !d.inClouds || d.inClouds == cloud.UsesClouds(spec) {
		return err
	}
	runs, describes := "on this computer", "a service in clouds"
	if d.inClouds {
		runs, describes = "in clouds", "a service on this computer"
	}
	if len(d.regions) > 0 {
		runs += " (" + joinRegions(d.regions, ", ") + ")"
	}
	return usage(fmt.Errorf("%s runs %s, but %s describes %s of the same name (%s)", svc.Name(), runs, file, describes, joinRegions(cloud.ManagedRegions(spec), ", ")),
		fmt.Sprintf("run 'skyserve down %s' first, or choose another name in %s", svc.Name(), file))
}

// recordRegions records, before the first change, where the service may have objects from now on.
func (u *upRun) recordRegions() error { return u.svc.StoreValue(noteRegions, u.regions) }

// forgetRegions removes the regions from the record that service.yaml lacks and in which nothing is left; have is every object
// that the clouds list after the changes.
func (u *upRun) forgetRegions(have []provision.Object) error {
	current := cloud.RegionsWithObjects(u.spec)
	inUse := func(name string) bool {
		return slices.ContainsFunc(current, func(r service.Region) bool { return r.Cloud() == name })
	}
	u.regions = slices.DeleteFunc(slices.Clone(u.regions), func(r service.Region) bool {
		return !slices.Contains(current, r) && !slices.ContainsFunc(have, func(o provision.Object) bool {
			return o.Region == r || o.Region.Cloud() == r.Cloud() && !inUse(r.Cloud()) // such as a cloud's identities
		})
	})
	return u.recordRegions()
}
