package provision

import (
	"context"
	"net/netip"
	"time"

	"skyserve/internal/service"
)

// DNSRouting is the policy that selects among the records of a name.
type DNSRouting string

// The routing policies.
const (
	RoutingLatency DNSRouting = "latency" // the region with the lowest latency to the client
	RoutingGeo     DNSRouting = "geo"     // the region nearest to the client's location
)

// DNSRecord is one balancer's entry under a public name.
type DNSRecord struct {
	// ID distinguishes the records of a name: the balancer's id.
	ID string
	// Region is the balancer's region, which routing selects by; a region of any cloud.
	Region service.Region
	// Address is what the name resolves to.
	Address netip.Addr
	// Check is the health check URL; the record is served only while it answers 200:
	// http://203.0.113.7:8000/readyz.
	Check string
	// Withdrawn keeps a record without serving it, so that it can be restored.
	Withdrawn bool
}

// PublicName is a public DNS name of a service with all its records.
type PublicName struct {
	// Name is the DNS name, chat.example.com, and Zone its hosted zone.
	Name string
	Zone string
	// Service and Owner identify whose name it is. They are stored with the records, so that another
	// owner's name is not overwritten.
	Service string
	Owner   string
	Routing DNSRouting
	// TTL is how long resolvers may cache an answer; 0 = 30 s.
	TTL time.Duration
	// Private marks a zone that resolves only inside networks of the cloud.
	Private bool
	Records []DNSRecord
}

// DNSZone manages public DNS names. Its methods are idempotent.
type DNSZone interface {
	// Get returns a name as it exists, with the records of its service only; fields that it does not
	// have are empty. A name that does not exist has no records and no owner.
	Get(ctx context.Context, zone, name string) (PublicName, error)
	// Check reports why Set would fail to apply n, without changing anything; some failures cannot be predicted;
	// the records of n may be omitted. Errors include *SpecError, for a zone that does not exist or is
	// ambiguous, *OwnedError and *CredentialsError.
	Check(ctx context.Context, n PublicName) error
	// Set creates or updates a name to match n, including health checks, and returns when the change is
	// certain to be served soon. A name without records is removed with every trace of it. Errors
	// include *OwnedError, for a name that belongs to another owner or was created by hand, and
	// *CredentialsError.
	Set(ctx context.Context, n PublicName) error
}
