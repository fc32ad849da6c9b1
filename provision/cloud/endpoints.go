package cloud

import (
	"net"
	"net/netip"
	"strconv"

	"skyserve/internal/service"
	"skyserve/provision"
)

// The ports of the processes on a machine in a cloud.
const (
	// PortPublic is where a balancer serves clients in clear text, PortTLS with TLS.
	PortPublic = 8000
	PortTLS    = 443
	// PortChallenge is where a balancer responds to http-01 challenges of the certificate authority for the
	// service's DNS name, and to no other requests.
	PortChallenge = 80
	// PortAdmin is where a balancer serves operators and other balancers, authenticated by certificates
	// of the service.
	PortAdmin = 8100
	// PortAgent is where a machine's agent receives its configuration from an operator or a controller of
	// the service.
	PortAgent = 8200
	// PortStore is where the controller's store serves balancers, authenticated by certificates of the
	// service.
	PortStore = 8400
	// PortController is where the controller serves its status, on loopback only.
	PortController = 8410
	// PortRoutes is where the controller's store accepts the other members of its cluster, authenticated by
	// certificates of controllers.
	PortRoutes = 8420
	// PortReplica is where a replica serves balancers.
	PortReplica = 8300
)

// PublicPort returns the port where the balancers of a service serve clients.
func PublicPort(spec *service.Spec) int {
	if spec.Balancer.TLS != nil {
		return PortTLS
	}
	return PortPublic
}

// EndpointsOf returns the addresses of the processes on a machine. The network of a cloud translates public
// addresses to private ones, so processes listen on the private address. A provider whose machines share an
// IP address sets Object.Endpoints.
func EndpointsOf(o provision.Object) provision.MachineEndpoints {
	if o.Endpoints != (provision.MachineEndpoints{}) {
		return o.Endpoints
	}
	loopback := loopbackOf(o)
	return provision.MachineEndpoints{
		Advertised: addressesAt(o.PublicIP), Listen: addressesAt(o.PrivateIP),
		Loopback: loopback, Controller: net.JoinHostPort(loopback, strconv.Itoa(PortController)),
	}
}

// addressesAt returns the addresses of a machine's processes at an IP address; none for the zero address.
func addressesAt(ip netip.Addr) provision.Addresses {
	if !ip.IsValid() {
		return provision.Addresses{}
	}
	at := func(port int) string { return net.JoinHostPort(ip.String(), strconv.Itoa(port)) }
	return provision.Addresses{
		Public: at(PortPublic), PublicTLS: at(PortTLS), Admin: at(PortAdmin), Challenge: at(PortChallenge),
		Agent: at(PortAgent), Store: at(PortStore), Routes: at(PortRoutes), Replica: at(PortReplica),
	}
}

// loopbackOf returns a machine's own loopback address. The machines of an emulated cloud share one
// loopback network, each with its own address.
func loopbackOf(o provision.Object) string {
	if o.PrivateIP.IsLoopback() {
		return o.PrivateIP.String()
	}
	return "127.0.0.1"
}
