package cloud

import (
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// The sizes of disks, in GiB: a balancer holds its store, a replica its container
// image (20 GiB with CUDA) and the weights of models of up to 70 billion parameters.
const (
	diskBalancer = 30
	diskReplica  = 250
)

// Labels of objects that this package reads back.
const (
	labelModel = "model"
	labelGPU   = "gpu"
	// labelRole says whose machines a firewall or an identity is for.
	labelRole = "role"
	// labelFor is the region that a replica stands in for, because that one had no
	// capacity.
	labelFor = "for"
	// labelInstead is the handle of the machine that a replica was launched in the place
	// of while that one was going.
	labelInstead = "instead"
)

// globalPlace stands for all regions of a cloud in the region of what has none.
const globalPlace = "global"

// Input is what a layout is made from.
type Input struct {
	Spec *service.Spec
	// Owner is whose service it is: provision.Want.Owner.
	Owner string
	// Offers is what each rented region has.
	Offers map[service.Region]provision.Offerings
	// Have is what exists of the service in the clouds. Replicas above replicas.min
	// that a plan or an operator added stay, because they exist.
	Have []provision.Object
	// Short is how many replicas could not be had a moment ago.
	Short map[Group]int
	// Going are the replicas, by id, that their cloud is about to take: others are wanted
	// in their place as far as replicas.max leaves room beside them, under other ids.
	Going map[string]bool
	// Counts is how many replicas are wanted on what, within replicas.min and max, where
	// that is not what exists.
	Counts map[Group]provision.Counts
	// ZoneID is the hosted zone of Route 53 that machines of balancers at AWS write challenges
	// of an authority into; empty = they write none.
	ZoneID string
	// UserData is the cloud-init document of a machine.
	UserData func(Node) (string, error)
}

// Group is the replicas of one model in one region.
type Group struct {
	Model  string
	Region service.Region
}

// Node is a machine as its cloud-init document needs to know it.
type Node struct {
	ID     string
	Kind   provision.Kind // KindBalancer or KindReplica
	Region service.Region
	Model  *service.Model // nil for a balancer
}

// Layout is a service as it should be in the clouds.
type Layout struct {
	Wants []provision.Want
	// Missing is how many replicas no region has room for: what Short says, less
	// what stands elsewhere.
	Missing map[Group]int
}

// Regions are a service's regions with machines of its own, in the order of the file: all but
// static ones, whose machines are there already. Where nothing is rented these have balancers on
// this computer.
func Regions(spec *service.Spec) []service.Region {
	rents := Rents(spec)
	var regions []service.Region
	for _, r := range spec.Regions {
		if r.Name.Cloud() != service.CloudStatic || !rents {
			regions = append(regions, r.Name)
		}
	}
	return regions
}

// Rents says whether a service has machines in clouds, which are billed.
func Rents(spec *service.Spec) bool { return len(Rented(spec)) > 0 }

// Rented are a service's regions in clouds, in the order of the file.
func Rented(spec *service.Spec) []service.Region {
	var regions []service.Region
	for _, r := range spec.Regions {
		if rented(r.Name) {
			regions = append(regions, r.Name)
		}
	}
	return regions
}

// IsHere says whether the machines of a region are processes of this computer.
func IsHere(r service.Region) bool {
	return r.Cloud() == service.CloudLocal || r.Cloud() == service.CloudStatic
}

// Clouds are the clouds of a service's rented regions, sorted.
func Clouds(spec *service.Spec) []string {
	var clouds []string
	for _, r := range Rented(spec) {
		clouds = append(clouds, r.Cloud())
	}
	slices.Sort(clouds)
	return slices.Compact(clouds)
}

// Networks are those that a service names for the regions of one cloud, by what that cloud
// calls the region. Regions with the default network have none.
func Networks(spec *service.Spec, cloud string) map[string]provision.Network {
	networks := map[string]provision.Network{}
	for _, r := range spec.Regions {
		if r.Network != "" && r.Name.Cloud() == cloud {
			networks[r.Name.Place()] = provision.Network{Name: r.Network, Subnets: r.Subnets}
		}
	}
	return networks
}

// Accounts are the service accounts that machines at Google run as, by role; none where
// service.yaml names none.
func Accounts(spec *service.Spec) map[provision.Kind]string {
	return map[provision.Kind]string{provision.KindBalancer: spec.GCP.BalancerAccount, provision.KindReplica: spec.GCP.ReplicaAccount}
}

// OneRegion says whether all machines of a service are in one region of one cloud, so that
// balancers reach replicas inside of its network alone.
func OneRegion(spec *service.Spec) bool { return len(Rented(spec)) == 1 }

// ControllerMachine is the id of the machine that the controller of a service runs on
// beside its balancer: the first balancer's of the first region with machines.
func ControllerMachine(spec *service.Spec) string {
	return provision.BalancerID(Regions(spec)[0], 0)
}

// Check refuses what cannot be carried out in clouds although the file is well
// formed; the error is a *provision.SpecError.
func Check(spec *service.Spec) error {
	places := map[string]service.Region{}
	for i, r := range spec.Regions {
		if r.Name.Cloud() == service.CloudLocal && Rents(spec) {
			return specError("regions[%d].name: %s stands for a region on this machine and cannot be beside regions of a cloud: nobody there reaches it", i, r.Name)
		}
		if other, taken := places[r.Name.Place()]; taken {
			return specError("regions[%d].name: %s and %s are both called %q in ids", i, r.Name, other, r.Name.Place())
		}
		places[r.Name.Place()] = r.Name
	}
	if !Rents(spec) {
		return checkHere(spec)
	}
	if spec.Balancer.Auth == nil {
		return specError("balancer.auth: missing: balancers in a cloud are open to the world, and want API keys")
	}
	if spec.DNS != nil && spec.DNS.Provider != service.DNSRoute53 {
		return specError("dns.provider: %s answers on this machine; a service in clouds needs route53", spec.DNS.Provider)
	}
	for i, m := range spec.Models {
		if len(m.GPUs) == 0 && m.Engine.Kind != service.EngineSim {
			return specError("models[%d].gpus: missing: which GPU does a replica of %s run on?", i, m.Name)
		}
		if m.Engine.Kind == service.EngineOpenAI && m.Engine.Image == "" {
			return specError("models[%d].engine.image: missing: an engine of kind openai in a cloud is a container of yours", i)
		}
	}
	return nil
}

// checkHere refuses what this computer cannot provide.
func checkHere(spec *service.Spec) error {
	for i, r := range spec.Regions {
		for j, m := range spec.Models {
			if r.Name.Cloud() == service.CloudLocal && m.Engine.Kind != service.EngineSim && spec.BoundsFor(m.Name, r.Name).Max > 0 {
				return specError("models[%d].engine.kind: region %s is local and runs simulated engines only, got %q", j, spec.Regions[i].Name, m.Engine.Kind)
			}
		}
	}
	return nil
}

func specError(format string, args ...any) error {
	return &provision.SpecError{Err: fmt.Errorf(format, args...)}
}

// Plan says what a service asks for in the clouds. Errors are of configuration
// (*provision.SpecError): regions that offer nothing of what a model runs on among them.
func Plan(in Input) (*Layout, error) {
	if err := Check(in.Spec); err != nil {
		return nil, err
	}
	l := &layout{Input: in, layout: &Layout{Missing: map[Group]int{}}, reserved: reservations(in.Spec, in.Have)}
	for _, cloud := range Clouds(in.Spec) {
		if err := l.addFoundation(cloud); err != nil {
			return nil, err
		}
	}
	for _, r := range in.Spec.Regions {
		if !slices.Contains(Regions(in.Spec), r.Name) {
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
	return l.layout, l.addNameServer()
}

func rented(r service.Region) bool {
	return r.Cloud() == service.CloudAWS || r.Cloud() == service.CloudGCP
}

// layout is one run of Plan.
type layout struct {
	Input
	layout   *Layout
	reserved map[reservedKey]int // how many of each commitment are free
}

// addFoundation wants what the machines of a cloud stand on.
func (l *layout) addFoundation(cloud string) error {
	global := service.Region(cloud + "/" + globalPlace)
	sessions := l.sessions(cloud)
	balancers := slices.Concat([]provision.Grant{provision.GrantOperate}, l.challenges(cloud), sessions)
	for role, grants := range map[provision.Kind][]provision.Grant{provision.KindBalancer: balancers, provision.KindReplica: append(l.reads(cloud), sessions...)} {
		w := provision.Want{ID: fmt.Sprintf("identity-%s-%s", cloud, role), Kind: provision.KindIdentity, Region: global, Grants: grants}
		if err := l.add(w, role, grants); err != nil {
			return err
		}
	}
	for _, r := range l.Spec.Regions {
		if r.Name.Cloud() != cloud {
			continue
		}
		for role, rules := range map[provision.Kind][]provision.Rule{provision.KindBalancer: l.balancerRules(), provision.KindReplica: replicaRules} {
			w := provision.Want{ID: fmt.Sprintf("firewall-%s-%s", r.Name.Place(), role), Kind: provision.KindFirewall, Region: r.Name, Rules: rules}
			if err := l.add(w, role, rules); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(l.layout.Wants, func(a, b provision.Want) int { return strings.Compare(a.ID, b.ID) })
	return nil
}

// sessions are the grants of the regions of a cloud on whose machines people may have a shell.
func (l *layout) sessions(cloud string) []provision.Grant {
	var grants []provision.Grant
	for _, r := range l.Spec.Regions {
		if r.Access == service.AccessSSM && r.Name.Cloud() == cloud {
			grants = append(grants, provision.SessionIn(r.Name.Place()))
		}
	}
	return grants
}

// challenges is the grant of the record by which an authority makes sure of the service's name.
func (l *layout) challenges(cloud string) []provision.Grant {
	if cloud != service.CloudAWS || l.ZoneID == "" || !l.Spec.Obtains(service.ChallengeDNS) {
		return nil
	}
	return []provision.Grant{provision.ChallengeOf(l.ZoneID, l.Spec.DNS.Name)}
}

// reads are the grants of the models that replicas in a cloud fetch from buckets.
func (l *layout) reads(cloud string) []provision.Grant {
	var grants []provision.Grant
	for _, m := range l.Spec.Models {
		folder, has := strings.CutPrefix(m.Engine.Weights, "s3://")
		if g := provision.ReadFrom(folder); has && cloud == service.CloudAWS && !slices.Contains(grants, g) {
			grants = append(grants, g)
		}
	}
	return grants
}

// replicaRules let balancers in: to the engine, and to hand a machine its
// configuration.
var replicaRules = []provision.Rule{{Port: PortNode, From: provision.FromBalancers}, {Port: PortEngine, From: provision.FromBalancers}}

// balancerRules let clients in, and those who bring certificates of the service.
func (l *layout) balancerRules() []provision.Rule {
	rules := []provision.Rule{
		{Port: PublicPort(l.Spec), From: provision.FromWorld},
		{Port: PortAdmin, From: provision.FromWorld},
		{Port: PortNode, From: provision.FromWorld},
	}
	if l.Spec.Store.URL == "" {
		rules = append(rules, provision.Rule{Port: PortStore, From: provision.FromWorld})
	}
	if l.Spec.Obtains(service.ChallengeHTTP) {
		rules = append(rules, provision.Rule{Port: PortChallenge, From: provision.FromWorld})
	}
	return rules
}

// addBalancer wants the machine of one balancer. It is never spot: its streams
// would end with it.
func (l *layout) addBalancer(r service.RegionSpec, n int) error {
	offers := l.Offers[r.Name].With("", 0).InOrder([]service.CapacityType{service.CapacityOnDemand})
	if len(offers) == 0 {
		return specError("regions: %s offers no machine for a balancer", r.Name)
	}
	id := provision.BalancerID(r.Name, n)
	return l.addMachine(Node{ID: id, Kind: provision.KindBalancer, Region: r.Name}, offers, diskBalancer, nil)
}

// addNameServer wants the machine that answers the service's name, where that is no hosted zone's
// to do: one of its own, so that names are answered whatever becomes of balancers and the controller.
func (l *layout) addNameServer() error {
	if d := l.Spec.DNS; d == nil || d.Provider != service.DNSEmbedded {
		return nil
	}
	n := Node{ID: provision.NameServerID, Kind: provision.KindNameServer, Region: Regions(l.Spec)[0]}
	offers := l.Offers[n.Region].With("", 0).InOrder([]service.CapacityType{service.CapacityOnDemand})
	if len(offers) == 0 {
		return specError("dns.provider: %s offers no machine for a name server", n.Region)
	}
	return l.addMachine(n, offers, diskBalancer, map[string]string{labelName: l.Spec.DNS.Listen})
}

// labelName is where a name server answers, host:port.
const labelName = "dns"

// addMachine wants a VM. What it is set up with from outside decides whether it
// has to be replaced; what it is handed later does not, nor what it runs on.
func (l *layout) addMachine(n Node, offers provision.Offerings, disk int, labels map[string]string) error {
	text, err := l.UserData(n)
	if err != nil {
		return fmt.Errorf("writing the cloud-init document of %s: %w", n.ID, err)
	}
	w := provision.Want{
		ID: n.ID, Kind: n.Kind, Region: n.Region, Labels: labels,
		Offers: offers, CostPerHour: offers[0].PricePerHour,
		Machine: &provision.Machine{Role: n.Kind, UserData: text, DiskGiB: disk},
	}
	if n.Region.Cloud() == service.CloudGCP {
		w.Machine.Account = Accounts(l.Spec)[n.Kind]
	}
	return l.add(w, n.Kind, w.Machine)
}

// add wants an object whose identity decides whether it is still the same one. In another
// network it is another: nothing moves from one to the other.
func (l *layout) add(w provision.Want, role provision.Kind, identity any) error {
	if n, named := Networks(l.Spec, w.Region.Cloud())[w.Region.Place()]; named {
		identity = []any{identity, n.Name}
	}
	spec, err := provision.HashOf(identity)
	if err != nil {
		return fmt.Errorf("describing %s: %w", w.ID, err)
	}
	w.Service, w.Owner, w.Spec = l.Spec.Name, l.Owner, spec
	if w.Labels == nil {
		w.Labels = map[string]string{}
	}
	w.Labels[labelRole] = string(role)
	l.layout.Wants = append(l.layout.Wants, w)
	return nil
}
