package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
	"skyserve/provision/remote"
)

// means is how the controller of a service in clouds reaches them: what its machine is
// handed in the words of this program.
type means struct {
	// Program is what machines that it launches get.
	Program machineProgram `json:"program"`
	// The clouds, where they are not at their usual places.
	EndpointAWS string `json:"endpoint_aws,omitempty"`
	EndpointGCP string `json:"endpoint_gcp,omitempty"`
	Project     string `json:"project,omitempty"`
	// Dir is the directory of a service whose machines are processes of this computer.
	Dir string `json:"dir,omitempty"`
	// Networks are those of regions where they are not the default ones.
	Networks map[service.Region]provision.Network `json:"networks,omitempty"`
	// Accounts are those that machines at Google run as.
	Accounts service.GCPSpec `json:"accounts,omitzero"`
}

// networksOf are those that a service names.
func networksOf(spec *service.Spec) map[service.Region]provision.Network {
	networks := map[service.Region]provision.Network{}
	for _, r := range spec.Regions {
		if r.Network != "" {
			networks[r.Name] = provision.Network{Name: r.Network, Subnets: r.Subnets}
		}
	}
	return networks
}

// specOf is as much of a service as says where machines in some regions stand, and as whom
// they run.
func (m means) specOf(regions []service.Region) *service.Spec {
	spec := &service.Spec{GCP: m.Accounts}
	for _, r := range regions {
		spec.Regions = append(spec.Regions, service.RegionSpec{Name: r, Network: m.Networks[r].Name, Subnets: m.Networks[r].Subnets})
	}
	return spec
}

// reconciling are the options of a controller on a machine in a cloud, whose configuration
// is this file; none of any other.
func reconciling(file string, log *slog.Logger) []controller.Option {
	dir := filepath.Dir(file)
	if !fleet.IsBundle(dir) {
		return nil
	}
	k := &fleet.Reconciler{Dir: dir, Open: reachClouds, Logger: log}
	if svc, here := serviceHere(dir); here {
		k.Decisions, k.Lock = decisionsFile(svc), func() (func(), error) {
			unlock, err := svc.Lock()
			var busy *local.BusyError
			if errors.As(err, &busy) {
				err = fmt.Errorf("%w: %w", controller.ErrBusy, err)
			}
			return unlock, err
		}
	}
	return []controller.Option{controller.ReconciledBy(k), controller.ActedOn(k), controller.AlertedBy(k.Alerts)}
}

// reachClouds reaches the regions of a service as one of its machines does: it sees
// machines alone.
func reachClouds(ctx context.Context, text json.RawMessage, spec *service.Spec, owner string) (fleet.Reach, error) {
	regions := cloud.Regions(spec)
	places, lists, err := inside(ctx, text, regions)
	if err != nil {
		return fleet.Reach{}, err
	}
	var m means
	if err := json.Unmarshal(text, &m); err != nil {
		return fleet.Reach{}, fmt.Errorf("reading which program machines get: %w", err)
	}
	reach := fleet.Reach{Provider: places, Witness: places, Lists: map[service.Region]fleet.Lister{}, UserData: userData(spec.Name, owner, m.Program)}
	for r, p := range lists {
		reach.Lists[r] = p
	}
	return reach, nil
}

// inside reaches regions as a machine there does: all of them as one, and each.
func inside(ctx context.Context, text json.RawMessage, regions []service.Region) (provision.Places, map[service.Region]provision.Provider, error) {
	var m means
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, nil, fmt.Errorf("reading how clouds are reached: %w", err)
	}
	clouds := cloudFlags{endpointAWS: m.EndpointAWS, endpointGCP: m.EndpointGCP, project: m.Project, machinesOnly: true}
	spec := m.specOf(regions)
	if m.Dir != "" {
		svc := local.ServiceAt(m.Dir)
		clouds.here = &svc
		text, err := os.ReadFile(svc.SpecFile())
		if err != nil {
			return nil, nil, fmt.Errorf("reading the service: %w", err)
		}
		if spec, err = service.ParseDeployed(svc.SpecFile(), text); err != nil {
			return nil, nil, err
		}
	}
	all, err := clouds.places(ctx, spec, regions, false) // which matters to firewalls alone
	if err != nil {
		return nil, nil, err
	}
	each := map[service.Region]provision.Provider{}
	for _, r := range regions {
		if each[r], err = clouds.places(ctx, spec, []service.Region{r}, false); err != nil {
			return nil, nil, err
		}
	}
	return all, each, nil
}

// handOf acts in the cloud of a machine of a service for its controller, which is elsewhere.
func handOf(name, owner string) func(agent.Cloud) (http.Handler, error) {
	return func(c agent.Cloud) (http.Handler, error) {
		places, lists, err := inside(context.Background(), c.Means, regionsIn(c.Regions))
		if err != nil {
			return nil, err
		}
		return &remote.Hand{Service: name, Owner: owner, Provider: places, Witness: places, Lists: lists}, nil
	}
}

// regionsIn are regions by their names.
func regionsIn(names []string) []service.Region {
	var regions []service.Region
	for _, n := range names {
		regions = append(regions, service.Region(n))
	}
	return regions
}

// serviceHere is the service whose machines are processes of this computer, by the folder of its
// controller; false for a service in clouds.
func serviceHere(dir string) (local.Service, bool) {
	c, _, err := fleet.ReadBundle(dir)
	var m means
	if err != nil || json.Unmarshal(c.Bundle.Means, &m) != nil || m.Dir == "" {
		return local.Service{}, false
	}
	return local.ServiceAt(m.Dir), true
}
