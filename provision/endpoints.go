package provision

import "skyserve/internal/service"

// Addresses are host:port of the programs of a machine; empty where it has none, or no
// address yet.
type Addresses struct {
	// Public is where a balancer answers clients without TLS, PublicTLS with it.
	Public    string `json:"public,omitempty"`
	PublicTLS string `json:"public_tls,omitempty"`
	// Admin is where it answers operators and other balancers.
	Admin string `json:"admin,omitempty"`
	// Challenge is where a balancer answers an authority that makes sure of a name (http-01).
	Challenge string `json:"challenge,omitempty"`
	// Agent is where the machine takes what it is to run.
	Agent string `json:"agent,omitempty"`
	// Store is where the controller's store answers balancers.
	Store string `json:"store,omitempty"`
	// Engine is where a replica lets balancers in.
	Engine string `json:"engine,omitempty"`
}

// PublicFor is where a balancer answers the clients of a service.
func (a Addresses) PublicFor(spec *service.Spec) string {
	if spec.Balancer.TLS != nil {
		return a.PublicTLS
	}
	return a.Public
}

// Endpoints are the addresses of a machine: those by which other machines reach it, those that
// its own programs listen on, and those that nobody but itself uses.
type Endpoints struct {
	Outside Addresses `json:"outside"`
	Inside  Addresses `json:"inside"`
	// Loopback is the machine's own loopback address, on which engines listen.
	Loopback string `json:"loopback"`
	// Engine is where the engine of a replica listens on it, host:port; empty where that follows
	// from its kind.
	Engine string `json:"engine,omitempty"`
	// Controller is host:port, on loopback, where the controller says how it does.
	Controller string `json:"controller"`
}
