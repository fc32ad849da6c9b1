package gcp

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/auth"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Config configures a provider. The zero value uses the project and the credentials of the environment.
type Config struct {
	// Project is the project's id; empty = GOOGLE_CLOUD_PROJECT, else the project of the credentials.
	Project string
	// Regions are the regions that List covers: us-central1; none = all regions.
	Regions []string
	// Network is the VPC network of all machines; empty = default.
	Network string
	// Subnets are the subnets of Network for machines, by region; a region without one uses the
	// network's own subnet, which networks in automatic mode have.
	Subnets map[string]string
	// Accounts are the service accounts of machines, by role. By default a balancer uses the service
	// account skyserve-SERVICE-lb of the project, and a replica none (see Downloads).
	Accounts map[provision.Role]string
	// Service is the service whose service account Doctor checks; nothing else uses it.
	Service string
	// Endpoint is the base URL of all APIs; empty = Google's. With an Endpoint and without Credentials,
	// calls are not authenticated, unless GCE_METADATA_HOST contains a metadata server's address.
	Endpoint string
	// Credentials authenticate the calls; nil = the application default credentials.
	Credentials *auth.Credentials
	// Transport sends the calls; nil = the standard library's.
	Transport http.RoundTripper
	// Poll is the interval of polling for a slow change; 0 = 2 s, negative = no interval, for tests.
	Poll time.Duration
	// MachinesOnly excludes firewalls and identities from changes and lists. It is for a machine of the
	// service, because provision.GrantOperate does not include permissions for them.
	MachinesOnly bool
	// FilesOnly restricts the credentials to files in buckets (Files), like the access scopes of machines.
	FilesOnly bool
	// Binaries includes the binaries in buckets (provision.KindBinary) in lists, which requires
	// permissions in Cloud Storage.
	Binaries bool
	// Downloads states that machines download their binary from the service's bucket. Replicas then use
	// the service account skyserve-SERVICE-replica of the project by default.
	Downloads bool
	// ReplaceBalancers states that controllers on the balancers' machines also launch and terminate balancers.
	ReplaceBalancers bool
}

const defaultPoll = 2 * time.Second

// Provider manages objects in the regions of Google Cloud. Create one with New.
type Provider struct {
	cfg    Config
	prices provision.CloudCache[*priceList] // one list for all regions

	mu           sync.Mutex // guards the fields below
	session      *session
	fingerprints map[string]cachedFingerprint // by handle, as last read
}

var (
	_ provision.Provider = (*Provider)(nil)
	_ provision.Pricer   = (*Provider)(nil)
)

// New returns a provider. It makes no call to the cloud, and loads no credentials, before the first
// call of a method.
func New(cfg Config) *Provider {
	cfg.Network = cmp.Or(cfg.Network, "default")
	if cfg.Transport == nil {
		cfg.Transport = http.DefaultTransport
	}
	cfg.Poll = max(0, cmp.Or(cfg.Poll, defaultPoll))
	return &Provider{cfg: cfg}
}

// Project returns the id of the project, see Config. Errors include *provision.CredentialsError.
func (p *Provider) Project(ctx context.Context) (string, error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return "", err
	}
	return s.project, nil
}

// sleep blocks for a duration, or until the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// List returns the objects of a service, or of all services for the empty name.
func (p *Provider) List(ctx context.Context, service string) ([]provision.Object, error) {
	machines, err := p.listMachines(ctx, service)
	if err != nil || p.cfg.MachinesOnly {
		return machines, err
	}
	prerequisites, err := p.listPrerequisites(ctx, service)
	if err == nil && p.cfg.Binaries {
		var binaries []provision.Object
		binaries, err = p.listBinaries(ctx, service)
		prerequisites = append(binaries, prerequisites...)
	}
	return append(prerequisites, machines...), err
}

// Launch creates a machine or a prerequisite. It returns an *provision.OwnedError, and creates nothing,
// if the service has an object of another owner.
func (p *Provider) Launch(ctx context.Context, w provision.Desired) (provision.Object, error) {
	isBinary := w.Kind == provision.KindBinary
	isMachine := !isBinary && w.Kind != provision.KindFirewall && w.Kind != provision.KindIdentity
	if !isBinary && roleOf(w) == "" || isMachine && w.Machine == nil {
		return provision.Object{}, fmt.Errorf("launching %s in %s: role and machine configuration are required", w.ID, w.Region)
	}
	machines, err := p.listMachines(ctx, w.Service)
	if err != nil {
		return provision.Object{}, err
	}
	if err := checkOwner(w, machines); err != nil {
		return provision.Object{}, err
	}
	switch {
	case isMachine:
		return p.launchMachine(ctx, w, machines)
	case isBinary:
		return p.launchBinary(ctx, w)
	}
	prerequisites, err := p.listPrerequisites(ctx, w.Service)
	if err != nil {
		return provision.Object{}, err
	}
	if err := checkOwner(w, prerequisites); err != nil {
		return provision.Object{}, err
	}
	return p.launchPrerequisite(ctx, w)
}

// checkOwner returns an error if an object of the service has another owner.
func checkOwner(w provision.Desired, have []provision.Object) error {
	for _, o := range have {
		if o.Owner != w.Owner {
			return &provision.OwnedError{Resource: "service " + w.Service, Where: string(o.Region), Owner: o.Owner}
		}
	}
	return nil
}

// Terminate removes an object of List. A newer object with the same name stays.
func (p *Provider) Terminate(ctx context.Context, o provision.Object) error {
	if o.Kind == provision.KindBinary {
		return p.removeBinary(ctx, o)
	}
	if prefix, ok := strings.CutPrefix(o.Handle, prerequisiteZone+"/"); ok {
		return p.removePrerequisite(ctx, o, prefix)
	}
	zone, name, number, err := handleOf(o)
	if err != nil {
		return fmt.Errorf("terminating %s: %w", o.ID, err)
	}
	return p.removeMachine(ctx, zone, name, number)
}

// handleOf parses the handle of a machine.
func handleOf(o provision.Object) (zone, name, number string, err error) {
	parts := strings.Split(o.Handle, "/")
	if len(parts) != 3 {
		return "", "", "", fmt.Errorf("handle must be zone/name/number, got %q", o.Handle)
	}
	return parts[0], parts[1], parts[2], nil
}

// hasRegion reports whether a region is one of the provider's; true for the region global.
func (p *Provider) hasRegion(region service.Region) bool {
	return len(p.cfg.Regions) == 0 || region.ShortName() == prerequisiteZone || slices.Contains(p.cfg.Regions, region.ShortName())
}

// regionID returns a region by Google's name for it.
func regionID(place string) service.Region { return service.Region(service.CloudGCP + "/" + place) }

// regionOf returns the region of a zone: gcp/us-central1 of us-central1-a.
func regionOf(zone string) service.Region {
	return regionID(zone[:max(0, strings.LastIndex(zone, "-"))])
}
