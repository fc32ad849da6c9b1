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
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"skyserve/internal/controller/fleet"
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

// cloudFlags say where the clouds are, for those that are not at their usual places.
type cloudFlags struct {
	endpointAWS, endpointGCP, project string
	machinesOnly                      bool // what a machine of a service may see
	// here is the service whose machines are processes of this computer; nil = none are.
	here *local.Service
}

func (c *cloudFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&c.endpointAWS, "endpoint-aws", "", "speak to this `URL` instead of AWS, as emulators want it (or AWS_ENDPOINT_URL)")
	flags.StringVar(&c.endpointGCP, "endpoint-gcp", "", "speak to this `URL` instead of Google Cloud")
	flags.StringVar(&c.project, "gcp-project", "", "Google Cloud `PROJECT` (default: GOOGLE_CLOUD_PROJECT, or that of the credentials)")
}

// placesOf is the providers of a service as one: of all its rented regions, or of some.
func (c *cloudFlags) placesOf(ctx context.Context, spec *service.Spec, some ...service.Region) (provision.Places, error) {
	if len(some) == 0 {
		some = cloud.Regions(spec)
	}
	return c.places(ctx, spec, some, cloud.OneRegion(spec))
}

// places is the providers of some regions as one, with the networks that spec names; alone
// says that the service has no others.
func (c *cloudFlags) places(ctx context.Context, spec *service.Spec, regions []service.Region, alone bool) (provision.Places, error) {
	of := map[string][]string{}
	for _, r := range regions {
		of[r.Cloud()] = append(of[r.Cloud()], r.Place())
	}
	p := provision.Places{}
	if c.here != nil {
		all := local.NewProvider(*c.here, "", "", 0).For(spec)
		for _, name := range []string{service.CloudLocal, service.CloudStatic} {
			if len(of[name]) > 0 {
				p[name] = all.Of(slices.DeleteFunc(slices.Clone(regions), func(r service.Region) bool { return r.Cloud() != name })...)
			}
		}
	}
	if names := of[service.CloudAWS]; len(names) > 0 {
		provider, err := aws.New(ctx, aws.Config{
			Regions: names, Endpoint: c.endpointAWS, MachinesOnly: c.machinesOnly, OneRegion: alone, Networks: cloud.Networks(spec, service.CloudAWS),
		})
		if err != nil {
			return nil, err
		}
		p[service.CloudAWS] = provider
	}
	if names := of[service.CloudGCP]; len(names) > 0 {
		p[service.CloudGCP] = gcp.New(c.google(names, spec))
	}
	return p, nil
}

// google is how a service is reached at Google.
func (c *cloudFlags) google(places []string, spec *service.Spec) gcp.Config {
	cfg := gcp.Config{
		Regions: places, Project: c.project, Endpoint: c.endpointGCP, MachinesOnly: c.machinesOnly,
		Accounts: cloud.Accounts(spec), Service: spec.Name, Subnets: map[string]string{},
	}
	for place, n := range cloud.Networks(spec, service.CloudGCP) {
		cfg.Network = n.Name // all regions have the same
		if len(n.Subnets) > 0 {
			cfg.Subnets[place] = n.Subnets[0]
		}
	}
	return cfg
}

// zone is where the public name of a service is kept; nil where it has none in a cloud, and
// none is noted that it had; a nil noted knows of none.
func (c *cloudFlags) zone(ctx context.Context, spec *service.Spec, noted fleet.Noted) (provision.Zone, error) {
	had := false
	var err error
	if noted != nil {
		_, had, err = noted.KeptName()
	}
	if err != nil || !had && (spec.DNS == nil || spec.DNS.Provider != service.DNSRoute53) {
		return nil, err
	}
	return dns.NewRoute53(ctx, dns.Config{Endpoint: c.endpointAWS})
}

// noteZone is where it is noted which hosted zone balancers write challenges into.
const noteZone = "zone.json"

// hostedZone is the zone that balancers of a service write challenges of an authority into; zero
// where they write none. Errors are those of dns.Route53's ZoneID.
func (c *cloudFlags) hostedZone(ctx context.Context, spec *service.Spec) (z fleet.HostedZone, err error) {
	if !spec.Obtains(service.ChallengeDNS) {
		return z, nil
	}
	route53, err := dns.NewRoute53(ctx, dns.Config{Endpoint: c.endpointAWS})
	if err != nil {
		return z, err
	}
	z.Endpoint = cmp.Or(c.endpointAWS, os.Getenv(envEndpointAWS)) // which machines do not have
	z.ID, err = route53.ZoneID(ctx, spec.DNS.Zone, spec.DNS.Private)
	return z, err
}

// envEndpointAWS is AWS's own name for where it is to be found.
const envEndpointAWS = "AWS_ENDPOINT_URL"

// checkName says why the public name of a service could not be published; nil without one.
// Nothing is changed. Errors are those of provision.Zone's Check.
func checkName(ctx context.Context, zone provision.Zone, spec *service.Spec, owner string) error {
	if zone == nil || spec.DNS == nil {
		return nil
	}
	for _, r := range cloud.Rented(spec) { // where balancers are
		if _, err := dns.AWSRegionOf(r); err != nil {
			return err
		}
	}
	return zone.Check(ctx, publicName(spec, owner, nil))
}

// envProgram names the environment variable with the URL of the program for machines.
const envProgram = "SKYSERVE_PROGRAM"

// machineProgram is the program that machines in clouds get.
type machineProgram struct {
	URL    string `json:"url"`
	SHA256 string `json:"sha256"`
}

// fetchTimeout bounds getting the program once, to know its hash.
const fetchTimeout = 2 * time.Minute

// findProgram is the program at a URL with its hash; an empty URL stands for what was
// used before. The fragment of a URL may state the hash: #sha256=...
func findProgram(ctx context.Context, text string, before machineProgram) (machineProgram, error) {
	text = cmp.Or(text, os.Getenv(envProgram))
	if text == "" {
		if before.URL == "" {
			return before, usage(errors.New("--program: missing: machines in a cloud get skyserve for Linux from a URL"),
				"put the binary of 'make build' where they can reach it, such as a bucket, and say --program https://.../skyserve")
		}
		return before, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return before, usage(fmt.Errorf("reading --program: want an http or https URL, got %q", text), "")
	}
	sum, stated := strings.CutPrefix(u.Fragment, "sha256=")
	u.Fragment = ""
	p := machineProgram{URL: u.String(), SHA256: sum}
	if stated {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	p.SHA256, err = hashAt(ctx, p.URL)
	if err != nil {
		return before, failed(fmt.Errorf("getting the program for machines: %w", err), "state its hash where this machine cannot reach it: --program URL#sha256=...")
	}
	return p, nil
}

// hashAt is the SHA-256 of what a URL holds, in hexadecimal.
func hashAt(ctx context.Context, address string) (string, error) {
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
		return "", fmt.Errorf("%s answered %s", address, resp.Status)
	}
	h := sha256.New()
	if _, err := io.Copy(h, resp.Body); err != nil {
		return "", fmt.Errorf("reading %s: %w", address, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// userData writes the cloud-init documents of a service's machines.
func userData(name, owner string, p machineProgram) func(cloud.Node) (string, error) {
	return func(n cloud.Node) (string, error) {
		containers := n.Model != nil && n.Model.Engine.Kind != service.EngineSim
		return templates.CloudInit(templates.CloudInitParams{
			Cloud: cloudOf(n.Region), Service: name, Role: string(roleOf(n.Kind)), ID: n.ID, Owner: owner,
			Listen: ":" + strconv.Itoa(cloud.PortNode), ProgramURL: p.URL, ProgramSHA256: p.SHA256,
			Containers: containers, GPUs: containers && len(n.Model.GPUs) > 0,
		})
	}
}

// roleOf is what a machine of a kind is in its service's certificates: a name server's is nobody
// to the others, as a replica's is.
func roleOf(k provision.Kind) identity.Role {
	if k == provision.KindBalancer {
		return identity.Balancer
	}
	return identity.Replica
}

// cloudOf is the cloud of a region as templates call it.
func cloudOf(r service.Region) string {
	if cloud.IsHere(r) {
		return service.CloudLocal
	}
	return r.Cloud()
}

// operator is this machine's operator of a service.
type operator struct {
	party     identity.Party
	authority *identity.Authority // nil where it is on another machine
	revoked   identity.Revoked    // the newest list, where the authority is here
	owner     string
}

// ends is when the operator's own certificate ends, and whether it is renewed here.
func (o operator) ends() fleet.Ends {
	e := fleet.Ends{Signs: o.authority != nil}
	if o.party.Certificate == nil {
		return e
	}
	if pair, err := o.party.Certificate(); err == nil {
		e.Operator = pair.Leaf.NotAfter
	}
	return e
}

// openOperator opens this machine's certificate of a service, and the service's
// authority where it is here. With create, a service that is new gets both; else it is
// an fs.ErrNotExist.
func openOperator(svc local.Service, create bool) (o operator, err error) {
	home, now := identityOf(svc), time.Now()
	o.authority, err = home.Authority()
	if errors.Is(err, fs.ErrNotExist) {
		o.party, err = home.Operator(operatorName(), now) // enrolled by another operator
		if errors.Is(err, fs.ErrNotExist) && create {
			o.authority, err = home.Create(svc.Name(), now)
		}
	}
	if err == nil && o.authority != nil {
		o.party, err = home.Operator(operatorName(), now)
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

// operatorOf opens this machine's certificate of a service that there is; doing is what
// for, and hint what to do without one (exit 4).
func operatorOf(svc local.Service, doing, hint string) (operator, error) {
	o, err := openOperator(svc, false)
	if errors.Is(err, fs.ErrNotExist) {
		err = &exitError{code: exitCredentials, err: fmt.Errorf("%s: %s: this machine is no operator of it", svc.Name(), doing), hint: hint}
	}
	return o, err
}

// newFleet is the machines of a service as `up` wants them.
func newFleet(spec *service.Spec, owner string, p provision.Places, program machineProgram) *fleet.Fleet {
	return &fleet.Fleet{Spec: spec, Owner: owner, Provider: p, UserData: userData(spec.Name, owner, program)}
}
