package provision

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"skyserve/internal/service"
)

// Kind says what an object is.
type Kind string

// The kinds of object.
const (
	KindBalancer   Kind = "balancer"
	KindReplica    Kind = "replica"
	KindController Kind = "controller"
	KindNameServer Kind = "nameserver" // answers the service's public name
	// What machines in a cloud stand on: rules of a network, and what the machines
	// may do in their own cloud. It is made before them and removed after them.
	KindFirewall Kind = "firewall"
	KindIdentity Kind = "identity"
)

// IsMachine says whether objects of this kind run an agent.
func (k Kind) IsMachine() bool { return k == KindBalancer || k == KindReplica || k == KindNameServer }

// foundation says whether machines stand on objects of this kind.
func (k Kind) foundation() bool { return k == KindFirewall || k == KindIdentity }

// Object is one thing that exists for a service: a process of this machine or
// a VM of a cloud. It is read from where the thing lives (lock files, tags),
// never from a list kept beside it.
type Object struct {
	// ID is unique in the service (us-0, lb-us-0, controller), except when a
	// crash left two of the same; Handle tells those apart.
	ID      string `json:"id"`
	Kind    Kind   `json:"kind"`
	Service string `json:"service"`
	// Owner is whose service it is: the fingerprint of the certificate authority
	// that made it; empty where a machine has one user.
	Owner  string         `json:"owner,omitempty"`
	Region service.Region `json:"region,omitempty"`
	// Offering is what it runs on in a cloud; nil elsewhere.
	Offering *Offering `json:"offering,omitempty"`
	// Spec is the hash of the configuration that the object runs with.
	Spec string `json:"spec"`
	// Fixed is the hash of the part of it that holds as long as the object runs;
	// empty = all of it does, so that any change asks for another object.
	Fixed string `json:"fixed,omitempty"`
	// Build is the hash of the executable or image that it runs.
	Build string `json:"build,omitempty"`
	// Address is its public base URL, Admin the base URL of its admin API;
	// empty where it has none.
	Address string `json:"address,omitempty"`
	Admin   string `json:"admin,omitempty"`
	// PublicIP is a machine's address in the world, PrivateIP the one in the network of
	// its region; zero while, or where, it has none.
	PublicIP  netip.Addr `json:"public_ip,omitzero"`
	PrivateIP netip.Addr `json:"private_ip,omitzero"`
	// Endpoints are the addresses of its programs, where its provider says them; zero where they
	// follow from PublicIP and PrivateIP.
	Endpoints Endpoints `json:"endpoints,omitzero"`
	// Labels carry what else is worth showing, such as model and gpu.
	Labels map[string]string `json:"labels,omitempty"`
	// Handle is what the provider itself calls it: a process or instance id.
	Handle string `json:"handle,omitempty"`
	// Started is when it was started by its own host's clock; shown, never compared.
	Started time.Time `json:"started,omitzero"`
	// Gone says why the object does not run although a trace of it exists;
	// empty while it runs.
	Gone string `json:"gone,omitempty"`
	// CostPerHour is what it costs, in USD.
	CostPerHour float64 `json:"cost_per_hour"`
}

// Want is an object that should exist.
type Want struct {
	ID          string
	Kind        Kind
	Service     string
	Owner       string // see Object
	Region      service.Region
	Spec        string
	Fixed       string // see Object
	Build       string
	Address     string // empty = whichever it gets
	Admin       string // empty = whichever it gets
	Labels      map[string]string
	CostPerHour float64
	// Offers are what it may run on, in the order of trying; empty where there is
	// no choice. Apply hands Launch one of them at a time.
	Offers Offerings
	// Machine is how a machine in a cloud is set up, Rules what a firewall lets
	// through, Grants what an identity may do.
	Machine *Machine
	Rules   []Rule
	Grants  []Grant
}

// Machine is how a VM is set up, the same in every cloud.
type Machine struct {
	// Role is whose firewall and identity it has: KindBalancer or KindReplica.
	Role Kind
	// UserData is its cloud-init document. Everybody who may describe the VM can
	// read it: it holds no secret.
	UserData string
	// Image is the cloud's id of a boot image; empty = the cloud's current image
	// for machines with, or without, a GPU.
	Image string
	// DiskGiB is the size of its disk.
	DiskGiB int
	// Account is the service account at Google that its programs are to the cloud; empty =
	// the provider's choice.
	Account string `json:",omitempty"`
}

// Source is who may reach a port.
type Source string

// The sources of a firewall's rules.
const (
	FromWorld     Source = "world"     // everybody
	FromBalancers Source = "balancers" // the balancers of the service, in every region
)

// Rule lets traffic to one TCP port in. What no rule lets in stays out; everything
// may go out.
type Rule struct {
	Port int    `json:"port"`
	From Source `json:"from"`
}

// Grant is something that a VM may do in its own cloud.
type Grant string

// The grants.
const (
	// GrantOperate lets a balancer launch, list and terminate what carries the tags
	// of its service, and nothing else.
	GrantOperate Grant = "operate"
	// grantSession begins the grants of SessionIn, grantRead those of ReadFrom, grantChallenge
	// those of ChallengeOf.
	grantSession   = "session:"
	grantRead      = "read:"
	grantChallenge = "challenge:"
)

// ChallengeOf lets a VM write the one record by which an authority makes sure of a name (dns-01)
// into a hosted zone of Route 53, by the zone's id, and no other record.
func ChallengeOf(zoneID, name string) Grant { return Grant(grantChallenge + zoneID + "/" + name) }

// Challenge is the zone's id and the name of a grant of ChallengeOf; false for any other.
func (g Grant) Challenge() (zoneID, name string, ok bool) {
	text, ok := strings.CutPrefix(string(g), grantChallenge)
	zoneID, name, _ = strings.Cut(text, "/")
	return zoneID, name, ok
}

// ReadFrom lets a VM read what is below a folder of a bucket, bucket/prefix, and nothing else
// in it.
func ReadFrom(folder string) Grant { return Grant(grantRead + folder) }

// Read is the folder of a grant of ReadFrom; false for any other.
func (g Grant) Read() (folder string, ok bool) { return strings.CutPrefix(string(g), grantRead) }

// SessionIn lets a VM in a region, as its cloud calls it, be reached by a person whom the
// cloud account lets: a shell by way of the cloud's own service.
func SessionIn(place string) Grant { return Grant(grantSession + place) }

// Session is the region of a grant of SessionIn; false for any other.
func (g Grant) Session() (place string, ok bool) { return strings.CutPrefix(string(g), grantSession) }

// Provider makes and removes objects in one place. Its methods are safe for
// concurrent use and safe to repeat.
type Provider interface {
	// Offerings is what a region of this place has for renting, with prices where
	// they are known; none where nothing is rented.
	Offerings(ctx context.Context, region service.Region) (Offerings, error)
	// List reads every object of a service, those that no longer run included
	// as long as a trace of them exists. In a cloud it goes by tags, in every region
	// that the provider was made for, and the empty name stands for every service.
	List(ctx context.Context, service string) ([]Object, error)
	// Launch makes what is wanted, on the one offering of w.Offers where there is
	// one, and returns it once it exists, which is before it is ready. When the same
	// object with the same Spec runs already, that one is returned; a firewall or an
	// identity that differs is set right. Repeating a call whose answer was lost makes
	// nothing twice. Errors include *PortTakenError, *StartError, *CapacityError (then
	// nothing was made), *CredentialsError and *OwnedError.
	Launch(ctx context.Context, w Want) (Object, error)
	// Terminate stops an object and removes every trace of it, and returns once
	// that is certain. Terminating what does not exist is no error.
	Terminate(ctx context.Context, o Object) error
}

// Witness tells what a machine said of itself over a channel that only the machine
// and the account it runs in can write: the key that it will show.
type Witness interface {
	// Fingerprint is that of the key of a machine, as its agent published it; empty
	// while it has not, which takes a minute or two of booting.
	Fingerprint(ctx context.Context, o Object) (string, error)
}
