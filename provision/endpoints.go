package provision

import "skyserve/internal/service"

// Addresses are the host:port pairs of the processes on a machine; empty for a process that does not
// run there, or while the machine has no address.
type Addresses struct {
	// Public is where a balancer serves clients in clear text, PublicTLS with TLS.
	Public    string `json:"public,omitempty"`
	PublicTLS string `json:"public_tls,omitempty"`
	// Admin is where the balancer serves operators and other balancers.
	Admin string `json:"admin,omitempty"`
	// Challenge is where a balancer responds to the certificate authority's http-01 challenge.
	Challenge string `json:"challenge,omitempty"`
	// Agent is where the machine's agent receives its configuration.
	Agent string `json:"agent,omitempty"`
	// Store is where the controller's store serves balancers.
	Store string `json:"store,omitempty"`
	// Routes is where the controller's store accepts the other members of its cluster; empty where it
	// cannot be a member.
	Routes string `json:"routes,omitempty"`
	// Replica is where a replica serves balancers: its agent forwards from there to the engine
	// (MachineEndpoints.Engine). The JSON key, an earlier name, does not change.
	Replica string `json:"engine,omitempty"`
}

// PublicAddress returns the address where a balancer serves the clients of a service.
func (a Addresses) PublicAddress(spec *service.Spec) string {
	if spec.Balancer.TLS != nil {
		return a.PublicTLS
	}
	return a.Public
}

// MachineEndpoints are the addresses of a machine: those that other machines connect to (Advertised),
// those that its own processes listen on (Listen), and those that only the machine itself uses. Like those of Object,
// the JSON keys do not change.
type MachineEndpoints struct {
	Advertised Addresses `json:"outside"`
	Listen     Addresses `json:"inside"`
	// Loopback is the machine's own loopback address, on which engines listen.
	Loopback string `json:"loopback"`
	// Engine is where the engine of a replica serves the machine's agent, host:port; empty = the default port of the
	// engine's kind, on Loopback.
	Engine string `json:"engine,omitempty"`
	// CacheEvents is where that engine publishes changes of its prefix cache, host:port; the port 100
	// above it sends earlier events again; empty = the default ports, on Loopback.
	CacheEvents string `json:"cache_events,omitempty"`
	// Controller is host:port, on loopback, where the controller serves its status.
	Controller string `json:"controller"`
}
