package controller

import (
	"context"
	"errors"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Actuator is the way to what exists of a service: what was decided of its
// replicas, and changing that. Every change is kept before it is begun, so that
// after a crash the next one goes on with it.
type Actuator interface {
	// Current reads what was decided and what runs of it. Errors are of the
	// service's state.
	Current() (CurrentState, error)
	// Apply makes a change, and returns the ids of what it launched. It does not
	// wait until they serve, or until others have finished what they have; what was
	// left undone before is done too. may is asked last before anything is changed:
	// its error ends it. ErrBusy means that somebody else is changing the service.
	Apply(ctx context.Context, c Change, may func() error) (launched []string, err error)
}

// Market is an Actuator that knows what regions have for renting, and at which prices.
type Market interface {
	// Offers is what regions of the service were last seen to offer; those that it does not
	// look at are left out.
	Offers() map[service.Region]provision.Offerings
}

// ErrBusy says that somebody else is changing the service at this moment.
var ErrBusy = errors.New("the service is being changed by somebody else")

// ActedOn lets the controller scale the service through an actuator.
func ActedOn(a Actuator) Option { return func(o *options) { o.actuator = a } }

// CurrentState is a service's replicas as they were decided on.
type CurrentState struct {
	Spec *service.Spec
	// Replicas are in the order of service.yaml, those of a model and region by
	// their numbers.
	Replicas []CurrentReplica
	// Unfinished says that something that was decided does not hold yet, and that
	// Apply can do it.
	Unfinished bool
}

// CurrentReplica is one replica that was decided on.
type CurrentReplica struct {
	ID     string
	Model  string // empty where only the replica itself can tell
	Region service.Region
	GPU    string
	// On is what its machine is; the zero class where nobody knows.
	On  provision.Class
	URL string
	// Drained replicas are sent nothing because somebody wants it so.
	Drained bool
	// Donation is nil where the replica is not lent.
	Donation *service.Donation
}

// Change is a change of replicas. Each part may be empty.
type Change struct {
	Donate  []Donating
	Reclaim []string // donated ones that serve again
	Remove  []string // donated ones that are stopped
	Launch  []Launching
	Replace []Replacing
}

// Donating is a replica that is to be lent.
type Donating struct {
	ID string
	service.Donation
}

// Launching is so many new replicas of a model in a region.
type Launching struct {
	Model  string
	Region service.Region
	Count  int
	// On is what they run on where that can be had; else what service.yaml says comes next.
	On provision.Class
}

// Replacing is a replica that runs on something else than a plan wants: another is launched on
// that, and takes its place once it serves. Where it cannot be had the replica stays.
type Replacing struct {
	ID string
	On provision.Class
}
