package provision

import (
	"context"
	"net/netip"
	"time"

	"skyserve/internal/service"
)

// Routing is how a name's records are chosen between.
type Routing string

// The ways of routing.
const (
	RoutingLatency Routing = "latency" // the region that answers the client soonest
	RoutingGeo     Routing = "geo"     // the region nearest to where the client is
)

// Record is one answer to a public name: a balancer of a service.
type Record struct {
	// ID tells the records of a name apart: the balancer's.
	ID string
	// Region is where it is, by which it is chosen; a region of any cloud.
	Region service.Region
	// Address is what the name resolves to.
	Address netip.Addr
	// Check is the URL that must answer 200 for the record to be given out:
	// http://203.0.113.7:8000/readyz.
	Check string
	// Withdrawn keeps a record that is not to be given out, so that it can come back.
	Withdrawn bool
}

// Name is a public name of a service with all its records.
type Name struct {
	// Name is the name itself, chat.example.com, and Zone the hosted zone that it is in.
	Name string
	Zone string
	// Service and Owner are whose name it is; they are kept beside the records, so
	// that nobody else's name is overwritten.
	Service string
	Owner   string
	Routing Routing
	// TTL is how long an answer may be kept; 0 = 30 s.
	TTL time.Duration
	// Private says that the zone is only known inside networks of the cloud.
	Private bool
	Records []Record
}

// Zone keeps public names. Its methods are safe to repeat.
type Zone interface {
	// Get reads a name as it is, with the records of its service only: what it does
	// not have is empty. A name that is not there has no records and no owner.
	Get(ctx context.Context, zone, name string) (Name, error)
	// Check says why Set would not make a name what n says, as far as that shows without
	// changing anything; the records of n may be left out. Errors include *SpecError, for a
	// zone that is not there or cannot be told from another, *OwnedError and *CredentialsError.
	Check(ctx context.Context, n Name) error
	// Set makes a name what n says, health checks included, and returns when that is
	// certain to be given out soon; a name without records is removed with every trace
	// of it. Errors include *OwnedError, for a name that is another owner's or was made
	// by hand, and *CredentialsError.
	Set(ctx context.Context, n Name) error
}
