package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/dns"
	"skyserve/provision/local"
	"skyserve/provision/remote"
)

// cloudAccess is how the controller of a service accesses the clouds. It is part of the configuration
// that its machine receives.
type cloudAccess struct {
	// Program is the skyserve binary that launched machines download.
	Program machineProgram `json:"program"`
	// Overridden endpoints of the clouds.
	EndpointAWS string `json:"endpoint_aws,omitempty"`
	EndpointGCP string `json:"endpoint_gcp,omitempty"`
	Project     string `json:"project,omitempty"`
	// Dir is the directory of a service whose machines are local processes.
	Dir string `json:"dir,omitempty"`
	// Networks are the networks of regions that do not use the default one.
	Networks map[service.Region]provision.Network `json:"networks,omitempty"`
	// Accounts are the service accounts of machines at Google.
	Accounts service.GCPSpec `json:"accounts,omitzero"`
	// Federation is how controllers call the API of the cloud whose only balancer they replace.
	Federation federation `json:"federation,omitzero"`
}

// networksOf returns the networks that a service's file names, by region.
func networksOf(spec *service.Spec) map[service.Region]provision.Network {
	networks := map[service.Region]provision.Network{}
	for _, r := range spec.Regions {
		if r.Network != "" {
			networks[r.Name] = provision.Network{Name: r.Network, Subnets: r.Subnets}
		}
	}
	return networks
}

// specOf returns a Spec with only the networks of some regions and the service accounts.
func (m cloudAccess) specOf(regions []service.Region) *service.Spec {
	spec := &service.Spec{GCP: m.Accounts}
	for _, r := range regions {
		spec.Regions = append(spec.Regions, service.RegionSpec{Name: r, Network: m.Networks[r].Name, Subnets: m.Networks[r].Subnets})
	}
	return spec
}

// reconcilerOptions returns the options of a controller that changes replicas; none if the directory of
// its configuration file is not a controller bundle.
func reconcilerOptions(file string, log *slog.Logger) []controller.Option {
	dir := filepath.Dir(file)
	if !deploy.HasBundle(dir) {
		return nil
	}
	k := &deploy.Reconciler{Dir: dir, Open: reachClouds, Federate: reachFederated, Logger: log}
	if svc, here := localServiceAt(dir); here {
		k.DecisionsFile, k.Lock = decisionsFile(svc), func() (func(), error) {
			unlock, err := svc.Lock()
			var busy *local.BusyError
			if errors.As(err, &busy) {
				err = fmt.Errorf("%w: %w", controller.ErrBusy, err)
			}
			return unlock, err
		}
	}
	return []controller.Option{controller.WithMachines(k), controller.WithActuator(k), controller.WithAlerts(k.Alerts)}
}

// reachClouds returns the providers of a service's regions as one of its machines uses them:
// they list machines only.
func reachClouds(ctx context.Context, text json.RawMessage, spec *service.Spec, owner string) (deploy.CloudAccess, error) {
	regions := cloud.ManagedRegions(spec)
	places, lists, err := providersInside(ctx, text, regions, cloudFlags{})
	if err != nil {
		return deploy.CloudAccess{}, err
	}
	var m cloudAccess
	if err := json.Unmarshal(text, &m); err != nil {
		return deploy.CloudAccess{}, fmt.Errorf("reading the skyserve binary for VMs: %w", err)
	}
	reach := deploy.CloudAccess{Provider: places, Attestor: places, Listers: map[service.Region]deploy.Lister{}, UserData: userData(spec.Name, owner, m.Program)}
	for r, p := range lists {
		reach.Listers[r] = p
	}
	reach.RecordUpdater, err = recordsInside(ctx, m, regions, cloudFlags{})
	return reach, err
}

// recordsInside returns what changes DNS records with the identity of a machine at AWS, or with the credentials of by. For
// a machine elsewhere it uses the identity for records alone; nil without one.
func recordsInside(ctx context.Context, m cloudAccess, regions []service.Region, by cloudFlags) (provision.RecordUpdater, error) {
	if !slices.ContainsFunc(regions, func(r service.Region) bool { return r.Cloud() == service.CloudAWS }) {
		if !m.Federation.RecordsOnly {
			return nil, nil
		}
		by.credentialsAWS = m.Federation.credentialsAWS("skyserve", "", m.EndpointAWS)
	}
	return dns.NewRoute53(ctx, dns.Config{Endpoint: m.EndpointAWS, Credentials: by.credentialsAWS})
}

// providersInside returns the providers of regions as a machine there uses them, or one elsewhere with the credentials of
// by: one for all regions, and one per region.
func providersInside(ctx context.Context, text json.RawMessage, regions []service.Region, by cloudFlags) (provision.MultiCloud, map[service.Region]provision.Provider, error) {
	var m cloudAccess
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, nil, fmt.Errorf("reading the cloud access configuration: %w", err)
	}
	clouds := by
	clouds.endpointAWS, clouds.endpointGCP, clouds.project, clouds.machinesOnly, clouds.downloads = m.EndpointAWS, m.EndpointGCP, cmp.Or(m.Project, by.project), true, m.Program.fromBuckets()
	spec := m.specOf(regions)
	if m.Dir != "" {
		svc := local.ServiceAt(m.Dir)
		clouds.localService = &svc
		text, err := os.ReadFile(svc.SpecFile())
		if err != nil {
			return nil, nil, fmt.Errorf("reading the service file: %w", err)
		}
		if spec, err = service.ParseDeployed(svc.SpecFile(), text); err != nil {
			return nil, nil, err
		}
	}
	all, err := clouds.providers(ctx, spec, regions, false) // false affects firewalls only
	if err != nil {
		return nil, nil, err
	}
	each := map[service.Region]provision.Provider{}
	for _, r := range regions {
		if each[r], err = clouds.providers(ctx, spec, []service.Region{r}, false); err != nil {
			return nil, nil, err
		}
	}
	return all, each, nil
}

// cloudHandler returns a handler that calls a machine's cloud API on behalf of the service's controller,
// which runs in another cloud.
func cloudHandler(name, owner string) func(agent.CloudAccess) (http.Handler, error) {
	return func(c agent.CloudAccess) (http.Handler, error) {
		regions := regionsNamed(c.Regions)
		places, lists, err := providersInside(context.Background(), c.Config, regions, cloudFlags{})
		if err != nil {
			return nil, err
		}
		h := &remote.Handler{Service: name, Owner: owner, Balancers: c.Balancers, Provider: places, Attestor: places, ByRegion: lists}
		var m cloudAccess
		if err = json.Unmarshal(c.Config, &m); err == nil {
			h.Records, err = recordsInside(context.Background(), m, regions, cloudFlags{})
		}
		return h, err
	}
}

// regionsNamed converts names to regions.
func regionsNamed(names []string) []service.Region {
	var regions []service.Region
	for _, n := range names {
		regions = append(regions, service.Region(n))
	}
	return regions
}

// localServiceAt returns the local service of a controller directory; false for a service in clouds.
func localServiceAt(dir string) (local.Service, bool) {
	c, _, err := deploy.ReadBundle(dir)
	var m cloudAccess
	if err != nil || json.Unmarshal(c.Bundle.CloudConfig, &m) != nil || m.Dir == "" {
		return local.Service{}, false
	}
	return local.ServiceAt(m.Dir), true
}
