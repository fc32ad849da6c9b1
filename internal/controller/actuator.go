package controller

import (
	"context"
	"errors"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// Actuator reads and changes the replicas of a service. It stores every change before making it, so
// that after a crash the next Apply completes the change.
type Actuator interface {
	// Current returns the replicas and their state. It returns an error where the state of
	// the service cannot be read.
	Current() (CurrentState, error)
	// Apply makes a change and returns the IDs of the launched replicas. It does not wait until
	// they are ready or others have drained. It also completes unfinished earlier changes.
	// Apply calls checkLeadership immediately before the first change. When that returns an error, no
	// change is allowed any more, and Apply returns the error without a change. ErrBusy means that the
	// service cannot be changed now.
	Apply(ctx context.Context, c CapacityChange, checkLeadership func() error) (launched []string, err error)
}

// OfferingSource is an optional interface of an Actuator, which returns the offerings of regions with
// their prices, and reservations.
type OfferingSource interface {
	// Offerings returns the last known offerings of the service's regions; regions without observed
	// offerings are missing.
	Offerings() map[service.Region]provision.Offerings
	// Reservations returns the last known reservations that the service names by id.
	Reservations() map[service.Region][]provision.Reservation
}

// ErrBusy means that the service cannot be changed now, for example because another process is
// changing it.
var ErrBusy = errors.New("the service cannot be changed now")

// WithActuator lets the controller scale the service through an actuator.
func WithActuator(a Actuator) Option { return func(o *options) { o.actuator = a } }

// CurrentState contains the replicas that a service has or is starting.
type CurrentState struct {
	Spec *service.Spec
	// Replicas are in the order of service.yaml; those of a model and region are ordered by number.
	Replicas []CurrentReplica
	// Launches is what may be launched now and what failed before; nil where it is unknown.
	Launches *telemetry.Launches
	// Starts are the starts of replicas, as in telemetry.Scaling.
	Starts []telemetry.ReplicaStart
	// Machines are the machines of replicas, as in telemetry.Scaling.
	Machines []telemetry.ReplicaMachine
	// States are the replicas and balancers that are not ready, and drained and donated replicas, as in
	// telemetry.Scaling.
	States []telemetry.MachineState
	// Unfinished is true when a stored change is incomplete and Apply can complete it.
	Unfinished bool
}

// CurrentReplica is one replica of CurrentState.
type CurrentReplica struct {
	ID     string
	Model  string // empty where only the replica itself reports it
	Region service.Region
	GPU    string
	// Class is its replica class: GPU, number of GPUs and capacity type. It is the zero class where that is unknown.
	Class provision.ReplicaClass
	URL   string
	// Drained is true if the replica receives no requests because an operator drained it, or because it is interrupted
	// or replaced. Replicas that the scaler drains to donate or remove them have a Donation instead.
	Drained bool
	// Donation is set for two kinds of replicas, which receive no requests; nil for others. A donated replica is kept: its
	// machine is available to other work until the replica is reclaimed, which is faster than a launch, or removed. A
	// replica that the scaler drains to remove it is not donated (isDonated): its Until is equal to its Since, so that
	// Donation.Draining returns true.
	Donation *service.Donation
}

// CapacityChange is a change of replicas. Each field may be empty.
type CapacityChange struct {
	// Drain contains all replicas to drain: those to donate and those to remove.
	Drain   []ReplicaDrain
	Reclaim []string // donated replicas that serve again
	Remove  []string // donated or drained replicas that are stopped
	Launch  []ReplicaLaunch
	Replace []ReplicaReplacement
}

// ReplicaDrain is a replica to drain, and the Donation that it then has: see CurrentReplica.
type ReplicaDrain struct {
	ID string
	service.Donation
}

// ReplicaLaunch is a number of new replicas of a model in a region.
type ReplicaLaunch struct {
	Model  string
	Region service.Region
	Count  int
	// Class is the preferred replica class; where it is unavailable, the next class of service.yaml is
	// used.
	Class provision.ReplicaClass
}

// ReplicaReplacement is a replica whose replica class differs from the plan. A replacement of the planned
// class is launched; the replica serves until the replacement is ready. If that class is
// unavailable, the replica stays.
type ReplicaReplacement struct {
	ID    string
	Class provision.ReplicaClass
}
