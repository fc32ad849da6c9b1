package provision

import (
	"context"
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
)

// Object is one thing that exists for a service: a process of this machine or
// a VM of a cloud. It is read from where the thing lives (lock files, tags),
// never from a list kept beside it.
type Object struct {
	// ID is unique in the service (us-0, lb-us-0, controller), except when a
	// crash left two of the same; Handle tells those apart.
	ID      string         `json:"id"`
	Kind    Kind           `json:"kind"`
	Service string         `json:"service"`
	Region  service.Region `json:"region,omitempty"`
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
	Region      service.Region
	Spec        string
	Fixed       string // see Object
	Build       string
	Address     string
	Admin       string
	Labels      map[string]string
	CostPerHour float64
	// Recipe is how to make it, in the words of the provider that will; no
	// other room reads it, and it may hold secrets, so it is never shown.
	Recipe []byte
}

// Provider makes and removes objects in one place. Its methods are safe for
// concurrent use and safe to repeat.
type Provider interface {
	// List reads every object of a service, those that no longer run included
	// as long as a trace of them exists.
	List(ctx context.Context, service string) ([]Object, error)
	// Launch makes what is wanted and returns it once it exists, which is
	// before it is ready. When the same object with the same Spec runs already,
	// that one is returned. Errors include *PortTakenError and *StartError.
	Launch(ctx context.Context, w Want) (Object, error)
	// Terminate stops an object and removes every trace of it, and returns once
	// that is certain. Terminating what does not exist is no error.
	Terminate(ctx context.Context, o Object) error
}
