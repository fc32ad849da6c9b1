package cloud

import (
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// The sizes of disks, in GiB: a balancer's disk contains its store, a replica's its container image (20
// GiB with CUDA) and the weights of models of up to 70 billion parameters.
const (
	diskBalancer = 30
	diskReplica  = 250
)

// Labels of objects that this package reads.
const (
	labelModel = "model"
	labelGPU   = "gpu"
	// labelRole is the kind of machine that a firewall or an identity is for.
	labelRole = "role"
	// labelFallbackFor is the region that a replica is a fallback for, because that region had no capacity.
	labelFallbackFor = "for"
	// labelReplaces is the handle of the terminating machine that a replica replaces.
	labelReplaces = "instead"
)

// globalPlace is the region name of a cloud's global objects.
const globalPlace = "global"

// Input is the input of Plan.
type Input struct {
	Spec *service.Spec
	// Owner is the owner of the service: provision.Desired.Owner.
	Owner string
	// Offerings are the offerings of each rented region.
	Offerings map[service.Region]provision.Offerings
	// Have are the existing objects of the service in the clouds. Replicas above replicas.min that a
	// plan or an operator added stay, because they exist.
	Have []provision.Object
	// Shortfall is how many replicas could not be launched recently for lack of capacity.
	Shortfall map[ReplicaGroup]int
	// Terminating are the replicas, by id, that their cloud is about to interrupt. Replacements with other
	// ids are added as far as replicas.max permits both.
	Terminating map[string]bool
	// Counts is the desired number of replicas of each class, within replicas.min and max, where it
	// differs from the existing replicas.
	Counts map[ReplicaGroup]provision.ClassCounts
	// ZoneID is the hosted zone of Route 53 where balancers at AWS write dns-01 challenge records;
	// empty = they write none.
	ZoneID string
	// UserData returns the cloud-init document of a machine.
	UserData func(MachineInput) (string, error)
}

// ReplicaGroup is the replicas of one model in one region.
type ReplicaGroup struct {
	Model  string
	Region service.Region
}

// MachineInput describes a machine for its cloud-init document.
type MachineInput struct {
	ID     string
	Kind   provision.ObjectKind // KindBalancer or KindReplica
	Region service.Region
	Model  *service.Model // nil for a balancer
}

// Layout is the desired state of a service in the clouds.
type Layout struct {
	Desired []provision.Desired
	// Unplaced is how many replicas no region has capacity for: Short, less the replicas in fallback
	// regions.
	Unplaced map[ReplicaGroup]int
}

// ManagedRegions returns the regions where skyserve launches the machines of a service, in the order of the
// file: all but static ones, whose machines already exist. When nothing is rented, static regions have
// their balancers on this computer and are included.
func ManagedRegions(spec *service.Spec) []service.Region {
	rents := UsesClouds(spec)
	var regions []service.Region
	for _, r := range spec.Regions {
		if r.Name.Cloud() != service.CloudStatic || !rents {
			regions = append(regions, r.Name)
		}
	}
	return regions
}

// UsesClouds reports whether a service has machines in clouds, which are billed.
func UsesClouds(spec *service.Spec) bool { return len(RentedRegions(spec)) > 0 }

// RentedRegions returns a service's regions in clouds, in the order of the file.
func RentedRegions(spec *service.Spec) []service.Region {
	var regions []service.Region
	for _, r := range spec.Regions {
		if isCloudRegion(r.Name) {
			regions = append(regions, r.Name)
		}
	}
	return regions
}

// RunsOnThisComputer reports whether the machines of a region are processes on this computer.
func RunsOnThisComputer(r service.Region) bool {
	return r.Cloud() == service.CloudLocal || r.Cloud() == service.CloudStatic
}

// Clouds returns the clouds of a service's rented regions, sorted.
func Clouds(spec *service.Spec) []string {
	var clouds []string
	for _, r := range RentedRegions(spec) {
		clouds = append(clouds, r.Cloud())
	}
	slices.Sort(clouds)
	return slices.Compact(clouds)
}

// NamedNetworks returns the networks that a service names in one cloud, by the cloud's name of the region.
// Regions with the default network are left out.
func NamedNetworks(spec *service.Spec, cloud string) map[string]provision.Network {
	networks := map[string]provision.Network{}
	for _, r := range spec.Regions {
		if r.Network != "" && r.Name.Cloud() == cloud {
			networks[r.Name.Place()] = provision.Network{Name: r.Network, Subnets: r.Subnets}
		}
	}
	return networks
}

// GoogleAccounts returns the service accounts of machines at Google, by role; empty where service.yaml names
// none.
func GoogleAccounts(spec *service.Spec) map[provision.ObjectKind]string {
	return map[provision.ObjectKind]string{provision.KindBalancer: spec.GCP.BalancerAccount, provision.KindReplica: spec.GCP.ReplicaAccount}
}

// IsSingleRegion reports whether all machines of a service are in one region of one cloud, so that balancers
// reach replicas inside its network only.
func IsSingleRegion(spec *service.Spec) bool { return len(RentedRegions(spec)) == 1 }

// ControllerMachine returns the id of the machine that runs the service's controller beside its
// balancer: the first balancer of the first region with machines.
func ControllerMachine(spec *service.Spec) string {
	return provision.BalancerID(ManagedRegions(spec)[0], 0)
}

// Validate rejects a well-formed service.yaml that cannot be applied; the error is a *provision.SpecError.
func Validate(spec *service.Spec) error {
	places := map[string]service.Region{}
	for i, r := range spec.Regions {
		if r.Name.Cloud() == service.CloudLocal && UsesClouds(spec) {
			return specError("regions[%d].name: %s is a region on this machine, which machines in a cloud cannot reach: remove it or the cloud regions", i, r.Name)
		}
		if other, taken := places[r.Name.Place()]; taken {
			return specError("regions[%d].name: machine ids contain only the place, and %s and %s have the same place %q", i, r.Name, other, r.Name.Place())
		}
		places[r.Name.Place()] = r.Name
	}
	if !UsesClouds(spec) {
		return checkLocal(spec)
	}
	if spec.Balancer.Auth == nil {
		return specError("balancer.auth: missing: balancers in a cloud are reachable from the internet and require API keys")
	}
	if spec.DNS != nil && spec.DNS.Provider != service.DNSRoute53 {
		return specError("dns.provider: %s runs on this machine; a service in clouds requires route53", spec.DNS.Provider)
	}
	for i, m := range spec.Models {
		if len(m.GPUs) == 0 && m.Engine.Kind != service.EngineSim {
			return specError("models[%d].gpus: missing: a replica of %s in a cloud requires a GPU", i, m.Name)
		}
		if m.Engine.Kind == service.EngineOpenAI && m.Engine.Image == "" {
			return specError("models[%d].engine.image: missing: an engine of kind openai in a cloud requires a container image", i)
		}
	}
	return nil
}

// checkLocal rejects what this computer cannot run.
func checkLocal(spec *service.Spec) error {
	for i, r := range spec.Regions {
		for j, m := range spec.Models {
			if r.Name.Cloud() == service.CloudLocal && m.Engine.Kind != service.EngineSim && spec.BoundsFor(m.Name, r.Name).Max > 0 {
				return specError("models[%d].engine.kind: must be %q in the local region %s, got %q", j, service.EngineSim, spec.Regions[i].Name, m.Engine.Kind)
			}
		}
	}
	return nil
}

func specError(format string, args ...any) error {
	return &provision.SpecError{Err: fmt.Errorf(format, args...)}
}

// BuildLayout computes the desired state of a service in the clouds. Errors concern the configuration
// (*provision.SpecError), including regions without any offering for a model.
func BuildLayout(in Input) (*Layout, error) {
	if err := Validate(in.Spec); err != nil {
		return nil, err
	}
	l := &layout{Input: in, result: &Layout{Unplaced: map[ReplicaGroup]int{}}, unusedReserved: unusedReservations(in.Spec, in.Have)}
	for _, cloud := range Clouds(in.Spec) {
		if err := l.addPrerequisites(cloud); err != nil {
			return nil, err
		}
	}
	for _, r := range in.Spec.Regions {
		if !slices.Contains(ManagedRegions(in.Spec), r.Name) {
			continue
		}
		for n := range r.Balancers {
			if err := l.addBalancer(r, n); err != nil {
				return nil, err
			}
		}
	}
	for i := range in.Spec.Models {
		if err := l.addReplicas(i); err != nil {
			return nil, err
		}
	}
	return l.result, l.addNameServer()
}

func isCloudRegion(r service.Region) bool {
	return r.Cloud() == service.CloudAWS || r.Cloud() == service.CloudGCP
}

// layout is the state of one call of Plan.
type layout struct {
	Input
	result         *Layout
	unusedReserved map[reservedKey]int // how many machines of each commitment are unused
}

// addPrerequisites adds the prerequisites of the machines in a cloud.
func (l *layout) addPrerequisites(cloud string) error {
	global := service.Region(cloud + "/" + globalPlace)
	sessions := l.sessionGrants(cloud)
	balancers := slices.Concat([]provision.Grant{provision.GrantOperate}, l.challengeGrants(cloud), sessions)
	for role, grants := range map[provision.ObjectKind][]provision.Grant{provision.KindBalancer: balancers, provision.KindReplica: append(l.readGrants(cloud), sessions...)} {
		w := provision.Desired{ID: fmt.Sprintf("identity-%s-%s", cloud, role), Kind: provision.KindIdentity, Region: global, Grants: grants}
		if err := l.addObject(w, role, grants); err != nil {
			return err
		}
	}
	for _, r := range l.Spec.Regions {
		if r.Name.Cloud() != cloud {
			continue
		}
		for role, rules := range map[provision.ObjectKind][]provision.FirewallRule{provision.KindBalancer: l.balancerRules(), provision.KindReplica: replicaRules} {
			w := provision.Desired{ID: fmt.Sprintf("firewall-%s-%s", r.Name.Place(), role), Kind: provision.KindFirewall, Region: r.Name, Rules: rules}
			if err := l.addObject(w, role, rules); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(l.result.Desired, func(a, b provision.Desired) int { return strings.Compare(a.ID, b.ID) })
	return nil
}

// sessionGrants returns a grant for each region of a cloud whose machines allow shell sessions.
func (l *layout) sessionGrants(cloud string) []provision.Grant {
	var grants []provision.Grant
	for _, r := range l.Spec.Regions {
		if r.Access == service.AccessSSM && r.Name.Cloud() == cloud {
			grants = append(grants, provision.GrantSession(r.Name.Place()))
		}
	}
	return grants
}

// challengeGrants returns the grant for the dns-01 challenge record of the service's name.
func (l *layout) challengeGrants(cloud string) []provision.Grant {
	if cloud != service.CloudAWS || l.ZoneID == "" || !l.Spec.ObtainsCertificate(service.ChallengeDNS) {
		return nil
	}
	return []provision.Grant{provision.GrantChallenge(l.ZoneID, l.Spec.DNS.Name)}
}

// readGrants returns the grants for the buckets from which replicas in a cloud fetch model weights.
func (l *layout) readGrants(cloud string) []provision.Grant {
	var grants []provision.Grant
	for _, m := range l.Spec.Models {
		folder, has := strings.CutPrefix(m.Engine.Weights, "s3://")
		if g := provision.GrantRead(folder); has && cloud == service.CloudAWS && !slices.Contains(grants, g) {
			grants = append(grants, g)
		}
	}
	return grants
}

// replicaRules admit balancers: to the engine, and to the agent, to deliver the configuration.
var replicaRules = []provision.FirewallRule{{Port: PortAgent, From: provision.FromBalancers}, {Port: PortEngine, From: provision.FromBalancers}}

// balancerRules admit clients, and holders of certificates of the service.
func (l *layout) balancerRules() []provision.FirewallRule {
	rules := []provision.FirewallRule{
		{Port: PublicPort(l.Spec), From: provision.FromWorld},
		{Port: PortAdmin, From: provision.FromWorld},
		{Port: PortAgent, From: provision.FromWorld},
	}
	if l.Spec.Store.URL == "" {
		rules = append(rules, provision.FirewallRule{Port: PortStore, From: provision.FromWorld})
	}
	if l.Spec.ObtainsCertificate(service.ChallengeHTTP) {
		rules = append(rules, provision.FirewallRule{Port: PortChallenge, From: provision.FromWorld})
	}
	return rules
}

// addBalancer adds the machine of one balancer. It is never spot: an interruption would end its
// streams.
func (l *layout) addBalancer(r service.RegionSpec, n int) error {
	offers := l.Offerings[r.Name].WithGPU("", 0).SortedByCapacity([]service.CapacityType{service.CapacityOnDemand})
	if len(offers) == 0 {
		return specError("regions: %s has no offering for a balancer", r.Name)
	}
	id := provision.BalancerID(r.Name, n)
	return l.addMachine(MachineInput{ID: id, Kind: provision.KindBalancer, Region: r.Name}, offers, diskBalancer, nil)
}

// addNameServer adds the machine that serves DNS for the service's name, unless a hosted zone does. It
// is a machine of its own, so that DNS keeps working when balancers or the controller fail.
func (l *layout) addNameServer() error {
	if d := l.Spec.DNS; d == nil || d.Provider != service.DNSEmbedded {
		return nil
	}
	n := MachineInput{ID: provision.NameServerID, Kind: provision.KindNameServer, Region: ManagedRegions(l.Spec)[0]}
	offers := l.Offerings[n.Region].WithGPU("", 0).SortedByCapacity([]service.CapacityType{service.CapacityOnDemand})
	if len(offers) == 0 {
		return specError("dns.provider: %s has no offering for a name server", n.Region)
	}
	return l.addMachine(n, offers, diskBalancer, map[string]string{labelName: l.Spec.DNS.Listen})
}

// labelName is where a name server listens, host:port.
const labelName = "dns"

// addMachine adds a VM. Its setup at launch decides whether it has to be replaced; configuration that
// is delivered later does not, nor does its offering.
func (l *layout) addMachine(n MachineInput, offers provision.Offerings, disk int, labels map[string]string) error {
	text, err := l.UserData(n)
	if err != nil {
		return fmt.Errorf("writing the cloud-init document of %s: %w", n.ID, err)
	}
	w := provision.Desired{
		ID: n.ID, Kind: n.Kind, Region: n.Region, Labels: labels,
		Offerings: offers, CostPerHour: offers[0].PricePerHour,
		Machine: &provision.MachineConfig{Role: n.Kind, UserData: text, DiskGiB: disk},
	}
	if n.Region.Cloud() == service.CloudGCP {
		w.Machine.Account = GoogleAccounts(l.Spec)[n.Kind]
	}
	return l.addObject(w, n.Kind, w.Machine)
}

// addObject adds an object; a change of identity requires another object. So does another network: an object
// cannot move between networks.
func (l *layout) addObject(w provision.Desired, role provision.ObjectKind, identity any) error {
	if n, named := NamedNetworks(l.Spec, w.Region.Cloud())[w.Region.Place()]; named {
		identity = []any{identity, n.Name}
	}
	spec, err := provision.ConfigHash(identity)
	if err != nil {
		return fmt.Errorf("describing %s: %w", w.ID, err)
	}
	w.Service, w.Owner, w.SpecHash = l.Spec.Name, l.Owner, spec
	if w.Labels == nil {
		w.Labels = map[string]string{}
	}
	w.Labels[labelRole] = string(role)
	l.result.Desired = append(l.result.Desired, w)
	return nil
}
