package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/aws"
	"skyserve/provision/cloud"
	"skyserve/provision/dns"
	"skyserve/provision/gcp"
	"skyserve/provision/local"
	"skyserve/templates"
)

// cloudFlags are the flags that override the clouds' endpoints and project.
type cloudFlags struct {
	endpointAWS, endpointGCP, project string
	machinesOnly                      bool // list machines only, as a service's machine may
	programs                          bool // also list the binaries in buckets
	downloads                         bool // machines download their binary from buckets
	// localService is the service whose machines are local processes; nil for a service in clouds.
	localService *local.Service
	// Credentials of machines of the other cloud; nil = those of the environment or of the machine.
	credentialsAWS aws.Credentials
	credentialsGCP *gcp.Credentials
}

func (c *cloudFlags) registerFlags(flags *pflag.FlagSet) {
	c.registerAWS(flags)
	flags.StringVar(&c.endpointGCP, "endpoint-gcp", "", "override the Google Cloud endpoint `URL`, for emulators")
	flags.StringVar(&c.project, "gcp-project", "", "Google Cloud `PROJECT` (default: GOOGLE_CLOUD_PROJECT, or the credentials' project)")
}

// registerAWS registers the flags of a command that only AWS has.
func (c *cloudFlags) registerAWS(flags *pflag.FlagSet) {
	flags.StringVar(&c.endpointAWS, "endpoint-aws", "", "override the AWS endpoint `URL`, for emulators (default: AWS_ENDPOINT_URL)")
}

// providersOf returns the providers of all regions of a service (cloud.RegionsWithObjects), or of some.
func (c *cloudFlags) providersOf(ctx context.Context, spec *service.Spec, some ...service.Region) (provision.MultiCloud, error) {
	if len(some) == 0 {
		some = cloud.RegionsWithObjects(spec)
	}
	return c.providers(ctx, spec, some, cloud.IsSingleRegion(spec))
}

// providers returns the providers of regions, with the networks of spec. alone is set if the
// service has only one region.
func (c *cloudFlags) providers(ctx context.Context, spec *service.Spec, regions []service.Region, alone bool) (provision.MultiCloud, error) {
	of := map[string][]string{}
	for _, r := range regions {
		of[r.Cloud()] = append(of[r.Cloud()], r.ShortName())
	}
	p := provision.MultiCloud{}
	if c.localService != nil {
		all := local.NewProvider(*c.localService, "", "", 0).WithSpec(spec)
		for _, name := range []string{service.CloudLocal, service.CloudStatic} {
			if len(of[name]) > 0 {
				p[name] = all.InRegions(slices.DeleteFunc(slices.Clone(regions), func(r service.Region) bool { return r.Cloud() != name })...)
			}
		}
	}
	if places := of[service.CloudAWS]; len(places) > 0 {
		names := slices.DeleteFunc(places, func(place string) bool { return place == cloud.GlobalRegion })
		provider, err := aws.New(ctx, aws.Config{
			Regions: names, IdentitiesOnly: len(names) == 0, Endpoint: c.endpointAWS, MachinesOnly: c.machinesOnly, Binaries: c.programs && len(names) > 0, OneRegion: alone, Networks: cloud.NamedNetworks(spec, service.CloudAWS), Credentials: c.credentialsAWS,
		})
		if err != nil {
			return nil, err
		}
		p[service.CloudAWS] = provider
	}
	if names := of[service.CloudGCP]; len(names) > 0 {
		p[service.CloudGCP] = gcp.New(c.googleConfig(names, spec))
	}
	return p, nil
}

// googleConfig returns the configuration of the Google Cloud provider.
func (c *cloudFlags) googleConfig(places []string, spec *service.Spec) gcp.Config {
	cfg := gcp.Config{
		Regions: places, Project: c.project, Endpoint: c.endpointGCP, MachinesOnly: c.machinesOnly, Binaries: c.programs, Downloads: c.downloads,
		Accounts: cloud.GoogleAccounts(spec), Service: spec.Name, Subnets: map[string]string{}, ReplaceBalancers: cloud.ReplacesBalancersIn(spec, service.CloudGCP), Credentials: c.credentialsGCP,
	}
	for place, n := range cloud.NamedNetworks(spec, service.CloudGCP) {
		cfg.Network = n.Name // the same in all regions
		if len(n.Subnets) > 0 {
			cfg.Subnets[place] = n.Subnets[0]
		}
	}
	return cfg
}

// nameZone returns the hosted zone of the service's public name. It returns nil if the
// service has no public name in a cloud and none is recorded in noted, which may be nil.
func (c *cloudFlags) nameZone(ctx context.Context, spec *service.Spec, noted deploy.DNSNameStore) (provision.DNSZone, error) {
	had := false
	var err error
	if noted != nil {
		_, had, err = noted.StoredName()
	}
	if err != nil || !had && (spec.DNS == nil || spec.DNS.Provider != service.DNSRoute53) {
		return nil, err
	}
	return dns.NewRoute53(ctx, dns.Config{Endpoint: c.endpointAWS})
}

// noteZone is the note that records the hosted zone in which machines write records.
const noteZone = "zone.json"

// writableZone is the hosted zone of the public name in which machines write ACME challenges, or the records of balancers
// that controllers replace.
type writableZone struct {
	deploy.HostedZone
	// HealthChecks are the ids of the health checks of the name's records that controllers may change.
	HealthChecks []string `json:"health_checks,omitempty"`
}

// hostedZone returns the zone in which machines write records; the zero value if they write none. Errors are those of
// dns.Route53's ZoneID and HealthChecks.
func (c *cloudFlags) hostedZone(ctx context.Context, spec *service.Spec, owner string) (z writableZone, err error) {
	if !spec.ObtainsCertificate(service.ChallengeDNS) && !cloud.UpdatesRecords(spec) {
		return z, nil
	}
	route53, err := dns.NewRoute53(ctx, dns.Config{Endpoint: c.endpointAWS})
	if err != nil {
		return z, err
	}
	z.Endpoint = cmp.Or(c.endpointAWS, os.Getenv(envEndpointAWS)) // machines do not have the variable
	if z.ID, err = route53.ZoneID(ctx, spec.DNS.Zone, spec.DNS.Private); err == nil && cloud.UpdatesRecords(spec) {
		z.HealthChecks, err = route53.HealthChecks(ctx, deploy.PublicName(spec, owner, nil))
	}
	return z, err
}

// envEndpointAWS is the AWS SDK's environment variable for its endpoint.
const envEndpointAWS = "AWS_ENDPOINT_URL"

// checkName returns an error if the public name of a service cannot be published. It changes
// nothing. Errors are those of provision.DNSZone's Check.
func checkName(ctx context.Context, zone provision.DNSZone, spec *service.Spec, owner string) error {
	if zone == nil || spec.DNS == nil {
		return nil
	}
	for _, r := range cloud.Regions(spec) { // every rented region has a balancer
		if _, err := dns.AWSRegionOf(r); err != nil {
			return err
		}
	}
	return zone.Check(ctx, publicName(spec, owner, nil))
}

// envProgram is the environment variable with the URL of the machines' skyserve binary.
const envProgram = "SKYSERVE_PROGRAM"

// hashURL returns the SHA-256 of the content at a URL, in hexadecimal.
func hashURL(ctx context.Context, address string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s returned %s", address, resp.Status)
	}
	h := sha256.New()
	if _, err := io.Copy(h, resp.Body); err != nil {
		return "", fmt.Errorf("reading %s: %w", address, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// userData returns a function that creates the cloud-init document of a service's machine.
func userData(name, owner string, p machineProgram) func(cloud.MachineInput) (string, error) {
	return func(n cloud.MachineInput) (string, error) {
		from, private := p.at(n.Region.Cloud())
		containers := n.Model != nil && n.Model.Engine.Kind != service.EngineSim
		return templates.CloudInit(templates.CloudInitParams{
			Cloud: cloudOf(n.Region), Service: name, Role: string(roleOf(n.Kind)), ID: n.ID, Owner: owner,
			Listen: ":" + strconv.Itoa(cloud.PortAgent), ProgramURL: from.URL, ProgramSHA256: p.SHA256, ProgramPrivate: private, ProgramRegion: from.Region,
			Containers: containers, GPUs: containers && len(n.Model.GPUs) > 0,
		})
	}
}

// roleOf returns the role of a machine of a kind in its service's certificates. A name server has
// the role of a replica, which has no rights at other machines.
func roleOf(k provision.ObjectKind) identity.Role {
	if k == provision.KindBalancer {
		return identity.Balancer
	}
	return identity.Replica
}

// cloudOf returns the cloud of a region as the templates name it.
func cloudOf(r service.Region) string {
	if cloud.RunsOnThisComputer(r) {
		return service.CloudLocal
	}
	return r.Cloud()
}

// operator is this machine's operator of a service.
type operator struct {
	party     identity.Party
	authority *identity.Authority // nil if it is on another machine
	revoked   identity.Revoked    // the latest list, if the authority is on this machine
	owner     string
}

// certificateExpiry returns the expiry of the operator's certificate, and whether this machine renews it.
func (o operator) certificateExpiry() deploy.CertificateExpiries {
	e := deploy.CertificateExpiries{HasCAKey: o.authority != nil}
	if o.party.Certificate == nil {
		return e
	}
	if pair, err := o.party.Certificate(); err == nil {
		e.Operator = pair.Leaf.NotAfter
	}
	return e
}

// openOperator opens this machine's certificate of a service, and the service's authority if it is
// on this machine. If neither exists, it creates both if create is set, and otherwise returns an
// fs.ErrNotExist.
func openOperator(svc local.Service, create bool) (o operator, err error) {
	home, now := identityOf(svc), time.Now()
	o.authority, err = home.Authority()
	if errors.Is(err, fs.ErrNotExist) {
		o.party, err = home.OperatorParty(operatorName(), now) // invited by another operator
		if errors.Is(err, fs.ErrNotExist) && create {
			o.authority, err = home.Create(svc.Name(), now)
		}
	}
	if err == nil && o.authority != nil {
		o.party, err = home.OperatorParty(operatorName(), now)
	}
	if err == nil && o.authority != nil {
		o.revoked, err = home.Revoked()
	}
	if err != nil {
		return o, err
	}
	o.owner = identity.Fingerprint(o.party.Root)
	return o, nil
}

// operatorOf opens this machine's certificate of an existing service. Without one it returns an
// error (exit 4); doing names the action, and hint the next step.
func operatorOf(svc local.Service, doing, hint string) (operator, error) {
	o, err := openOperator(svc, false)
	if errors.Is(err, fs.ErrNotExist) {
		err = &exitError{code: exitCredentials, err: fmt.Errorf("%s of %s: this machine is not an operator of the service", doing, svc.Name()), hint: hint}
	}
	return o, err
}

// isJoined reports whether this machine joined a service by `skyserve connect`. An error is reported by what needs the
// certificate.
func isJoined(svc local.Service) bool {
	o, err := openOperator(svc, false)
	return err == nil && o.authority == nil
}

// checkObservable returns an error on a machine that joined a service by `skyserve connect` and cannot observe or change its machines:
// those in clouds cannot be found without the service's file, and local ones run on the machine that deployed them. spec is nil
// without a file.
func checkObservable(svc local.Service, spec *service.Spec) error {
	switch {
	case !isJoined(svc):
		return nil
	case spec == nil:
		return usage(fmt.Errorf("%s was deployed from another machine, and its service.yaml is not on this one", svc.Name()),
			"for a service in clouds, 'skyserve up SERVICE.yaml' with its file stores it here; for one without cloud regions, run the command on the machine from which it was deployed; 'skyserve top' needs no file, and 'skyserve down --purge' only deletes this machine's certificate")
	case !cloud.UsesClouds(spec):
		return usage(fmt.Errorf("%s runs on the machine from which it was deployed", svc.Name()), "run the command on that machine; 'skyserve top' shows the service here")
	}
	return nil
}

// newDeployer returns the deployer of a service.
func newDeployer(spec *service.Spec, owner string, p provision.MultiCloud, program machineProgram) *deploy.Deployer {
	return &deploy.Deployer{Spec: spec, Owner: owner, Provider: p, Binaries: program.stored(), UserData: userData(spec.Name, owner, program)}
}
