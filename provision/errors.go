package provision

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"skyserve/internal/service"
)

// ErrCannotReload says that an object cannot take up another configuration while
// it runs: it does not answer, or does not know how.
var ErrCannotReload = errors.New("it cannot reload")

// PortTakenError is a port that an object needs and somebody else holds.
type PortTakenError struct {
	Holder  string // who has it, as far as that is known; empty = another program
	Addr    string // host:port
	ID      string // the object that needs it
	Purpose string // what the object needs it for: "public", "admin", "store", ...
	Setting string // the setting of service.yaml that moves it
}

// Error names the address, who wanted it for what, and the way out.
func (e *PortTakenError) Error() string {
	return fmt.Sprintf("%s is taken by %s: %s needs it (%s); set %s in service.yaml to another port",
		e.Addr, cmp.Or(e.Holder, "another program"), e.ID, e.Purpose, e.Setting)
}

// StartError is an object that ended before it was up.
type StartError struct {
	ID   string
	Err  error    // how it ended
	Log  []string // the last lines that it wrote
	File string   // where the whole log is
}

// Error says what ended, how, and its last words.
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

// Unwrap gives the cause.
func (e *StartError) Unwrap() error { return e.Err }

// LeftoverError lists what is still there after everything was told to go.
type LeftoverError struct {
	Service string
	Left    []string // each names a thing and where it is
}

// Error lists the leftovers.
func (e *LeftoverError) Error() string {
	return fmt.Sprintf("removing %s: %d left over:\n  %s", e.Service, len(e.Left), strings.Join(e.Left, "\n  "))
}

// SpecError is a service.yaml that cannot be carried out, although it is well formed.
type SpecError struct{ Err error }

// Error says why.
func (e *SpecError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *SpecError) Unwrap() error { return e.Err }

// Scope is how far a refusal of capacity reaches.
type Scope string

// The scopes, from the narrowest.
const (
	ScopeZone   Scope = "zone"   // this type and capacity type in this zone
	ScopeRegion Scope = "region" // this type and capacity type in every zone of the region
	ScopeQuota  Scope = "quota"  // every type with this GPU and capacity type in the region: the account may not have more
	ScopeCloud  Scope = "cloud"  // every type with this GPU and capacity type in the whole cloud
)

// CapacityError is an offering that cannot be had now; another one may. Launch
// returns it only when nothing was made.
type CapacityError struct {
	Offering Offering
	Scope    Scope
	Code     string // the cloud's own: InsufficientInstanceCapacity
	Err      error
}

// Error says what could not be had and how the cloud put it.
func (e *CapacityError) Error() string {
	return fmt.Sprintf("launching %s: no capacity (%s, of the whole %s): %v", e.Offering, e.Code, e.Scope, e.Err)
}

// Unwrap gives the cause.
func (e *CapacityError) Unwrap() error { return e.Err }

// NoCapacityError is a wanted object for which every offering was refused.
type NoCapacityError struct {
	ID     string
	Region service.Region
	Tried  []*CapacityError // in the order of trying; those passed over because they were refused a while ago are not in it
	Passed Offerings        // passed over
}

// Error lists what was tried.
func (e *NoCapacityError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "launching %s in %s: none of %d offerings has capacity", e.ID, e.Region, len(e.Tried)+len(e.Passed))
	for _, t := range e.Tried {
		fmt.Fprintf(&b, "\n  %s: %s", t.Offering, t.Code)
	}
	if len(e.Passed) > 0 {
		fmt.Fprintf(&b, "\n  %d more were refused in the last %s", len(e.Passed), exhaustedFor)
	}
	return b.String()
}

// CredentialsError is a cloud that does not know who asks, or does not let them.
type CredentialsError struct {
	Cloud  string // aws, gcp
	Action string // what was refused, in the cloud's words: ec2:RunInstances; empty = everything
	Code   string // the cloud's own
	Err    error
	Hint   string // what to do next
}

// Error says which cloud refused what.
func (e *CredentialsError) Error() string {
	if e.Action == "" {
		return fmt.Sprintf("reaching %s: no valid credentials: %v", e.Cloud, e.Err)
	}
	return fmt.Sprintf("reaching %s: %s is not allowed: %v", e.Cloud, e.Action, e.Err)
}

// Unwrap gives the cause.
func (e *CredentialsError) Unwrap() error { return e.Err }

// OwnedError is an object, or a name, that belongs to somebody else.
type OwnedError struct {
	What  string // service chat, record chat.example.com
	Where string // the region, or the zone
	Owner string // as far as it is known
}

// Error says what is taken, and by whom.
func (e *OwnedError) Error() string {
	return fmt.Sprintf("%s in %s belongs to another owner (%s)", e.What, e.Where, cmp.Or(e.Owner, "who left no name"))
}
