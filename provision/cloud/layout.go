package cloud

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// The sizes of disks, in GiB. A balancer's machine may have a member of the store. A replica's disk contains its container
// image (20 GiB with CUDA) and the weights of models of up to 70 billion parameters.
const (
	diskBalancer = 30
	diskReplica  = 250
)

// The keys of the labels of objects.
const (
	labelModel = "model"
	labelGPU   = "gpu"
	// labelRole is the role of a machine, or of the machines that a firewall or an identity is for.
	labelRole = "role"
	// labelFallbackFor is the region without capacity for which a fallback replica runs in another region.
	labelFallbackFor = "for"
	// labelReplaces is the handle of the terminating machine that a replica replaces.
	labelReplaces = "instead"
	// labelOverprovisioned marks a spot replica that spot.overprovision adds.
	labelOverprovisioned = "extra"
	// labelDNSListen is the address where a name server listens, host:port.
	labelDNSListen = "dns"
)

// GlobalRegion is written instead of a region's name for a cloud's global objects: aws/global.
const GlobalRegion = "global"

// globalAWS is the region of AWS's global objects.
const globalAWS = service.Region(service.CloudAWS + "/" + GlobalRegion)

// RoleDNS is the role of the identity at AWS that controllers at Google assume to change DNS records. No machine has it.
const RoleDNS provision.Role = "records"

// LayoutInput is the input of BuildLayout.
type LayoutInput struct {
	Spec *service.Spec
	// Owner is the fingerprint of the service's certificate authority, as in provision.Object.Owner.
	Owner string
	// Offerings are the offerings of each cloud region.
	Offerings map[service.Region]provision.Offerings
	// Reservations are the reservations of service.yaml as the clouds report them. Those that no cloud reports are
	// not used.
	Reservations Reservations
	// Have contains the existing objects of the service in the clouds. Without Counts, existing replicas above
	// replicas.min stay, up to replicas.max: a plan, a strategy or an operator added them.
	Have []provision.Object
	// Now is the time at which machines would be launched; zero = reservations are used regardless of their end.
	Now time.Time
	// Shortfall is the number of replicas that recently could not be launched for lack of capacity.
	Shortfall map[ReplicaGroup]int
	// NeedReplacement contains the ids of replicas that need replacement, for example because their cloud
	// interrupts them. BuildLayout adds replacements with other ids. Both count towards replicas.max, except for Ending.
	NeedReplacement map[string]bool
	// Ending contains those ids of NeedReplacement whose machine the cloud terminates in any case, for example because
	// its reservation ends. They do not count towards replicas.max, so that their replacements can be launched before
	// they end.
	Ending map[string]bool
	// Counts is the desired number of replicas of each class. It is limited to replicas.min and max. For groups
	// that it does not contain, the existing replicas are desired, but at least DesiredCounts.
	Counts map[ReplicaGroup]provision.ClassCounts
	// DesiredCounts is the number of replicas that nobody has removed: some may have ended.
	DesiredCounts map[ReplicaGroup]int
	// SpotPenalty returns the number of recent interruptions and capacity errors of an offering, where older ones
	// count less; nil = none.
	SpotPenalty func(o provision.Offering) float64
	// SpotScore returns the cloud's estimate for a spot offering: provision.CapacityAdvice.Score; nil = unknown.
	SpotScore func(o provision.Offering) *float64
	// Interrupted reports whether a spot machine of a region was interrupted recently, and Exhausted whether
	// an offering had no capacity recently; nil = never.
	Interrupted func(service.Region) bool
	Exhausted   func(provision.Offering) bool
	// HostedZoneID is the id of the Route 53 hosted zone of the public name. Machines at AWS write records in it: for
	// dns-01 challenges, and for balancers that controllers replace. Empty = machines write no records.
	HostedZoneID string
	// HealthChecks are the ids of the health checks of the public name's records in that hosted zone, sorted; none before
	// the name is published. Controllers that replace balancers change them.
	HealthChecks []string
	// FederatedAccount is the unique id of the service account of balancers at Google that assumes identities at AWS:
	// to replace the only balancer there (FederatedCloud), or to change DNS records (UpdatesRecordsByFederation). Empty means
	// none.
	FederatedAccount string
	// Binaries are the skyserve binaries (flag --program) in the service's own buckets, by cloud. Machines of a cloud
	// without an entry download the binary from another URL.
	Binaries map[string]provision.Binary
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
	Kind   provision.ObjectKind // KindBalancer, KindReplica or KindNameServer
	Region service.Region
	Model  *service.Model // nil except for a replica
}

// Layout is the desired state of a service.
type Layout struct {
	Desired []provision.Desired
	// Unplaced is the number of desired replicas for which no region has capacity: those that neither exist nor can be
	// launched in their region (LayoutInput.Shortfall), minus the replicas in fallback regions.
	Unplaced map[ReplicaGroup]int
}

// ManagedRegions returns the regions where skyserve launches the machines or processes of a service, in the order
// of service.yaml. In a service with cloud regions, these are all regions except static ones. In other services
// static regions are included, because their balancers run on this computer.
func ManagedRegions(spec *service.Spec) []service.Region {
	usesClouds := UsesClouds(spec)
	var regions []service.Region
	for _, r := range spec.Regions {
		if r.Name.Cloud() != service.CloudStatic || !usesClouds {
			regions = append(regions, r.Name)
		}
	}
	return regions
}

// RegionsWithObjects returns the regions in which a service has objects: ManagedRegions, and the region of global objects
// at AWS if the service has only an identity there (UpdatesRecordsByFederation).
func RegionsWithObjects(spec *service.Spec) []service.Region {
	regions := ManagedRegions(spec)
	if UpdatesRecordsByFederation(spec) {
		regions = append(regions, globalAWS)
	}
	return regions
}

// UsesClouds reports whether a service has machines in clouds.
func UsesClouds(spec *service.Spec) bool { return len(Regions(spec)) > 0 }

// Regions returns a service's regions in clouds, in the order of service.yaml.
func Regions(spec *service.Spec) []service.Region {
	var regions []service.Region
	for _, r := range spec.Regions {
		if isCloudRegion(r.Name) {
			regions = append(regions, r.Name)
		}
	}
	return regions
}

// RunsOnThisComputer reports whether a region is local or static: its processes, if it has any, run on the operator's
// computer.
func RunsOnThisComputer(r service.Region) bool {
	return r.Cloud() == service.CloudLocal || r.Cloud() == service.CloudStatic
}

// Clouds returns the clouds of a service's cloud regions, sorted.
func Clouds(spec *service.Spec) []string {
	var clouds []string
	for _, r := range Regions(spec) {
		clouds = append(clouds, r.Cloud())
	}
	slices.Sort(clouds)
	return slices.Compact(clouds)
}

// NamedNetworks returns the networks that service.yaml sets for the regions of a cloud. Its keys are the region names
// without the cloud. It omits regions with the default network.
func NamedNetworks(spec *service.Spec, cloud string) map[string]provision.Network {
	networks := map[string]provision.Network{}
	for _, r := range spec.Regions {
		if r.Network != "" && r.Name.Cloud() == cloud {
			networks[r.Name.ShortName()] = provision.Network{Name: r.Network, Subnets: r.Subnets}
		}
	}
	return networks
}

// GoogleAccounts returns the service accounts that service.yaml sets for machines at Google, by role; empty if it sets
// none for a role.
func GoogleAccounts(spec *service.Spec) map[provision.Role]string {
	return map[provision.Role]string{
		provision.RoleBalancer: spec.GCP.BalancerAccount, provision.RoleSpare: spec.GCP.SpareAccount, provision.RoleReplica: spec.GCP.ReplicaAccount,
	}
}

// IsSingleRegion reports whether all cloud machines of a service are in one region. Then balancers connect
// to replicas only through the region's network.
func IsSingleRegion(spec *service.Spec) bool { return len(Regions(spec)) == 1 }

// FirstBalancer returns the id of the first balancer of the first managed region. It is empty if there is no managed
// region, for example if service.yaml could not be read.
func FirstBalancer(spec *service.Spec) string {
	managed := ManagedRegions(spec)
	if len(managed) == 0 {
		return ""
	}
	return provision.BalancerID(managed[0], 0)
}

func specError(format string, args ...any) error {
	return &provision.SpecError{Err: fmt.Errorf(format, args...)}
}

// BuildLayout computes the desired state of a service. It returns a *provision.SpecError for an invalid configuration,
// and for a region without any offering for one of its machines. It also fails if UserData fails.
func BuildLayout(in LayoutInput) (*Layout, error) {
	if err := Validate(in.Spec); err != nil {
		return nil, err
	}
	l := &layout{LayoutInput: in, result: &Layout{Unplaced: map[ReplicaGroup]int{}}, reserved: newReservedEntries(in.Spec, in.Have), plannedSpot: map[string]int{}}
	l.reserved.limitToReported(in.Reservations, in.Offerings, in.Now)
	for _, cloud := range Clouds(in.Spec) {
		if err := l.addPrerequisites(cloud); err != nil {
			return nil, err
		}
	}
	if err := l.addDNSIdentity(); err != nil {
		return nil, err
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

// PeerFirewalls returns those firewalls of a service that admit machines by address, as BuildLayout would compute them.
func PeerFirewalls(spec *service.Spec, owner string, have []provision.Object) ([]provision.Desired, error) {
	l := &layout{LayoutInput: LayoutInput{Spec: spec, Owner: owner, Have: have}, result: &Layout{}}
	for _, cloud := range Clouds(spec) {
		if err := l.addPrerequisites(cloud); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(l.result.Desired, func(w provision.Desired) bool {
		return w.Kind != provision.KindFirewall || !slices.ContainsFunc(w.Rules, func(r provision.FirewallRule) bool { return r.From == provision.FromSameRole })
	}), nil
}

func isCloudRegion(r service.Region) bool {
	return r.Cloud() == service.CloudAWS || r.Cloud() == service.CloudGCP
}

// layout is the state of one call of BuildLayout.
type layout struct {
	LayoutInput
	result      *Layout
	reserved    reservedEntries
	plannedSpot map[string]int // number of new spot replicas by the zone of their first offering
	index       *objectIndex   // of Have; nil before its first use
	// added are the replicas in result, by id.
	added map[string][]ReplicaGroup
}

// addPrerequisites adds the objects that machines in a cloud need before they are launched: the skyserve binary,
// identities and firewalls.
func (l *layout) addPrerequisites(cloud string) error {
	global := service.Region(cloud + "/" + GlobalRegion)
	common := append(l.sessionGrants(cloud), l.addBinary(cloud, global)...) // of all machines
	operate := []provision.Grant{provision.GrantOperate}
	serving := slices.Concat(l.challengeGrants(cloud), l.storeGrants(cloud), common)
	spareGrants := slices.Concat(operate, serving)
	balancerGrants := slices.Concat(operate, l.replaceGrants(cloud), l.dnsGrants(cloud), l.federatedGrants(cloud), serving)
	identities := map[provision.Role][]provision.Grant{provision.RoleBalancer: balancerGrants, provision.RoleReplica: append(l.readGrants(cloud), common...)}
	if cloud == service.CloudAWS && hasSpares(l.Spec, cloud) {
		identities[provision.RoleSpare] = spareGrants
	}
	for role, grants := range identities {
		w := provision.Desired{ID: fmt.Sprintf("identity-%s-%s", cloud, role), Kind: provision.KindIdentity, Region: global, Grants: grants}
		if err := l.addObject(w, role, grants); err != nil {
			return err
		}
	}
	for _, r := range l.Spec.Regions {
		if r.Name.Cloud() != cloud {
			continue
		}
		for role, rules := range map[provision.Role][]provision.FirewallRule{provision.RoleBalancer: l.balancerRules(), provision.RoleReplica: replicaRules} {
			w := provision.Desired{ID: fmt.Sprintf("firewall-%s-%s", r.Name.ShortName(), role), Kind: provision.KindFirewall, Region: r.Name, Rules: rules}
			config := any(rules)
			if slices.ContainsFunc(rules, func(r provision.FirewallRule) bool { return r.From == provision.FromSameRole }) {
				w.SameRole = storePeerAddresses(l.Spec, r.Name, l.Have)
				config = []any{rules, w.SameRole}
			}
			if err := l.addObject(w, role, config); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(l.result.Desired, func(a, b provision.Desired) int { return strings.Compare(a.ID, b.ID) })
	return nil
}

// addDNSIdentity adds the identity that controllers at Google assume to change the records of the public name.
func (l *layout) addDNSIdentity() error {
	if l.HostedZoneID == "" || l.FederatedAccount == "" || !UpdatesRecordsByFederation(l.Spec) {
		return nil
	}
	grants := append(l.dnsGrants(service.CloudAWS), provision.GrantFederated(l.FederatedAccount))
	w := provision.Desired{ID: fmt.Sprintf("identity-%s-%s", service.CloudAWS, RoleDNS), Kind: provision.KindIdentity, Region: globalAWS, Grants: grants}
	return l.addObject(w, RoleDNS, grants)
}

// sessionGrants returns a grant for each region of a cloud whose machines allow shell sessions.
func (l *layout) sessionGrants(cloud string) []provision.Grant {
	var grants []provision.Grant
	for _, r := range l.Spec.Regions {
		if r.Access == service.AccessSSM && r.Name.Cloud() == cloud {
			grants = append(grants, provision.GrantSession(r.Name.ShortName()))
		}
	}
	return grants
}

// replaceGrants returns the grants that let controllers replace balancers.
func (l *layout) replaceGrants(cloud string) []provision.Grant {
	switch {
	case !ReplacesBalancersIn(l.Spec, cloud):
		return nil
	case cloud == service.CloudAWS && hasSpares(l.Spec, cloud):
		return []provision.Grant{provision.GrantReplaceBalancers, provision.GrantReplaceSpares}
	}
	return []provision.Grant{provision.GrantReplaceBalancers}
}

// dnsGrants returns the grant at AWS that lets controllers change the DNS records of balancers that they replaced.
func (l *layout) dnsGrants(cloud string) []provision.Grant {
	if cloud != service.CloudAWS || l.HostedZoneID == "" || !UpdatesRecords(l.Spec) {
		return nil
	}
	return []provision.Grant{provision.GrantRecords(l.HostedZoneID, l.Spec.DNS.Name, l.HealthChecks)}
}

// federatedGrants returns the grant that lets machines at Google assume the identity of the only balancer at AWS, so that
// they can replace it.
func (l *layout) federatedGrants(cloud string) []provision.Grant {
	if cloud != service.CloudAWS || l.FederatedAccount == "" || FederatedCloud(l.Spec) != cloud {
		return nil
	}
	return []provision.Grant{provision.GrantFederated(l.FederatedAccount)}
}

// challengeGrants returns the grant for the dns-01 challenge record of the service's name.
func (l *layout) challengeGrants(cloud string) []provision.Grant {
	if cloud != service.CloudAWS || l.HostedZoneID == "" || !l.Spec.ObtainsCertificate(service.ChallengeDNS) {
		return nil
	}
	return []provision.Grant{provision.GrantChallenge(l.HostedZoneID, l.Spec.DNS.Name)}
}

// storeGrants returns the grants for the folders of buckets in store.files, where balancers store the files of batches,
// and in store.backup.to, where controllers store backups.
func (l *layout) storeGrants(cloud string) (grants []provision.Grant) {
	if f, inBucket := service.FilesFolderOf(l.Spec.Store.Files, l.Spec.Name); inBucket && f.Cloud == cloud {
		grants = append(grants, provision.GrantFiles(f.Bucket+"/"+f.Folder))
	}
	if f, inBucket := backupFolder(l.Spec); inBucket && f.Cloud == cloud {
		grants = append(grants, provision.GrantBackups(f.Bucket+"/"+f.Folder))
	}
	return grants
}

// readGrants returns the grants for the buckets at AWS from which replicas download model weights and adapters; none in
// another cloud.
func (l *layout) readGrants(cloud string) []provision.Grant {
	var grants []provision.Grant
	for _, m := range l.Spec.Models {
		for _, from := range m.Engine.BucketFolders() {
			folder, isS3 := strings.CutPrefix(from, "s3://")
			if g := provision.GrantRead(folder); isS3 && cloud == service.CloudAWS && !slices.Contains(grants, g) {
				grants = append(grants, g)
			}
		}
	}
	return grants
}

// replicaRules admit balancers to the engine, and to the agent, because balancers relay its configuration.
var replicaRules = []provision.FirewallRule{{Port: PortAgent, From: provision.FromBalancers}, {Port: PortReplica, From: provision.FromBalancers}}

// balancerRules returns the rules that admit clients, operators and other balancers. Operators and
// balancers authenticate with certificates of the service.
func (l *layout) balancerRules() []provision.FirewallRule {
	rules := []provision.FirewallRule{
		{Port: PublicPort(l.Spec), From: provision.FromWorld},
		{Port: PortAdmin, From: provision.FromWorld},
		{Port: PortAgent, From: provision.FromWorld},
	}
	if l.Spec.Store.URL == "" {
		rules = append(rules, provision.FirewallRule{Port: PortStore, From: provision.FromWorld})
	}
	if ReplicatesStore(l.Spec) {
		rules = append(rules, provision.FirewallRule{Port: PortRoutes, From: provision.FromSameRole})
	}
	if l.Spec.ObtainsCertificate(service.ChallengeHTTP) {
		rules = append(rules, provision.FirewallRule{Port: PortChallenge, From: provision.FromWorld})
	}
	return rules
}

// addBalancer adds the machine of one balancer. It has only on-demand offerings, because an interruption of a spot
// machine would break its streams.
func (l *layout) addBalancer(r service.RegionSpec, n int) error {
	offers := l.Offerings[r.Name].WithGPU("", 0).SortedByCapacity([]service.CapacityType{service.CapacityOnDemand})
	if len(offers) == 0 {
		return specError("regions: %s has no on-demand machine type for a balancer; use another region", r.Name)
	}
	id := provision.BalancerID(r.Name, n)
	return l.addMachine(MachineInput{ID: id, Kind: provision.KindBalancer, Region: r.Name}, offers, diskBalancer, nil)
}

// addNameServer adds the process that serves DNS for the service's name, if dns.provider is embedded. It is
// a separate one, so that DNS is available when balancers or the controller fail.
func (l *layout) addNameServer() error {
	if d := l.Spec.DNS; d == nil || d.Provider != service.DNSEmbedded {
		return nil
	}
	n := MachineInput{ID: provision.NameServerID, Kind: provision.KindNameServer, Region: ManagedRegions(l.Spec)[0]}
	offers := l.Offerings[n.Region].WithGPU("", 0).SortedByCapacity([]service.CapacityType{service.CapacityOnDemand})
	if len(offers) == 0 {
		return specError("dns.provider: %s has no on-demand machine type for a name server; use another first region, or another dns.provider", n.Region)
	}
	return l.addMachine(n, offers, diskBalancer, map[string]string{labelDNSListen: l.Spec.DNS.Listen})
}

// addMachine adds a machine. Only a change of the configuration that it gets at launch requires a replacement. A change
// of its offering, or of configuration that is delivered later, does not.
func (l *layout) addMachine(n MachineInput, offers provision.Offerings, disk int, labels map[string]string) error {
	text, err := l.UserData(n)
	if err != nil {
		return fmt.Errorf("generating the cloud-init document of %s: %w", n.ID, err)
	}
	w := provision.Desired{
		ID: n.ID, Kind: n.Kind, Region: n.Region, Labels: labels,
		Offerings: offers, CostPerHour: offers[0].PricePerHour,
		Machine: &provision.MachineConfig{Role: provision.Role(n.Kind), UserData: text, DiskGiB: disk, Images: l.imagesFor(n.Region, offers)},
	}
	spare := slices.Contains(Spares(l.Spec), n.ID)
	w.Machine.Spare = spare && n.Region.Cloud() == service.CloudAWS
	if n.Region.Cloud() == service.CloudGCP {
		accounts := GoogleAccounts(l.Spec)
		if w.Machine.Account = accounts[w.Machine.Role]; spare && accounts[provision.RoleSpare] != "" {
			w.Machine.Account = accounts[provision.RoleSpare]
		}
		w.Machine.StoresFiles = n.Kind == provision.KindBalancer && len(l.storeGrants(service.CloudGCP)) > 0 // its access scopes are fixed at launch
	}
	return l.addObject(w, w.Machine.Role, w.Machine)
}

// addObject adds an object. After a change of config, a machine is replaced, a prerequisite repaired. The same applies to
// a change of the object's network: an object cannot be moved between networks.
func (l *layout) addObject(w provision.Desired, role provision.Role, config any) error {
	if n, named := NamedNetworks(l.Spec, w.Region.Cloud())[w.Region.ShortName()]; named {
		config = []any{config, n.Name}
	}
	hash, err := provision.ConfigHash(config)
	if err != nil {
		return fmt.Errorf("hashing the configuration of %s: %w", w.ID, err)
	}
	w.Service, w.Owner, w.SpecHash = l.Spec.Name, l.Owner, hash
	if w.Labels == nil {
		w.Labels = map[string]string{}
	}
	w.Labels[labelRole] = string(role)
	if w.Kind == provision.KindReplica {
		if l.added == nil {
			l.added = map[string][]ReplicaGroup{}
		}
		l.added[w.ID] = append(l.added[w.ID], ReplicaGroup{w.Labels[labelModel], w.Region})
	}
	l.result.Desired = append(l.result.Desired, w)
	return nil
}
