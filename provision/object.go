package provision

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"skyserve/internal/service"
)

// ObjectKind is the kind of an object.
type ObjectKind string

// The kinds of object.
const (
	KindBalancer   ObjectKind = "balancer"
	KindReplica    ObjectKind = "replica"
	KindController ObjectKind = "controller" // of earlier versions only: controllers now run on balancers' machines
	KindNameServer ObjectKind = "nameserver" // serves DNS for the service's public name
	// The kinds below are prerequisites of machines in a cloud. They are created before the machines and removed after them.

	KindFirewall ObjectKind = "firewall" // firewall rules
	KindIdentity ObjectKind = "identity" // the permissions of machines in their own cloud
	// KindBinary is a skyserve binary in the service's own bucket of a cloud, from which its machines
	// download it. The bucket exists as long as it contains a binary. The value is the word of the flag --program.
	KindBinary ObjectKind = "program"
)

// Role selects the firewall and the identity of machines in a cloud. The role of every machine is its kind. Two more
// roles are only those of identities: RoleSpare and cloud.RoleDNS.
type Role string

// The roles.
const (
	RoleBalancer = Role(KindBalancer)
	RoleReplica  = Role(KindReplica)
	// RoleSpare is the role of the identity of spares: balancers that serve like the others, but have no permission to
	// launch balancers (cloud.Spares). As a machine, a spare has RoleBalancer: see MachineConfig.Spare.
	RoleSpare Role = "spare"
)

// IsMachine reports whether objects of this kind run an agent.
func (k ObjectKind) IsMachine() bool {
	return k == KindBalancer || k == KindReplica || k == KindNameServer
}

// isPrerequisite reports whether objects of this kind must exist before the machines.
func (k ObjectKind) isPrerequisite() bool {
	return k == KindFirewall || k == KindIdentity || k == KindBinary
}

// Object is one thing that exists for a service: a local process, or a VM, a firewall, an identity or a
// stored binary in a cloud. It is read from the actual state (lock files, tags), never from a separate
// inventory. The JSON keys are in records of running objects, which other versions read, and so they do not change with
// the names of the fields.
type Object struct {
	// ID is unique in the service (us-0, lb-us-0, nameserver), unless a crash left two objects
	// with the same id; Handle distinguishes those.
	ID      string     `json:"id"`
	Kind    ObjectKind `json:"kind"`
	Service string     `json:"service"`
	// Owner is the owner of the service: the fingerprint of the certificate authority that created the
	// object; empty for local objects.
	Owner  string         `json:"owner,omitempty"`
	Region service.Region `json:"region,omitempty"`
	// Offering is the rented machine; nil outside clouds.
	Offering *Offering `json:"offering,omitempty"`
	// SpecHash is the hash of the configuration of the running object.
	SpecHash string `json:"spec"`
	// ImmutableHash is the hash of the part of the configuration that cannot change while the object
	// runs; empty = all of it, so that any change requires a replacement.
	ImmutableHash string `json:"fixed,omitempty"`
	// BuildHash is the hash of the binary or image that the object runs.
	BuildHash string `json:"build,omitempty"`
	// Address is its public base URL, Admin the base URL of its admin API; empty where it has none.
	Address string `json:"address,omitempty"`
	Admin   string `json:"admin,omitempty"`
	// PublicIP is the machine's public address, PrivateIP its address in the region's network; zero
	// while, or where, it has none.
	PublicIP  netip.Addr `json:"public_ip,omitzero"`
	PrivateIP netip.Addr `json:"private_ip,omitzero"`
	// Endpoints are the addresses of its processes, if the provider sets them; zero = derived from PublicIP
	// and PrivateIP.
	Endpoints MachineEndpoints `json:"endpoints,omitzero"`
	// Labels are further properties to display, such as model and gpu.
	Labels map[string]string `json:"labels,omitempty"`
	// Handle is the provider's own id: a process or instance id.
	Handle string `json:"handle,omitempty"`
	// Started is the start time by the clock of its cloud or of its own host; zero = unknown.
	Started time.Time `json:"started,omitzero"`
	// TerminatedReason is the reason why the object does not run although its record still exists; empty
	// while it runs.
	TerminatedReason string `json:"gone,omitempty"`
	// Interrupted is true if its cloud has interrupted the spot machine, as far as the cloud reports it.
	Interrupted bool `json:"interrupted,omitempty"`
	// CostPerHour is its cost, in USD per hour.
	CostPerHour float64 `json:"cost_per_hour"`
}

// Desired is a desired object.
type Desired struct {
	ID            string
	Kind          ObjectKind
	Service       string
	Owner         string // see Object
	Region        service.Region
	SpecHash      string
	ImmutableHash string // see Object
	BuildHash     string
	Address       string // empty = assigned at launch
	Admin         string // empty = assigned at launch
	Labels        map[string]string
	CostPerHour   float64
	// Offerings are the offerings to launch on, in the order of attempts; empty where there is no choice.
	// Apply passes them to Launch one at a time.
	Offerings Offerings
	// OfferingReason is why the first offering is preferred, for display; empty = by the order of service.yaml.
	OfferingReason string `json:",omitempty"`
	// Machine is the setup of a machine in a cloud, Rules are the rules of a firewall, Grants the permissions
	// of an identity, Binary is the skyserve binary of an object of KindBinary.
	Machine *MachineConfig
	Rules   []FirewallRule
	// SameRole are the public IPv4 addresses, sorted, of the machines outside the firewall's network that rules with
	// FromSameRole admit.
	SameRole []netip.Addr `json:"Peers"` // package remote sends this key to machines of other versions, so it must not change
	Grants   []Grant
	Binary   *Binary
}

// MachineConfig is the setup of a VM. A field that only one cloud uses says so.
type MachineConfig struct {
	// Role selects the machine's firewall and, unless Spare is set, its identity.
	Role Role
	// UserData is its cloud-init document. It must not contain secrets, because everybody who may
	// describe the VM can read it.
	UserData string
	// Images are the boot images, by the keys of ImageKeys; nil = public images.
	Images map[string]string `json:",omitempty"`
	// DiskGiB is the size of its disk.
	DiskGiB int
	// Account is the Google service account that its processes authenticate as; empty = the provider's
	// default.
	Account string `json:",omitempty"`
	// StoresFiles states that its identity has a grant of GrantFiles or GrantBackups.
	StoresFiles bool `json:",omitempty"`
	// Spare is true for a spare at AWS: its identity is that of RoleSpare, its firewall that of Role. At Google, Account
	// selects the identity of a spare.
	Spare bool `json:",omitempty"`
}

// RuleSource is the set of clients that may reach a port.
type RuleSource string

// The sources of firewall rules.
const (
	FromWorld     RuleSource = "world"     // any address
	FromBalancers RuleSource = "balancers" // the balancers of the service, in every region
	// FromSameRole is the machines of the firewall's own role: those in its network at their private addresses, the others
	// at the addresses in Desired.SameRole.
	FromSameRole RuleSource = "peers"
)

// FirewallRule allows inbound traffic to one TCP port. Other inbound traffic is denied; all outbound traffic is
// allowed.
type FirewallRule struct {
	Port int        `json:"port"`
	From RuleSource `json:"from"`
}

// Grant is a rule of an identity: what VMs with the identity may do in its cloud, who may open a shell on them, or which
// VMs of another cloud may use it.
type Grant string

// The grants.
const (
	// GrantOperate lets a balancer launch, list and terminate replicas with the tags of its service, and
	// nothing else.
	GrantOperate Grant = "operate"
	// GrantReplaceBalancers lets a balancer launch, list and terminate balancers too.
	GrantReplaceBalancers Grant = "replace-balancers"
	// GrantReplaceSpares lets a balancer do so with balancers that have the identity of RoleSpare.
	GrantReplaceSpares Grant = "replace-spares"
	// The prefixes of the grants with parameters, such as session:us-east-1 of GrantSession.
	sessionGrantPrefix   = "session:"
	readGrantPrefix      = "read:"
	filesGrantPrefix     = "files:"
	backupsGrantPrefix   = "backups:"
	challengeGrantPrefix = "challenge:"
	recordsGrantPrefix   = "records:"
	federatedGrantPrefix = "federated:"
)

// GrantFederated lets VMs of Google Cloud use an identity at AWS: those with the service account of this unique id. It
// adds no permission to the identity.
func GrantFederated(uniqueID string) Grant { return Grant(federatedGrantPrefix + uniqueID) }

// FederatedAccount returns the unique id of the service account of a grant of GrantFederated; false for any other grant.
func (g Grant) FederatedAccount() (uniqueID string, ok bool) {
	return strings.CutPrefix(string(g), federatedGrantPrefix)
}

// GrantRecords lets a VM change the existing DNS records of balancers below name in a hosted zone of Route 53, by the
// zone's id, and the targets of these health checks: what RecordUpdater does.
func GrantRecords(zoneID, name string, healthChecks []string) Grant {
	return Grant(recordsGrantPrefix + strings.Join(append([]string{zoneID, name}, healthChecks...), "/"))
}

// Records returns the hosted zone's id, the name and the ids of health checks of a grant of GrantRecords; false for any
// other grant.
func (g Grant) Records() (zoneID, name string, healthChecks []string, ok bool) {
	text, ok := strings.CutPrefix(string(g), recordsGrantPrefix)
	parts := strings.Split(text, "/")
	if !ok || len(parts) < 2 {
		return "", "", nil, false
	}
	return parts[0], parts[1], parts[2:], true
}

// GrantChallenge lets a VM write the one DNS record of a dns-01 challenge for name into a hosted zone of
// Route 53, by the zone's id, and no other record.
func GrantChallenge(zoneID, name string) Grant {
	return Grant(challengeGrantPrefix + zoneID + "/" + name)
}

// ChallengeRecord returns the hosted zone's id and the name of a grant of GrantChallenge; false for any
// other grant.
func (g Grant) ChallengeRecord() (zoneID, name string, ok bool) {
	text, ok := strings.CutPrefix(string(g), challengeGrantPrefix)
	zoneID, name, _ = strings.Cut(text, "/")
	return zoneID, name, ok
}

// GrantRead lets a VM read the objects below a folder of a bucket, bucket/prefix, and nothing else in
// the bucket.
func GrantRead(folder string) Grant { return Grant(readGrantPrefix + folder) }

// ReadFolder returns the folder of a grant of GrantRead; false for any other grant.
func (g Grant) ReadFolder() (folder string, ok bool) {
	return strings.CutPrefix(string(g), readGrantPrefix)
}

// GrantFiles lets a VM list, read, write and delete the objects below a folder of a bucket, bucket/prefix, and
// nothing else in the bucket.
func GrantFiles(folder string) Grant { return Grant(filesGrantPrefix + folder) }

// GrantBackups is GrantFiles for the folder of scheduled backups.
func GrantBackups(folder string) Grant { return Grant(backupsGrantPrefix + folder) }

// BucketFolder is a folder of a bucket in which machines store files.
type BucketFolder struct {
	Bucket, Folder string
	Key            string // of service.yaml: store.files or store.backup.to
}

// Contents is what machines store in the folder.
func (f BucketFolder) Contents() string {
	if f.Key == keyBackups {
		return "backups"
	}
	return "files of batches"
}

// The keys of service.yaml that name folders of buckets.
const (
	keyFiles   = "store.files"
	keyBackups = "store.backup.to"
)

// StoredFolder returns the folder of a grant of GrantFiles or GrantBackups; false for any other grant.
func (g Grant) StoredFolder() (f BucketFolder, ok bool) {
	for prefix, key := range map[string]string{filesGrantPrefix: keyFiles, backupsGrantPrefix: keyBackups} {
		if place, is := strings.CutPrefix(string(g), prefix); is {
			f, ok = BucketFolder{Key: key}, true
			f.Bucket, f.Folder, _ = strings.Cut(place, "/")
		}
	}
	return f, ok
}

// StoredFolders returns the folders of buckets in which machines with an identity store files.
func (w Desired) StoredFolders() (all []BucketFolder) {
	for _, g := range w.Grants {
		if f, ok := g.StoredFolder(); ok {
			all = append(all, f)
		}
	}
	return all
}

// GrantSession lets authorized users of the AWS account open a shell on a VM in a region through Session
// Manager. place is AWS's name of the region.
func GrantSession(place string) Grant { return Grant(sessionGrantPrefix + place) }

// SessionRegion returns the region of a grant of GrantSession; false for any other grant.
func (g Grant) SessionRegion() (place string, ok bool) {
	return strings.CutPrefix(string(g), sessionGrantPrefix)
}

// Provider creates and removes objects in one cloud or on one machine. Its methods are safe for
// concurrent use and idempotent.
type Provider interface {
	// Offerings returns the offerings of a region, with their prices if known; none for a region without
	// rented machines.
	Offerings(ctx context.Context, region service.Region) (Offerings, error)
	// List returns every object of a service, including those that no longer run while a record of them
	// exists. In a cloud it filters by tags, in every region of the provider. An empty name lists the
	// objects of every service.
	List(ctx context.Context, service string) ([]Object, error)
	// Launch creates a desired object, on the single offering in w.Offerings if there is one, and returns
	// it once it exists, which is before it is ready. When the same object with the same SpecHash already
	// runs, Launch returns that one; a firewall or identity that differs is repaired. A repeated call,
	// for instance after a lost response, creates nothing twice. Errors include *PortTakenError,
	// *StartError, *CapacityError (nothing was created), *CredentialsError and *OwnedError.
	Launch(ctx context.Context, w Desired) (Object, error)
	// Terminate stops an object, removes it completely, and returns when the removal is certain.
	// Terminating an object that does not exist is not an error.
	Terminate(ctx context.Context, o Object) error
}

// KeyAttestor reads a machine's attestation of its own key, over a channel that only the machine and the
// owner of its AWS account or Google Cloud project can write, and that only this account or project can read.
type KeyAttestor interface {
	// Fingerprint returns the fingerprint of a machine's key as its agent published it; empty until the
	// agent has done so, one or two minutes after the launch.
	Fingerprint(ctx context.Context, o Object) (string, error)
}
