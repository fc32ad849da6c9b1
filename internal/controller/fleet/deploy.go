package fleet

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

// Ports of engines where service.yaml does not name others; images.go has their images.
const (
	portVLLM   = 8000
	portSGLang = 30000
	// cacheHub is where the containers keep what they download from the hub.
	cacheHub = "/root/.cache/huggingface"
	// weightsPath is where they find the weights that came from a bucket.
	weightsPath = "/weights"
)

// program is skyserve on a machine in a cloud, found by its PATH.
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
	// dirCertificates is where a balancer keeps the certificate that was obtained.
	dirCertificates = "balancer/certificates"
)

// Secrets reads what env:NAME or file:PATH of service.yaml refers to on this machine.
type Secrets func(ref string) (string, error)

// LocalSecrets reads the environment and the files of this machine. Errors name the
// reference and never a value.
func LocalSecrets(ref string) (string, error) {
	if name, ok := strings.CutPrefix(ref, "env:"); ok {
		value, isSet := os.LookupEnv(name)
		if !isSet {
			return "", fmt.Errorf("reading %s: the environment has no %s", ref, name)
		}
		return value, nil
	}
	text, err := os.ReadFile(strings.TrimPrefix(ref, "file:"))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", ref, err)
	}
	return strings.TrimSuffix(string(text), "\n"), nil
}

// Content is what deployments are made from.
type Content struct {
	Spec *service.Spec
	// Text is the service.yaml that Spec was read from.
	Text []byte
	// Secrets reads what it refers to.
	Secrets Secrets
	// PeerToken seeds what balancers share of prefixes: the same for all of a service.
	PeerToken string
	// Bundle is what the machine of the controller is handed; nil = the service has none.
	Bundle *Bundle
	// Zone is the hosted zone that challenges of an authority are written into; zero = none is.
	Zone HostedZone
	// Base is the directory that relative paths of service.yaml are below, for balancers on this
	// computer.
	Base string
	// AdminToken opens the admin APIs of balancers on this computer to who speaks plain HTTP;
	// empty leaves them to all of its users.
	AdminToken string
	// Enrolled are the balancers' machines that operators launched, by id as their clouds call
	// them: what else claims to be one is left out. nil = nothing is.
	Enrolled map[string][]string
	// Leaving are the replicas, by id, that balancers are to use no more.
	Leaving map[string]bool
}

// HostedZone is a zone of Route 53 as balancers reach it.
type HostedZone struct {
	ID string `json:"id,omitempty"`
	// Endpoint is Route 53's base URL; empty = AWS's.
	Endpoint string `json:"endpoint,omitempty"`
}

// Deployments says what each machine of a service is to run, by its id; have is the
// machines with their addresses. A machine without an address is left out, of its own
// deployment and of others', and so is a replica of a model that the file no longer has.
// The revision of a balancer's machine begins with the edition
// of the content, by which controllers that hold another one know to keep off: see Handover.Tend.
func Deployments(c Content, have []provision.Object) (map[string]agent.Deployment, error) {
	d := &deployer{Content: c, spec: c.Spec}
	for _, o := range have {
		// A machine of this computer that died starts again where it was: until then the others
		// wait for it, rather than forget it and whatever it serves.
		stays := o.Gone == "" || cloud.IsHere(o.Region)
		if stays && o.PrivateIP.IsValid() && c.trusts(o) {
			d.have = append(d.have, o)
		}
	}
	slices.SortFunc(d.have, func(a, b provision.Object) int { return cmp.Compare(a.ID, b.ID) })
	edition, err := c.edition()
	if err != nil {
		return nil, fmt.Errorf("saying what machines are to run: %w", err)
	}
	all := map[string]agent.Deployment{}
	for _, o := range d.have {
		var one agent.Deployment
		switch o.Kind {
		case provision.KindBalancer:
			one, err = d.balancer(o)
			one.Revision = edition + "."
		case provision.KindReplica:
			m := c.Spec.ModelByName(o.Labels["model"])
			if m == nil {
				continue // of a model that the file no longer has: it is about to go
			}
			one, err = d.replica(o, m)
		case provision.KindNameServer:
			if d := c.Spec.DNS; d == nil || d.Provider != service.DNSEmbedded {
				continue // it is about to go
			}
			one, err = d.nameServer()
		case provision.KindController, provision.KindFirewall, provision.KindIdentity:
			continue
		}
		var hash string
		if err == nil {
			hash, err = provision.HashOf(one)
		}
		if err != nil {
			return nil, fmt.Errorf("saying what %s is to run: %w", o.ID, err)
		}
		one.Revision += hash
		all[o.ID] = one
	}
	return all, nil
}

// trusts says whether a machine is what it claims to be, as far as that shows.
func (c Content) trusts(o provision.Object) bool {
	if o.Kind != provision.KindBalancer {
		return !provision.IsBalancerID(o.ID)
	}
	return c.Enrolled == nil || slices.Contains(c.Enrolled[o.ID], o.Handle)
}

// deployer is one run of Deployments.
type deployer struct {
	Content
	spec *service.Spec
	have []provision.Object
}

// UnitOf is what a machine of a kind calls the unit that it is for.
func UnitOf(k provision.Kind) string {
	switch k {
	case provision.KindBalancer:
		return "balancer"
	case provision.KindNameServer:
		return UnitNameServer
	}
	return "engine"
}

// balancer is the deployment of a balancer's machine.
func (d *deployer) balancer(o provision.Object) (agent.Deployment, error) {
	files := map[string]string{fileService: string(d.Text)}
	own := cloud.EndpointsOf(o).Inside
	c := service.BalancerConfig{
		Service: d.spec.Name, ID: o.ID, Region: o.Region,
		Listen: own.PublicFor(d.spec), Admin: own.Admin,
		Identity: &service.Identity{Cert: agent.FileCert, Key: agent.FileKey, CA: agent.FileCA, Revoked: agent.FileRevoked},
		Balancer: d.spec.Balancer, SpecFile: fileService, PeerToken: d.PeerToken,
		Replicas: d.replicasOf(o), Peers: d.peersOf(o), AdminPlain: cloud.IsHere(o.Region), AdminToken: d.AdminToken,
	}
	for _, m := range d.spec.Models {
		c.Models = append(c.Models, service.BalancerModel{Name: m.Name, Aliases: m.Aliases, LoRA: m.Engine.Adapters(), SLO: m.SLO})
	}
	d.useStore(&c)
	if err := d.bring(&c, own, files); err != nil {
		return agent.Deployment{}, err
	}
	fixed, err := provision.HashOf(c.Fixed())
	if err != nil {
		return agent.Deployment{}, err
	}
	config, err := yaml.Marshal(c)
	if err != nil {
		return agent.Deployment{}, err
	}
	files[fileConfig] = string(config)
	units := []agent.Unit{{Name: UnitOf(o.Kind), Args: []string{program, "lb", "--config", fileConfig}, Files: files, Fixed: fixed, Memory: int64(d.spec.Balancer.Memory.Total)}}
	if machine := d.controllerMachine(); machine != nil && machine.ID == o.ID {
		u, err := d.controller(o)
		if err != nil {
			return agent.Deployment{}, err
		}
		units = append(units, u)
	}
	return agent.Deployment{Units: units, Cloud: d.actsIn(o.Region.Cloud())}, nil
}

// actsIn is how a balancer acts in its cloud for the controller; nil where that does so itself,
// being there, or where there is none.
func (d *deployer) actsIn(name string) *agent.Cloud {
	if d.Bundle == nil || name == homeCloud(d.spec) || cloud.IsHere(service.Region(name+"/")) {
		return nil
	}
	c := &agent.Cloud{Means: d.Bundle.Means}
	for _, r := range cloud.Regions(d.spec) {
		if r.Cloud() == name {
			c.Regions = append(c.Regions, string(r))
		}
	}
	return c
}

// bring puts the secrets that a balancer's configuration refers to beside it.
func (d *deployer) bring(c *service.BalancerConfig, own provision.Addresses, files map[string]string) error {
	if cloud.IsHere(c.Region) {
		d.refer(c, own)
		return nil
	}
	if auth := c.Balancer.Auth; auth != nil {
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
		return d.bringACME(c, own, files)
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

// refer lets a balancer on this computer read the files that service.yaml names where they are, so
// that it takes them up when they change.
func (d *deployer) refer(c *service.BalancerConfig, own provision.Addresses) {
	if auth := c.Balancer.Auth; auth != nil {
		there := *auth
		there.KeysFrom = d.there(auth.KeysFrom)
		c.Balancer.Auth = &there
	}
	tls := c.Balancer.TLS
	switch {
	case tls == nil:
	case tls.ACME == nil:
		c.Balancer.TLS = &service.TLS{Cert: d.path(tls.Cert), Key: d.path(tls.Key)}
	default:
		a := *tls.ACME
		a.Root = d.path(a.Root)
		if a.EAB != nil {
			a.EAB = &service.EAB{KeyID: a.EAB.KeyID, HMAC: d.there(a.EAB.HMAC)}
		}
		c.Balancer.TLS = &service.TLS{ACME: &a}
		d.obtain(c, own)
	}
}

// there is a reference of service.yaml with the whole path of its file.
func (d *deployer) there(ref string) string {
	if path, isFile := strings.CutPrefix(ref, "file:"); isFile {
		return "file:" + d.path(path)
	}
	return ref
}

// path is a path of service.yaml as a whole one.
func (d *deployer) path(p string) string {
	if p == "" || filepath.IsAbs(p) || d.Base == "" {
		return p
	}
	return filepath.Join(d.Base, p)
}

// obtain says how a balancer obtains the certificate of the service's name. One whose machine has
// no identity at AWS cannot write to Route 53: it takes up what others obtain.
func (d *deployer) obtain(c *service.BalancerConfig, own provision.Addresses) {
	c.Certificate = &service.CertificateConfig{Name: d.spec.DNS.Name, Dir: dirCertificates}
	switch {
	case d.spec.Obtains(service.ChallengeHTTP):
		c.Certificate.Listen = own.Challenge
	case d.spec.Obtains(service.ChallengeDNS):
		c.Certificate.Zone, c.Certificate.Private = d.spec.DNS.Zone, d.spec.DNS.Private
		c.Certificate.ZoneID, c.Certificate.Endpoint = d.Zone.ID, d.Zone.Endpoint
		c.Certificate.FollowOnly = c.Region.Cloud() == service.CloudGCP
	}
}

// bringACME puts what it takes to obtain a certificate beside a balancer's configuration.
func (d *deployer) bringACME(c *service.BalancerConfig, own provision.Addresses, files map[string]string) error {
	a := *c.Balancer.TLS.ACME
	c.Balancer.TLS = &service.TLS{ACME: &a}
	d.obtain(c, own)
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

// peersOf are all other balancers. They are reached by the admin listener, which knows
// balancers of the service by their certificates.
func (d *deployer) peersOf(o provision.Object) []service.PeerConfig {
	var peers []service.PeerConfig
	for _, other := range d.have {
		if other.Kind != provision.KindBalancer || other.ID == o.ID || !other.PublicIP.IsValid() {
			continue
		}
		base := AdminURL(other)
		peers = append(peers, service.PeerConfig{ID: other.ID, Region: other.Region, URL: base, Admin: base, EmulateRTT: d.distance(o.Region, other.Region)})
	}
	return peers
}

// distance is the round trip that is emulated between regions on this computer.
func (d *deployer) distance(a, b service.Region) time.Duration {
	if !cloud.IsHere(a) || !cloud.IsHere(b) {
		return 0
	}
	return d.spec.LocalHosts.RTTBetween(a.Place(), b.Place())
}

// replicasOf are the replicas of a balancer's region that are its own: they are dealt
// out to the balancers of a region by their numbers, so that none moves when another comes
// or goes. Machines of static regions belong to the first balancer of all.
func (d *deployer) replicasOf(o provision.Object) []service.ReplicaConfig {
	balancers := d.of(provision.KindBalancer, o.Region)
	turn := slices.IndexFunc(balancers, func(b provision.Object) bool { return b.ID == o.ID })
	var replicas []service.ReplicaConfig
	for _, r := range d.of(provision.KindReplica, o.Region) {
		at := slices.IndexFunc(d.spec.Models, func(m service.Model) bool { return m.Name == r.Labels["model"] })
		if at < 0 || !r.PrivateIP.IsValid() || d.Leaving[r.ID] {
			continue
		}
		// The first replicas of two models are of two balancers.
		if (at+provision.ReplicaNumber(r.ID))%len(balancers) != turn {
			continue
		}
		m := &d.spec.Models[at]
		replicas = append(replicas, service.ReplicaConfig{
			ID: r.ID, URL: engineURL(r), MTLS: true, Region: r.Region,
			Model: m.Name, Kind: m.Engine.Kind, GPU: gpuOf(r), Capacity: capacityOf(r), USDPerHour: r.CostPerHour, DataParallel: m.Engine.DataParallel, MaxNumSeqs: m.Engine.MaxNumSeqs,
		})
	}
	return append(replicas, d.attachedTo(o, balancers)...)
}

// gpuOf is the GPU of a replica: the one that it got, which need not be the one that was tried
// first and that its label names.
func gpuOf(o provision.Object) string {
	if o.Offering != nil && o.Offering.GPU != "" {
		return o.Offering.GPU
	}
	return o.Labels["gpu"]
}

// attachedTo are the replicas of static regions that are a balancer's: those of its own region
// dealt out in turn, and of regions without balancers all to the first balancer of the service.
func (d *deployer) attachedTo(o provision.Object, beside []provision.Object) []service.ReplicaConfig {
	var replicas []service.ReplicaConfig
	for _, region := range d.spec.Regions {
		if region.Name.Cloud() != service.CloudStatic {
			continue
		}
		first := o.ID == cloud.ControllerMachine(d.spec) && !slices.Contains(cloud.Regions(d.spec), region.Name)
		for i, r := range static.Replicas(d.spec, region) {
			own := region.Name == o.Region && beside[i%len(beside)].ID == o.ID
			if (first || own) && !d.Leaving[r.ID] {
				replicas = append(replicas, r)
			}
		}
	}
	return replicas
}

// of are the machines of a kind in a region.
func (d *deployer) of(kind provision.Kind, region service.Region) []provision.Object {
	var out []provision.Object
	for _, o := range d.have {
		if o.Kind == kind && o.Region == region {
			out = append(out, o)
		}
	}
	return out
}

// PublicURL is where a balancer in a cloud answers clients.
func PublicURL(spec *service.Spec, o provision.Object) string {
	scheme := "http://"
	if spec.Balancer.TLS != nil {
		scheme = "https://"
	}
	return scheme + cloud.EndpointsOf(o).Outside.PublicFor(spec)
}

// AdminURL is where it answers operators and other balancers.
func AdminURL(o provision.Object) string {
	return "https://" + cloud.EndpointsOf(o).Outside.Admin
}

// engineURL is where a replica lets balancers in.
func engineURL(o provision.Object) string {
	return "https://" + cloud.EndpointsOf(o).Inside.Engine
}

// replica is the deployment of a replica's machine: the engine on loopback, and in front
// of it a listener that lets balancers in.
func (d *deployer) replica(o provision.Object, m *service.Model) (agent.Deployment, error) {
	at := cloud.EndpointsOf(o)
	u, base := unitOf(m, gpusOf(o), at)
	u.Name, u.Env = UnitOf(o.Kind), m.Engine.Env
	if m.Engine.Weights != "" {
		u.Weights = &agent.Weights{From: m.Engine.Weights, To: weightsPath}
	}
	ready := cmp.Or(m.Engine.Ready, "/health")
	if m.Engine.Kind == service.EngineOpenAI {
		ready = cmp.Or(m.Engine.Ready, "/v1/models")
	}
	u.Ready = base + ready
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
	return agent.Deployment{Units: []agent.Unit{u}, Front: &agent.Front{Listen: at.Inside.Engine, To: base}}, nil
}

// capacityOf is how a machine is paid for; empty where that is not known.
func capacityOf(o provision.Object) service.CapacityType {
	if o.Offering == nil {
		return ""
	}
	return o.Offering.Capacity
}

// gpusOf is how many GPUs a machine has.
func gpusOf(o provision.Object) int {
	if o.Offering == nil {
		return 0
	}
	return o.Offering.GPUs
}

// imageOf is the container image of an engine; empty where it runs in none.
func imageOf(e *service.Engine) string {
	switch e.Kind {
	case service.EngineVLLM:
		return cmp.Or(e.Image, imageVLLM)
	case service.EngineSGLang:
		return cmp.Or(e.Image, imageSGLang)
	case service.EngineOpenAI:
		return e.Image
	case service.EngineSim:
	}
	return ""
}

// unitOf is how an engine is started on a machine with so many GPUs, and the port that
// it listens on. host is the machine's loopback address; containers have their own.
func unitOf(m *service.Model, gpus int, at provision.Endpoints) (u agent.Unit, base string) {
	if at.Engine != "" { // several share the loopback address
		args := slices.Insert(provision.SimArgs(m, at.Engine), simSeedAt, "--seed", strings.TrimLeft(at.Engine[strings.LastIndexByte(at.Engine, ':')+1:], "0"))
		return agent.Unit{Args: append([]string{program}, args...)}, "http://" + at.Engine
	}
	u, port := unitOnPort(m, gpus, at.Loopback)
	return u, "http://" + net.JoinHostPort(at.Loopback, strconv.Itoa(port))
}

// simSeedAt is where the seed stands among the arguments of a simulated engine: after its address
// and model.
const simSeedAt = 5

// unitOnPort is unitOf where the engine has its usual port.
func unitOnPort(m *service.Model, gpus int, host string) (agent.Unit, int) {
	e, path := &m.Engine, m.Name
	if e.Weights != "" {
		path = weightsPath
	}
	var args []string
	option := func(isSet bool, words ...string) {
		if isSet {
			args = append(args, words...)
		}
	}
	switch e.Kind {
	case service.EngineSim:
		port := cmp.Or(e.Port, portVLLM)
		args = append(args, program)
		return agent.Unit{Args: append(args, provision.SimArgs(m, net.JoinHostPort(host, strconv.Itoa(port)))...)}, port
	case service.EngineSGLang:
		port := cmp.Or(e.Port, portSGLang)
		args = []string{"python3", "-m", "sglang.launch_server", "--model-path", path, "--host", "0.0.0.0", "--port", strconv.Itoa(port), "--enable-metrics"}
		option(e.Weights != "", "--served-model-name", m.Name)
		option(gpus > 1 && e.DataParallel <= 1, "--tp-size", strconv.Itoa(gpus))
		option(e.DataParallel > 1, "--dp-size", strconv.Itoa(e.DataParallel))
		option(e.MaxNumSeqs > 0, "--max-running-requests", strconv.Itoa(e.MaxNumSeqs))
		option(len(e.LoRA) > 0, append([]string{"--lora-paths"}, e.LoRA...)...)
		return agent.Unit{Image: imageOf(e), Args: append(args, e.Args...), Port: port, GPUs: gpus > 0, Cache: cacheHub}, port
	case service.EngineVLLM:
		port := cmp.Or(e.Port, portVLLM)
		args = []string{"--model", path, "--port", strconv.Itoa(port)}
		option(e.Weights != "", "--served-model-name", m.Name)
		option(gpus > 1 && e.DataParallel <= 1, "--tensor-parallel-size", strconv.Itoa(gpus))
		option(e.DataParallel > 1, "--data-parallel-size", strconv.Itoa(e.DataParallel))
		option(e.MaxNumSeqs > 0, "--max-num-seqs", strconv.Itoa(e.MaxNumSeqs))
		option(len(e.LoRA) > 0, append([]string{"--enable-lora", "--lora-modules"}, e.LoRA...)...)
		return agent.Unit{Image: imageOf(e), Args: append(args, e.Args...), Port: port, GPUs: gpus > 0, Cache: cacheHub}, port
	case service.EngineOpenAI:
	}
	port := cmp.Or(e.Port, portVLLM)
	return agent.Unit{Image: imageOf(e), Args: e.Args, Port: port, GPUs: gpus > 0, Cache: cacheHub}, port
}
