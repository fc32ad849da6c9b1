package provision

import (
	"context"
	"net/netip"
	"time"

	"skyserve/internal/service"
)

// DNSRouting is the policy that selects the records of a DNS name for a client.
type DNSRouting string

// The routing policies.
const (
	RoutingLatency DNSRouting = "latency" // the region with the lowest latency to the client
	RoutingGeo     DNSRouting = "geo"     // the region nearest to the client's location
)

// DNSRecord is one balancer's DNS record below a public DNS name.
type DNSRecord struct {
	// ID distinguishes the records of a name: the balancer's id.
	ID string
	// Region is the balancer's region, of any cloud. Routing selects records by it.
	Region service.Region
	// Address is the address that the name resolves to.
	Address netip.Addr
	// Check is the health check URL: http://203.0.113.7:8000/readyz. The record is served only while a
	// GET returns 200.
	Check string
	// Withdrawn excludes the record from responses but keeps it, so that it can be restored.
	Withdrawn bool
}

// PublicName is a public DNS name of a service with all its records.
type PublicName struct {
	// Name is the DNS name, chat.example.com, and Zone its hosted zone.
	Name string
	Zone string
	// Service and Owner identify the owner of the name. They are stored with the records, so that
	// another owner's name is not overwritten.
	Service string
	Owner   string
	Routing DNSRouting
	// TTL is how long resolvers may cache a response; 0 = 30 s.
	TTL time.Duration
	// Private marks a hosted zone that resolves only inside networks of the cloud.
	Private bool
	Records []DNSRecord
}

// DNSZone manages public DNS names in hosted zones. Its methods are idempotent.
type DNSZone interface {
	// Get returns a name as it exists, with the records of its service only. Unknown fields are empty.
	// A name that does not exist has no records and no owner.
	Get(ctx context.Context, zone, name string) (PublicName, error)
	// Check returns the error that Set would return for n, as far as it can be predicted, and changes
	// nothing. The records of n may be omitted. Errors include *SpecError, for a hosted zone that does
	// not exist or is ambiguous, *OwnedError and *CredentialsError.
	Check(ctx context.Context, n PublicName) error
	// Set creates or updates a name to match n, including health checks, and returns once all name
	// servers have the change. A name without records is removed completely.
	// Errors include *OwnedError, for a name that belongs to another owner or was created by hand, and
	// *CredentialsError.
	Set(ctx context.Context, n PublicName) error
}

// RecordsLabel is put before a public name: in its hosted zone, the records of its balancers have names that end with
// the result, such as eu-west-3._skyserve.chat.example.com.
const RecordsLabel = "_skyserve."

// RecordUpdater changes the addresses of existing records of a public name. It needs fewer permissions than DNSZone: those
// of GrantRecords.
type RecordUpdater interface {
	// UpdateRecords gives the existing records of a name the addresses and health check URLs of n.Records, in the hosted
	// zone with an id; other records stay. It may return before all name servers have the change. It is idempotent.
	// It creates no records: one that does not exist is an error. Errors include *OwnedError and *CredentialsError.
	UpdateRecords(ctx context.Context, zoneID string, n PublicName) error
}
