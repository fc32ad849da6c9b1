package provision

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// ErrCannotReload reports that an object cannot load another configuration while it runs: it does not
// respond, or does not support reloading.
var ErrCannotReload = errors.New("the object cannot reload its configuration")

// PortTakenError reports that another process uses a port that an object requires.
type PortTakenError struct {
	Holder string // the object that uses the port; empty = unknown
	// Reserved is true if Holder does not use the port now but may use it later, such as a balancer's port for a
	// controller.
	Reserved bool
	Addr     string // host:port
	ID       string // the object that requires the port
	Service  string // the service of this object; empty = unknown
	Purpose  string // the endpoint of the object: "public", "admin", "store", ...
	Setting  string // the setting of service.yaml that changes the port
	// Fixed is true if Setting cannot change the port, because the service is running and keeps its ports.
	Fixed bool
}

// Error names the address, the object that requires it, and the next step.
func (e *PortTakenError) Error() string {
	id := e.ID
	if e.Service != "" {
		id += " of service " + e.Service
	}
	use := "in use by"
	if e.Reserved {
		use = "reserved for"
	}
	next := "set " + e.Setting + " to another port"
	if e.Fixed {
		next = "stop this process: the service is running and keeps its ports"
	}
	return fmt.Sprintf("%s is %s %s and required by %s (%s port); %s", e.Addr, use, cmp.Or(e.Holder, "another process"), id, e.Purpose, next)
}

// StartError reports an object that exited before it was ready.
type StartError struct {
	ID   string
	Err  error    // how it exited
	Log  []string // the last lines of its log
	File string   // the path of the whole log
}

// Error returns the object, the cause and the last log lines.
func (e *StartError) Error() string {
	msg := fmt.Sprintf("starting %s: %v", e.ID, e.Err)
	if len(e.Log) > 0 {
		msg += "\n  " + strings.Join(e.Log, "\n  ")
	}
	if e.File != "" {
		msg += "\n  (log: " + e.File + ")"
	}
	return msg
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// RemainingError lists objects that still exist after the deletion of all objects.
type RemainingError struct {
	Service   string
	Remaining []string // each names an object and its location
}

// Error lists the remaining objects.
func (e *RemainingError) Error() string {
	return fmt.Sprintf("removing %s: %s left:\n  %s", e.Service, printable.Count(len(e.Remaining), "object"), strings.Join(e.Remaining, "\n  "))
}

// SpecError reports a well-formed service.yaml that cannot be applied.
type SpecError struct{ Err error }

// Error returns the cause.
func (e *SpecError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *SpecError) Unwrap() error { return e.Err }

// CapacityScope is how far a lack of capacity extends.
type CapacityScope string

// The scopes, from narrowest to widest.
const (
	ScopeZone   CapacityScope = "zone"   // this type and capacity type in this zone
	ScopeRegion CapacityScope = "region" // this type and capacity type in every zone of the region
	ScopeQuota  CapacityScope = "quota"  // every type with this GPU and capacity type in the region: the quota is exhausted
	ScopeCloud  CapacityScope = "cloud"  // every type with this GPU and capacity type in the whole cloud
)

// CapacityError reports that one offering has no capacity now; another offering may have some. Launch
// returns it only when nothing was created. If no offering of an object has capacity, Apply returns an
// *AllOfferingsExhaustedError.
type CapacityError struct {
	Offering Offering
	Scope    CapacityScope
	Code     string // the cloud's own code: InsufficientInstanceCapacity
	Err      error
}

// Error names the offering, the scope and the cloud's error.
func (e *CapacityError) Error() string {
	where := "in this " + string(e.Scope)
	if e.Scope == ScopeQuota {
		where = "within the quota"
	}
	return fmt.Sprintf("launching %s: no capacity %s (%s): %v", e.Offering, where, e.Code, e.Err)
}

// Unwrap returns the cause.
func (e *CapacityError) Unwrap() error { return e.Err }

// ThrottledError reports a call that a cloud still throttled after its client's retries. An
// earlier call of the same change may have succeeded.
type ThrottledError struct {
	Cloud string // aws, gcp
	Code  string // the cloud's own code: RequestLimitExceeded
	Err   error
}

// Error names the cloud and its code.
func (e *ThrottledError) Error() string {
	return fmt.Sprintf("calling %s: too many requests (%s): %v", e.Cloud, e.Code, e.Err)
}

// Unwrap returns the cause.
func (e *ThrottledError) Unwrap() error { return e.Err }

// AllOfferingsExhaustedError reports a desired object for which no offering has capacity.
type AllOfferingsExhaustedError struct {
	ID        string
	Region    service.Region
	Attempted []*CapacityError // in the order of attempts, without the skipped ones
	Skipped   Offerings        // not attempted, because they recently had no capacity
}

// Error lists the attempted offerings.
func (e *AllOfferingsExhaustedError) Error() string {
	text := fmt.Sprintf("launching %s in %s: none of %s has capacity", e.ID, e.Region, printable.Count(len(e.Attempted)+len(e.Skipped), "offering"))
	separator := ":" // and semicolons: the text is readable in one line, too
	for _, t := range e.Attempted {
		text += fmt.Sprintf("%s\n  %s: %s", separator, t.Offering, t.Code)
		separator = ";"
	}
	if len(e.Skipped) > 0 {
		text += fmt.Sprintf("%s\n  %d more skipped, without capacity in the last %.0f min", separator, len(e.Skipped), exhaustedFor.Minutes())
	}
	return text
}

// ShortenCredentialsError returns a short error instead of the AWS SDK's long one about missing credentials, which
// describes failed calls to the metadata server (EC2 IMDS). It returns other errors unchanged.
func ShortenCredentialsError(err error) error {
	if strings.Contains(err.Error(), "EC2 IMDS") {
		return errors.New("none in the environment, in the files of ~/.aws, or from a role of this machine")
	}
	return err
}

// CredentialsError reports missing, invalid or insufficient credentials of a cloud.
type CredentialsError struct {
	Cloud  string // aws, gcp
	Action string // the denied permission in the cloud's notation: ec2:RunInstances; empty = the credentials are invalid
	Code   string // the cloud's own code
	Err    error
	Hint   string // the next step
}

// Error names the cloud and the denied permission.
func (e *CredentialsError) Error() string {
	if e.Action == "" {
		return fmt.Sprintf("calling %s: no valid credentials: %v", e.Cloud, e.Err)
	}
	return fmt.Sprintf("calling %s: permission denied for %s: %v", e.Cloud, e.Action, e.Err)
}

// Unwrap returns the cause.
func (e *CredentialsError) Unwrap() error { return e.Err }

// OwnedError reports an object, or a DNS name, that belongs to another owner.
type OwnedError struct {
	Resource string // service chat, DNS name chat.example.com
	Where    string // the region, or the hosted zone
	Owner    string // if known
}

// Error names the object, its location and its owner.
func (e *OwnedError) Error() string {
	return fmt.Sprintf("%s in %s belongs to another owner (%s)", e.Resource, e.Where, cmp.Or(e.Owner, "unknown"))
}
