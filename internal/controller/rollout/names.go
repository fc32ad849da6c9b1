package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/dns"
	"skyserve/provision/local"
)

// publishPatience is how long a hosted zone may take until all of its name servers
// have a change: a minute at most, as Amazon says.
const publishPatience = 3 * time.Minute

// misnamed says why the name of a service.yaml cannot lead to its balancers; empty
// when it can, or when there is none.
func misnamed(spec *service.Spec) string {
	if spec.DNS == nil {
		return ""
	}
	for i, r := range spec.Regions {
		for j, base := range r.Public {
			record, err := dns.RecordOf(service.NameRecord{ID: r.Name.Place(), Public: base})
			switch {
			case err != nil:
				return fmt.Sprintf("regions[%d].public[%d]: %v", i, j, err)
			case record.Address.IsLoopback() && spec.DNS.Provider == service.DNSRoute53:
				return fmt.Sprintf("regions[%d].public[%d]: is a loopback address, which means another machine to everybody, got %s", i, j, base)
			}
		}
		if spec.DNS.Provider != service.DNSRoute53 {
			continue
		}
		if len(r.Public) == 0 {
			return fmt.Sprintf("dns.provider: the balancers of regions[%d] (%s) listen on this machine's loopback address, to which no public name can lead: say in regions[%d].public where others reach them, or write provider: embedded", i, r.Name, i)
		}
		if _, err := dns.AWSRegionOf(r.Name); err != nil {
			return fmt.Sprintf("regions[%d].name: %v", i, err)
		}
	}
	return ""
}

// publicName is the name of a service in a hosted zone, without its records; false
// where the service has none there.
func publicName(spec *service.Spec, owner string) (provision.Name, bool) {
	d := spec.DNS
	if d == nil || d.Provider != service.DNSRoute53 {
		return provision.Name{}, false
	}
	return provision.Name{
		Name: d.Name, Zone: d.Zone, Service: spec.Name, Owner: owner,
		Routing: provision.Routing(d.Routing), TTL: d.TTL, Private: d.Private,
	}, true
}

// published is the name of the service in a hosted zone with its records; false where
// the service has none there.
func (p *Plan) published() (n provision.Name, has bool, err error) {
	tokens, err := p.svc.Tokens()
	if err != nil {
		return n, false, err
	}
	if n, has = publicName(p.Spec, tokens.Owner()); !has {
		return n, false, nil
	}
	for _, r := range p.Layout.Records() {
		record, err := dns.RecordOf(r)
		if err != nil {
			return n, false, err
		}
		record.Check = r.Public + readyPath // as those see it who are led there
		n.Records = append(n.Records, record)
	}
	return n, true, nil
}

// CheckName makes sure, before Apply starts anything, that the service can have its
// name, and removes the one that it had before. The caller holds the lock of the
// service. Errors are those of Publish.
func (p *Plan) CheckName(ctx context.Context) error {
	n, has, err := p.published()
	if err != nil {
		return err
	}
	if has {
		zone, err := dns.NewRoute53(ctx, dns.Config{})
		if err != nil {
			return err
		}
		if err := zone.Check(ctx, n); err != nil {
			return err
		}
	}
	old, kept, err := p.svc.KeptName()
	if err != nil || !kept || has && n.Name == old.Name && n.Zone == old.Zone && n.Private == old.Private {
		return err
	}
	return unpublish(ctx, p.svc)
}

// Publish makes the name of a service in a hosted zone lead to its balancers, and
// returns when every name server of the zone does so; "" where the service has no
// such name. The caller holds the lock of the service. Errors include
// *provision.CredentialsError and *provision.OwnedError.
func (p *Plan) Publish(ctx context.Context) (name string, err error) {
	n, has, err := p.published()
	if err != nil || !has {
		return "", err
	}
	if err := p.svc.KeepName(n); err != nil {
		return "", err
	}
	return n.Name, setName(ctx, n)
}

// readyPath is where a balancer says whether it takes requests.
const readyPath = "/readyz"

// setName makes a name so in the account of AWS that the environment names.
func setName(ctx context.Context, n provision.Name) error {
	ctx, cancel := context.WithTimeoutCause(ctx, publishPatience, fmt.Errorf("not everywhere within %s", publishPatience))
	defer cancel()
	zone, err := dns.NewRoute53(ctx, dns.Config{})
	if err != nil {
		return err
	}
	return zone.Set(ctx, n)
}

// unpublish removes the name that was published for a service, if one was.
func unpublish(ctx context.Context, svc local.Service) error {
	n, has, err := svc.KeptName()
	if err != nil || !has {
		return err
	}
	err = setName(ctx, n)
	var owned *provision.OwnedError
	if err != nil && !errors.As(err, &owned) { // what is somebody else's is not ours to remove
		return fmt.Errorf("the name %s: %w", n.Name, err)
	}
	return svc.ForgetName()
}

// notAnswering says why the service's own name server does not lead anywhere, or
// nothing.
func (p *Plan) notAnswering(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	records, err := dns.Ask(ctx, p.Spec.DNS.Listen, p.Spec.DNS.Name)
	if err != nil {
		return err.Error()
	}
	if !slices.ContainsFunc(records, func(r dns.RecordState) bool { return r.Healthy }) {
		return "it finds no balancer ready"
	}
	return ""
}
