package deploy

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/agent"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/static"
)

// Default ports of engines; images.go has their images.
const (
	portVLLM   = 8000
	portSGLang = 30000
	// cacheHub is the path in containers of the Hugging Face Hub's download cache.
	cacheHub = "/root/.cache/huggingface"
	// weightsPath is the path in containers of weights from a bucket.
	weightsPath = "/weights"
)

// program is the skyserve binary on a cloud machine, found in its PATH.
const program = "skyserve"

// Files of a balancer, below the directory of its machine's agent.
const (
	fileConfig  = "balancer/config.yaml"
	fileService = "balancer/service.yaml"
	fileKeys    = "balancer/keys"
	fileTLSCert = "balancer/tls.crt"
	fileTLSKey  = "balancer/tls.key"
	fileRoot    = "balancer/acme-root.pem"
	fileEAB     = "balancer/acme-eab"
	// dirCertificates is a balancer's directory of obtained certificates.
	dirCertificates = "balancer/certificates"
)

// Secrets reads the value of an env:NAME or file:PATH reference of service.yaml on this machine.
type Secrets func(ref string) (string, error)

// LocalSecrets reads the environment and files of this machine. Errors contain the reference and
// never a value.
func LocalSecrets(ref string) (string, error) {
	if name, ok := strings.CutPrefix(ref, "env:"); ok {
		value, isSet := os.LookupEnv(name)
		if !isSet {
			return "", fmt.Errorf("reading %s: environment variable %s is not set", ref, name)
		}
		return value, nil
	}
	text, err := os.ReadFile(strings.TrimPrefix(ref, "file:"))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", ref, err)
	}
	return strings.TrimSuffix(string(text), "\n"), nil
}

// SecretsBelow returns LocalSecrets with relative paths that start at a directory.
func SecretsBelow(dir string) Secrets {
	return func(ref string) (string, error) {
		if path, isFile := strings.CutPrefix(ref, "file:"); isFile && !filepath.IsAbs(path) {
			ref = "file:" + filepath.Join(dir, path)
		}
		return LocalSecrets(ref)
	}
}

// DeploymentInput is the input of Deployments.
type DeploymentInput struct {
	Spec *service.Spec
	// SpecYAML is the service.yaml of Spec.
	SpecYAML []byte
	// Secrets reads the secrets to which Spec refers.
	Secrets Secrets
	// PeerToken is the peer token, a secret that all balancers of a service share. They also derive the seed of their
	// prefix hashes from it.
	PeerToken string
	// Bundle is the bundle of the controller's machine; nil = no controller.
	Bundle *ControllerBundle
	// Zone is the hosted zone for ACME challenges; zero = none.
	Zone HostedZone
	// BaseDir is the directory of relative paths in service.yaml, for balancers on this computer.
	BaseDir string
	// AdminToken authenticates plain HTTP clients of the admin APIs of balancers on this computer;
	// empty opens them to all local users.
	AdminToken string
	// Enrolled are the handles (IDs in their cloud) of balancer machines that operators launched, by machine ID; other
	// machines with the tags of a balancer are ignored. nil = all are accepted.
	Enrolled map[string][]string
	// Launched are the handles of those that a controller launched since Enrolled was delivered. Only controllers set it.
	Launched map[string][]string
	// Draining are the IDs of replicas that balancers stop using.
	Draining map[string]bool
	// Controllers are the IDs of the machines that run a controller now.
	Controllers []string
	// Self is the ID of the machine of the controller that has this input; empty = on an operator's computer.
	Self string
	// Images are the images of engines with their digests.
	Images Images
}

// HostedZone is a Route 53 zone for balancers.
type HostedZone struct {
	ID string `json:"id,omitempty"`
	// Endpoint is Route 53's base URL; empty = AWS's.
	Endpoint string `json:"endpoint,omitempty"`
}

// Deployments returns the deployment of each machine of a service, by ID; have is the machines with
// their addresses. Machines without an address, and replicas of models that the file no longer
// contains, have no deployment and are not in the deployments of others. The revision of a balancer's
// machine begins with a hash of c (inputHash). A controller whose input has another
// hash leaves the machine unchanged: see Delivery.DeliverDue.
func Deployments(c DeploymentInput, have []provision.Object) (map[string]agent.Deployment, error) {
	d := &deploymentBuilder{DeploymentInput: c, spec: c.Spec}
	for _, o := range have {
		// A failed machine on this computer restarts at the same address. Until then the
		// configuration of the others contains it and its replicas.
		stays := o.TerminatedReason == "" || cloud.RunsOnThisComputer(o.Region)
		if stays && o.PrivateIP.IsValid() && c.trusts(o) {
			d.have = append(d.have, o)
		}
	}
	slices.SortFunc(d.have, func(a, b provision.Object) int { return cmp.Compare(a.ID, b.ID) })
	if c.Bundle != nil {
		d.control = chooseControlPlane(c.Spec, d.have, c.Controllers)
	}
	inputHash, err := c.inputHash()
	if err != nil {
		return nil, fmt.Errorf("building the deployments: %w", err)
	}
	all := map[string]agent.Deployment{}
	for _, o := range d.have {
		var one agent.Deployment
		switch o.Kind {
		case provision.KindBalancer:
			one, err = d.balancerDeployment(o)
			one.Revision = inputHash + "."
		case provision.KindReplica:
			m := ModelNamed(c.Spec, o.Labels["model"])
			if m == nil {
				continue // its model is no longer in the file: it will be removed
			}
			one, err = d.replicaDeployment(o, m)
		case provision.KindNameServer:
			if d := c.Spec.DNS; d == nil || d.Provider != service.DNSEmbedded {
				continue // it will be removed
			}
			one, err = d.nameServerDeployment()
		case provision.KindController, provision.KindFirewall, provision.KindIdentity, provision.KindBinary:
			continue
		}
		var hash string
		if err == nil {
			hash, err = provision.ConfigHash(one)
		}
		if err != nil {
			return nil, fmt.Errorf("building the deployment of %s: %w", o.ID, err)
		}
		one.Revision += hash
		all[o.ID] = one
	}
	return all, nil
}

// trusts reports whether the kind in a machine's tags is trusted: a balancer must be recorded.
func (c DeploymentInput) trusts(o provision.Object) bool {
	if o.Kind != provision.KindBalancer {
		return !provision.IsBalancerID(o.ID)
	}
	return c.Enrolled == nil || slices.Contains(c.Enrolled[o.ID], o.Handle) || slices.Contains(c.Launched[o.ID], o.Handle)
}

// deploymentBuilder is the state of one call of Deployments.
type deploymentBuilder struct {
	DeploymentInput
	spec    *service.Spec
	have    []provision.Object
	control controlPlane // none without a Bundle
}

// UnitNameOf returns the name of the main unit of a machine of a kind.
func UnitNameOf(k provision.ObjectKind) string {
	switch k {
	case provision.KindBalancer:
		return "balancer"
	case provision.KindNameServer:
		return UnitNameServer
	}
	return "engine"
}

// balancerDeployment returns the deployment of a balancer's machine.
func (d *deploymentBuilder) balancerDeployment(o provision.Object) (agent.Deployment, error) {
	files := map[string]string{fileService: string(d.SpecYAML)}
	own := cloud.EndpointsOf(o).Listen
	c := service.BalancerConfig{
		Service: d.spec.Name, ID: o.ID, Region: o.Region,
		Listen: own.PublicAddress(d.spec), Admin: own.Admin,
		Identity: &service.Identity{Cert: agent.FileCert, Key: agent.FileKey, CA: agent.FileCA, Revoked: agent.FileRevoked},
		Balancer: d.spec.Balancer, Splits: d.spec.Splits, SpecFile: fileService, PeerToken: d.PeerToken,
		Replicas: d.replicasOf(o), Peers: d.peersOf(o), AdminPlain: cloud.RunsOnThisComputer(o.Region), AdminToken: d.AdminToken,
	}
	for _, m := range d.spec.Models {
		c.Models = append(c.Models, service.BalancerModel{Name: m.Name, Aliases: m.Aliases, LoRA: m.Engine.Adapters(), ScaleToZero: d.spec.ScalesToZero(m.Name), SLO: m.SLO, Price: m.Price, Fallback: m.Fallback, FallbackAfter: m.FallbackAfter})
	}
	d.addDiscovery(&c)
	d.useStore(&c)
	if err := d.addSecrets(&c, own, files); err != nil {
		return agent.Deployment{}, err
	}
	if err := d.addEngineKeys(&c, files); err != nil {
		return agent.Deployment{}, err
	}
	if err := d.addProviders(&c, files); err != nil {
		return agent.Deployment{}, err
	}
	immutableHash, err := provision.ConfigHash(c.Immutable())
	if err != nil {
		return agent.Deployment{}, err
	}
	config, err := yaml.Marshal(c)
	if err != nil {
		return agent.Deployment{}, err
	}
	files[fileConfig] = string(config)
	units := []agent.Unit{{Name: UnitNameOf(o.Kind), Args: []string{program, "lb", "--config", fileConfig}, Files: files, ImmutableHash: immutableHash, Memory: int64(d.spec.Balancer.Memory.Total)}}
	if d.control.runs(o.ID) {
		u, err := d.controllerUnit(o)
		if err != nil {
			return agent.Deployment{}, err
		}
		units = append(units, u)
	}
	return agent.Deployment{Units: units, Cloud: d.cloudAccess(o)}, nil
}

// cloudAccess returns the configuration for a balancer that calls the API of its cloud for
// controllers in other clouds, and for those on spares (balancers whose identity may not launch balancers:
// cloud.Spares); nil without any.
func (d *deploymentBuilder) cloudAccess(o provision.Object) *agent.CloudAccess {
	name, spare := o.Region.Cloud(), d.isSpare(o.ID)
	others := slices.ContainsFunc(d.control.chosen, func(c cloud.BalancerMachine) bool {
		return c.Region.Cloud() != name || !spare && d.isSpare(c.ID)
	})
	if !others || cloud.RunsOnThisComputer(service.Region(name+"/")) {
		return nil
	}
	c := &agent.CloudAccess{Config: d.Bundle.CloudConfig, Balancers: cloud.ReplacesBalancersIn(d.spec, name) && !spare}
	for _, r := range cloud.ManagedRegions(d.spec) {
		if r.Cloud() == name {
			c.Regions = append(c.Regions, string(r))
		}
	}
	return c
}

// addSecrets adds the secrets of a balancer's configuration to its files.
func (d *deploymentBuilder) addSecrets(c *service.BalancerConfig, own provision.Addresses, files map[string]string) error {
	if cloud.RunsOnThisComputer(c.Region) {
		d.referToLocalFiles(c, own)
		return nil
	}
	if auth := c.Balancer.Auth; auth != nil && auth.KeysFrom != "" {
		keys, err := d.Secrets(auth.KeysFrom)
		if err != nil {
			return fmt.Errorf("balancer.auth.keys_from: %w", err)
		}
		own := *auth
		own.KeysFrom = "file:" + fileKeys
		c.Balancer.Auth, files[fileKeys] = &own, keys
	}
	tls := c.Balancer.TLS
	if tls == nil {
		return nil
	}
	if tls.ACME != nil {
		return d.addACMEFiles(c, own, files)
	}
	for _, f := range []struct{ key, from, to string }{{"cert", tls.Cert, fileTLSCert}, {"key", tls.Key, fileTLSKey}} {
		text, err := d.Secrets("file:" + f.from)
		if err != nil {
			return fmt.Errorf("balancer.tls.%s: %w", f.key, err)
		}
		files[f.to] = text
	}
	c.Balancer.TLS = &service.TLS{Cert: fileTLSCert, Key: fileTLSKey}
	return nil
}

// referToLocalFiles configures a balancer on this computer to read the files of service.yaml themselves
// and not copies, so that it reloads them when they change.
func (d *deploymentBuilder) referToLocalFiles(c *service.BalancerConfig, own provision.Addresses) {
	if auth := c.Balancer.Auth; auth != nil {
		local := *auth
		local.KeysFrom = d.absoluteRef(auth.KeysFrom)
		c.Balancer.Auth = &local
	}
	tls := c.Balancer.TLS
	switch {
	case tls == nil:
	case tls.ACME == nil:
		c.Balancer.TLS = &service.TLS{Cert: d.absolutePath(tls.Cert), Key: d.absolutePath(tls.Key)}
	default:
		a := *tls.ACME
		a.Root = d.absolutePath(a.Root)
		if a.EAB != nil {
			a.EAB = &service.EAB{KeyID: a.EAB.KeyID, HMAC: d.absoluteRef(a.EAB.HMAC)}
		}
		c.Balancer.TLS = &service.TLS{ACME: &a}
		d.configureCertificate(c, own)
	}
}

// absoluteRef returns a reference of service.yaml with an absolute file path.
func (d *deploymentBuilder) absoluteRef(ref string) string {
	if path, isFile := strings.CutPrefix(ref, "file:"); isFile {
		return "file:" + d.absolutePath(path)
	}
	return ref
}

// absolutePath returns a path of service.yaml as an absolute path.
func (d *deploymentBuilder) absolutePath(p string) string {
	if p == "" || filepath.IsAbs(p) || d.BaseDir == "" {
		return p
	}
	return filepath.Join(d.BaseDir, p)
}

// configureCertificate configures how a balancer obtains the certificate of the service's name. A balancer
// without an IAM role cannot write to Route 53: it loads certificates that other balancers obtain.
func (d *deploymentBuilder) configureCertificate(c *service.BalancerConfig, own provision.Addresses) {
	c.Certificate = &service.CertificateConfig{Name: d.spec.DNS.Name, Dir: dirCertificates}
	switch {
	case d.spec.ObtainsCertificate(service.ChallengeHTTP):
		c.Certificate.Listen = own.Challenge
	case d.spec.ObtainsCertificate(service.ChallengeDNS):
		c.Certificate.Zone, c.Certificate.Private = d.spec.DNS.Zone, d.spec.DNS.Private
		c.Certificate.ZoneID, c.Certificate.Endpoint = d.Zone.ID, d.Zone.Endpoint
		c.Certificate.FollowOnly = c.Region.Cloud() == service.CloudGCP
	}
}

// addACMEFiles adds the files that a balancer needs to obtain a certificate.
func (d *deploymentBuilder) addACMEFiles(c *service.BalancerConfig, own provision.Addresses, files map[string]string) error {
	a := *c.Balancer.TLS.ACME
	c.Balancer.TLS = &service.TLS{ACME: &a}
	d.configureCertificate(c, own)
	var err error
	if a.Root != "" {
		if files[fileRoot], err = d.Secrets("file:" + a.Root); err != nil {
			return fmt.Errorf("balancer.tls.acme.root: %w", err)
		}
		a.Root = fileRoot
	}
	if a.EAB != nil {
		if files[fileEAB], err = d.Secrets(a.EAB.HMAC); err != nil {
			return fmt.Errorf("balancer.tls.acme.eab.hmac: %w", err)
		}
		a.EAB = &service.EAB{KeyID: a.EAB.KeyID, HMAC: "file:" + fileEAB}
	}
	return nil
}

// peersOf returns all other balancers. They are reached at the admin listener, which authenticates
// balancers by certificate.
func (d *deploymentBuilder) peersOf(o provision.Object) []service.PeerConfig {
	var peers []service.PeerConfig
	for _, other := range d.have {
		if other.Kind != provision.KindBalancer || other.ID == o.ID || !other.PublicIP.IsValid() {
			continue
		}
		base := AdminURL(other)
		peers = append(peers, service.PeerConfig{ID: other.ID, Region: other.Region, URL: base, Admin: base, EmulateRTT: d.emulatedRTT(o.Region, other.Region)})
	}
	return peers
}

// emulatedRTT returns the emulated round trip between regions on this computer.
func (d *deploymentBuilder) emulatedRTT(a, b service.Region) time.Duration {
	if !cloud.RunsOnThisComputer(a) || !cloud.RunsOnThisComputer(b) {
		return 0
	}
	return d.spec.LocalHosts.RTTBetween(a.ShortName(), b.ShortName())
}

// replicasOf returns a balancer's replicas: the replicas of a region are assigned to its balancers
// by number, so that none moves when another is added or removed. For machines of static regions see
// staticReplicasOf.
func (d *deploymentBuilder) replicasOf(o provision.Object) []service.ReplicaConfig {
	balancers := d.machinesOf(provision.KindBalancer, o.Region)
	position := slices.IndexFunc(balancers, func(b provision.Object) bool { return b.ID == o.ID })
	var replicas []service.ReplicaConfig
	for _, r := range d.machinesOf(provision.KindReplica, o.Region) {
		at := slices.IndexFunc(d.spec.Models, func(m service.Model) bool { return m.Name == r.Labels["model"] })
		if at < 0 || !r.PrivateIP.IsValid() || d.Draining[r.ID] {
			continue
		}
		// Adding the model's position assigns the first replicas of two models to two balancers.
		if (at+provision.ReplicaOrdinal(r.ID))%len(balancers) != position {
			continue
		}
		m := &d.spec.Models[at]
		events, replays := cacheEventsAt(&m.Engine, cloud.EndpointsOf(r))
		replicas = append(replicas, service.ReplicaConfig{
			CacheEvents: events, CacheReplays: replays,
			ID: r.ID, URL: engineURL(r), MTLS: true, Region: r.Region, APIKey: d.engineKeySource(o.Region, m.Engine.APIKey),
			Model: m.Name, Kind: m.Engine.Kind, GPU: gpuTypeOf(r), Capacity: capacityOf(r), USDPerHour: r.CostPerHour, DataParallel: m.Engine.DataParallel, MaxNumSeqs: m.Engine.MaxNumSeqs,
		})
	}
	return append(replicas, d.staticReplicasOf(o, balancers)...)
}

// gpuTypeOf returns the actual GPU of a replica. The label contains the first choice, which may have had no
// capacity.
func gpuTypeOf(o provision.Object) string {
	if o.Offering != nil && o.Offering.GPU != "" {
		return o.Offering.GPU
	}
	return o.Labels["gpu"]
}

// staticReplicasOf returns a balancer's replicas of static regions. The replicas of a region with balancers
// are distributed over them in turn; all others belong to the service's first balancer.
func (d *deploymentBuilder) staticReplicasOf(o provision.Object, balancers []provision.Object) []service.ReplicaConfig {
	var replicas []service.ReplicaConfig
	for _, region := range d.spec.Regions {
		if region.Name.Cloud() != service.CloudStatic {
			continue
		}
		first := o.ID == cloud.FirstBalancer(d.spec) && !slices.Contains(cloud.ManagedRegions(d.spec), region.Name)
		for i, r := range static.Replicas(d.spec, region) {
			own := region.Name == o.Region && balancers[i%len(balancers)].ID == o.ID
			if (first || own) && !d.Draining[r.ID] {
				r.APIKey = d.engineKeySource(o.Region, r.APIKey)
				replicas = append(replicas, r)
			}
		}
	}
	return replicas
}

// addDiscovery adds the machines of static regions that a balancer finds by itself. Every balancer of a region
// finds all of them; those of a region without balancers belong to the service's first balancer.
func (d *deploymentBuilder) addDiscovery(c *service.BalancerConfig) {
	for _, region := range d.spec.Regions {
		if region.Name.Cloud() != service.CloudStatic {
			continue
		}
		managed := slices.Contains(cloud.ManagedRegions(d.spec), region.Name)
		if region.Name != c.Region && (managed || c.ID != cloud.FirstBalancer(d.spec)) {
			continue
		}
		c.Replicas = append(c.Replicas, static.Names(d.spec, region)...)
		if region.EndpointsFile != "" {
			c.ReplicasFile = d.absolutePath(region.EndpointsFile)
		}
	}
}

// machinesOf returns the machines of a kind in a region.
func (d *deploymentBuilder) machinesOf(kind provision.ObjectKind, region service.Region) []provision.Object {
	var out []provision.Object
	for _, o := range d.have {
		if o.Kind == kind && o.Region == region {
			out = append(out, o)
		}
	}
	return out
}

// PublicURL returns the URL at which a cloud balancer serves clients.
func PublicURL(spec *service.Spec, o provision.Object) string {
	scheme := "http://"
	if spec.Balancer.TLS != nil {
		scheme = "https://"
	}
	return scheme + cloud.EndpointsOf(o).Advertised.PublicAddress(spec)
}

// AdminURL returns the URL at which a balancer serves operators and other balancers.
func AdminURL(o provision.Object) string {
	return "https://" + cloud.EndpointsOf(o).Advertised.Admin
}

// engineURL returns the URL at which a replica accepts connections of balancers.
func engineURL(o provision.Object) string {
	return "https://" + cloud.EndpointsOf(o).Listen.Replica
}

// replicaDeployment returns the deployment of a replica's machine: the engine on loopback, behind a proxy
// that accepts connections of balancers.
func (d *deploymentBuilder) replicaDeployment(o provision.Object, m *service.Model) (agent.Deployment, error) {
	at := cloud.EndpointsOf(o)
	u, base := unitOf(m, gpuCountOf(o), at)
	u.Name, u.Env, u.Image = UnitNameOf(o.Kind), m.Engine.Env, d.Images.pinned(u.Image)
	if m.Engine.Weights != "" {
		u.Weights = &agent.Weights{Source: m.Engine.Weights, MountPath: weightsPath}
	}
	ready := cmp.Or(m.Engine.Ready, "/health")
	if m.Engine.Kind == service.EngineOpenAI {
		ready = cmp.Or(m.Engine.Ready, "/v1/models")
	}
	u.ReadinessURL = base + ready
	for name, ref := range m.Secrets {
		value, err := d.Secrets(ref)
		if err != nil {
			return agent.Deployment{}, fmt.Errorf("secrets.%s: %w", name, err)
		}
		if u.Secrets == nil {
			u.Secrets = map[string]string{}
		}
		u.Secrets[name] = value
	}
	if err := d.giveEngineKey(&u, o, &m.Engine); err != nil {
		return agent.Deployment{}, err
	}
	return agent.Deployment{Units: []agent.Unit{u}, Proxy: &agent.Proxy{Listen: at.Listen.Replica, Upstream: base, ConnectTargets: cacheEventAddresses(&m.Engine, at)}}, nil
}

// capacityOf returns the capacity type of a machine; empty where it is unknown.
func capacityOf(o provision.Object) service.CapacityType {
	if o.Offering == nil {
		return ""
	}
	return o.Offering.Capacity
}

// gpuCountOf returns the number of GPUs of a machine.
func gpuCountOf(o provision.Object) int {
	if o.Offering == nil {
		return 0
	}
	return o.Offering.GPUs
}

// unitOf returns the unit of an engine on a machine with a number of GPUs, and its base URL. at
// contains the loopback address of the machine; a container has its own loopback address.
func unitOf(m *service.Model, gpus int, at provision.MachineEndpoints) (u agent.Unit, base string) {
	if at.Engine != "" { // engines on this computer share the loopback address: each has its own port, which is also its seed
		args := slices.Insert(provision.SimEngineArgs(m, at), simSeedAt, "--seed", strings.TrimLeft(at.Engine[strings.LastIndexByte(at.Engine, ':')+1:], "0"))
		return agent.Unit{Args: append([]string{program}, args...)}, "http://" + at.Engine
	}
	u, port := unitOnPort(m, gpus, at.Loopback)
	return u, "http://" + net.JoinHostPort(at.Loopback, strconv.Itoa(port))
}

// simSeedAt is the position of the seed in the arguments of a simulated engine: after its address
// and model.
const simSeedAt = 5
