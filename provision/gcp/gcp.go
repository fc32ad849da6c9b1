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

// Config says where a provider works, and as whom. The zero value is the project and
// the credentials of the environment.
type Config struct {
	// Project is the project's id; empty = GOOGLE_CLOUD_PROJECT, else the project of
	// the credentials.
	Project string
	// Regions are the regions that List looks in: us-central1; none = all of them.
	Regions []string
	// Network is the VPC network of all machines; empty = default.
	Network string
	// Subnets are those of Network that machines stand in, by region; a region without
	// one takes the network's own, which networks in automatic mode have.
	Subnets map[string]string
	// Accounts are the service accounts that machines run as, by role. Without one a
	// balancer runs as the account skyserve-SERVICE-lb of the project, and a replica as nobody.
	Accounts map[provision.Kind]string
	// Service is the service that Doctor looks for; nothing else needs it.
	Service string
	// Endpoint is the API's base URL; empty = Google's. With one, and without
	// Credentials, calls are not authenticated, unless GCE_METADATA_HOST names a metadata server.
	Endpoint string
	// Credentials are whose calls they are; nil = the application default credentials.
	Credentials *auth.Credentials
	// Transport carries the calls; nil = the standard library's.
	Transport http.RoundTripper
	// Poll is how often something is looked at that takes its time; 0 = 2 s, negative =
	// without a pause, as tests want it.
	Poll time.Duration
	// MachinesOnly leaves firewalls and identities alone, and out of lists: it is for a
	// machine of the service, which may not see them (provision.GrantOperate).
	MachinesOnly bool
}

const defaultPoll = 2 * time.Second

// Provider makes objects in the regions of Google Cloud. Use New.
type Provider struct {
	cfg    Config
	prices provision.Held[*priceList] // one, of all regions

	mu      sync.Mutex // guards what follows
	session *session
	keys    map[string]readKey // by handle, as they were read last
}

var (
	_ provision.Provider = (*Provider)(nil)
	_ provision.Pricer   = (*Provider)(nil)
)

// New is a provider. Nothing is asked of the cloud, and no credentials are looked
// for, before the first call of a method.
func New(cfg Config) *Provider {
	cfg.Network = cmp.Or(cfg.Network, "default")
	if cfg.Transport == nil {
		cfg.Transport = http.DefaultTransport
	}
	cfg.Poll = max(0, cmp.Or(cfg.Poll, defaultPoll))
	return &Provider{cfg: cfg}
}

// pause waits, or returns why the context ended.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// List reads the objects of a service, or of all services for the empty name.
func (p *Provider) List(ctx context.Context, service string) ([]provision.Object, error) {
	machines, err := p.machines(ctx, service)
	if err != nil || p.cfg.MachinesOnly {
		return machines, err
	}
	foundations, err := p.foundations(ctx, service)
	return append(foundations, machines...), err
}

// Launch makes a machine or a foundation. An object of the service that belongs to
// another owner is an *provision.OwnedError before anything is made.
func (p *Provider) Launch(ctx context.Context, w provision.Want) (provision.Object, error) {
	isMachine := w.Kind != provision.KindFirewall && w.Kind != provision.KindIdentity
	if roleOf(w) == "" || isMachine && w.Machine == nil {
		return provision.Object{}, fmt.Errorf("launching %s in %s: it is not said what machine, or whose %s, it is", w.ID, w.Region, w.Kind)
	}
	machines, err := p.machines(ctx, w.Service)
	if err != nil {
		return provision.Object{}, err
	}
	if err := owned(w, machines); err != nil {
		return provision.Object{}, err
	}
	if isMachine {
		return p.launchMachine(ctx, w, machines)
	}
	foundations, err := p.foundations(ctx, w.Service)
	if err != nil {
		return provision.Object{}, err
	}
	if err := owned(w, foundations); err != nil {
		return provision.Object{}, err
	}
	return p.launchFoundation(ctx, w)
}

// owned finds an object of the service that has another owner.
func owned(w provision.Want, have []provision.Object) error {
	for _, o := range have {
		if o.Owner != w.Owner {
			return &provision.OwnedError{What: "service " + w.Service, Where: string(o.Region), Owner: o.Owner}
		}
	}
	return nil
}

// Terminate removes an object of List, and only it: what has taken its name since
// stays.
func (p *Provider) Terminate(ctx context.Context, o provision.Object) error {
	if prefix, ok := strings.CutPrefix(o.Handle, foundationPlace+"/"); ok {
		return p.removeFoundation(ctx, o, prefix)
	}
	zone, name, number, err := handleOf(o)
	if err != nil {
		return fmt.Errorf("terminating %s: %w", o.ID, err)
	}
	return p.removeMachine(ctx, zone, name, number)
}

// handleOf reads the handle of a machine.
func handleOf(o provision.Object) (zone, name, number string, err error) {
	parts := strings.Split(o.Handle, "/")
	if len(parts) != 3 {
		return "", "", "", fmt.Errorf("its handle %q is not zone/name/number", o.Handle)
	}
	return parts[0], parts[1], parts[2], nil
}

// looksIn says whether a region is one of the provider's; global, of what has no
// region, always is.
func (p *Provider) looksIn(region service.Region) bool {
	return len(p.cfg.Regions) == 0 || region.Place() == foundationPlace || slices.Contains(p.cfg.Regions, region.Place())
}

// regionNamed is a region by Google's name for it.
func regionNamed(place string) service.Region { return service.Region(service.CloudGCP + "/" + place) }

// regionOf is the region of a zone: gcp/us-central1 of us-central1-a.
func regionOf(zone string) service.Region {
	return regionNamed(zone[:max(0, strings.LastIndex(zone, "-"))])
}
