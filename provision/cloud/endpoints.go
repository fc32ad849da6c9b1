package cloud

import (
	"net"
	"net/netip"
	"strconv"

	"skyserve/internal/service"
	"skyserve/provision"
)

// The ports of machines in a cloud.
const (
	// PortPublic is where a balancer answers clients without TLS, PortTLS with it.
	PortPublic = 8000
	PortTLS    = 443
	// PortChallenge is where a balancer answers an authority that makes sure of the service's
	// name over HTTP (http-01), and nobody else.
	PortChallenge = 80
	// PortAdmin is where a balancer answers operators and other balancers, who bring
	// certificates of the service.
	PortAdmin = 8100
	// PortNode is where a machine takes its configuration from an operator or a
	// balancer of the service.
	PortNode = 8200
	// PortStore is where the controller's store answers balancers, who bring certificates
	// of the service; PortController, on loopback, where the controller says how it does.
	PortStore      = 8400
	PortController = 8410
	// PortEngine is where a replica admits balancers.
	PortEngine = 8300
)

// PublicPort is where the balancers of a service answer clients.
func PublicPort(spec *service.Spec) int {
	if spec.Balancer.TLS != nil {
		return PortTLS
	}
	return PortPublic
}

// EndpointsOf are the addresses of the programs of a machine. The network of a cloud
// translates public addresses, so that programs listen on the private one. A provider of
// machines that share an address says itself which ports each of them has.
func EndpointsOf(o provision.Object) provision.Endpoints {
	if o.Endpoints != (provision.Endpoints{}) {
		return o.Endpoints
	}
	loopback := loopbackOf(o)
	return provision.Endpoints{
		Outside: addressesAt(o.PublicIP), Inside: addressesAt(o.PrivateIP),
		Loopback: loopback, Controller: net.JoinHostPort(loopback, strconv.Itoa(PortController)),
	}
}

// addressesAt are those of a machine at an address; none without one.
func addressesAt(ip netip.Addr) provision.Addresses {
	if !ip.IsValid() {
		return provision.Addresses{}
	}
	at := func(port int) string { return net.JoinHostPort(ip.String(), strconv.Itoa(port)) }
	return provision.Addresses{
		Public: at(PortPublic), PublicTLS: at(PortTLS), Admin: at(PortAdmin), Challenge: at(PortChallenge),
		Agent: at(PortNode), Store: at(PortStore), Engine: at(PortEngine),
	}
}

// loopbackOf is a machine's own loopback address. Those of an emulated cloud share one
// loopback network.
func loopbackOf(o provision.Object) string {
	if o.PrivateIP.IsLoopback() {
		return o.PrivateIP.String()
	}
	return "127.0.0.1"
}
