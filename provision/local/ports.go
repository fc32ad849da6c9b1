package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"syscall"
	"time"

	"skyserve/provision"
)

// usedPort is an address that a machine listens on.
type usedPort struct {
	addr, purpose string
	setting       string // the setting of service.yaml that changes the port
}

// portsOf returns the addresses that a machine of a kind listens on. dns is the address of a name server.
func portsOf(at provision.MachineEndpoints, kind provision.ObjectKind, dns string) []usedPort {
	agent := usedPort{at.Listen.Agent, "agent", PortSetting}
	switch kind {
	case provision.KindBalancer:
		return []usedPort{{at.Listen.Public, "public", PortSetting}, {at.Listen.Admin, "admin", PortSetting}, agent}
	case provision.KindNameServer:
		return []usedPort{{dns, "dns", "dns.listen"}, agent}
	}
	return []usedPort{{at.Engine, "engine", PortSetting}, {at.Listen.Replica, "engine for balancers", PortSetting}, agent}
}

// PortSetting is the setting of service.yaml from which the ports of a service are counted.
const PortSetting = "local.port"

// allPortsOf returns portsOf with the ports of a balancer's controller and store, which run on few balancers.
func allPortsOf(at provision.MachineEndpoints, kind provision.ObjectKind) []usedPort {
	ports := portsOf(at, kind, "")
	if kind == provision.KindBalancer && at.Listen.Routes != "" { // it may run a controller
		ports = append(ports, usedPort{at.Listen.Store, "store", PortSetting}, usedPort{at.Controller, "controller", PortSetting})
	}
	return ports
}

// The ports of a service, as offsets from local.port. Each kind has maxSlotsPerKind ports.
const (
	defaultPort  = 8001
	adminOffset  = 100
	engineOffset = 200
	// The first controlSlots balancers can run a controller with a member of the store's cluster.
	storeOffset   = 300
	controlOffset = 310
	routesOffset  = 305
	controlSlots  = 5
	// challengeOffset is the offset of the ports where balancers respond to http-01 challenges.
	challengeOffset = 400
	maxSlotsPerKind = 100
	loopback        = "127.0.0.1"
	maxPort         = 65535
)

// IsPortInUse reports whether a process listens on an address of this machine.
func IsPortInUse(addr string) bool {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return errors.Is(err, syscall.EADDRINUSE)
	}
	ln.Close()
	return false
}

// portUsers returns the running objects of all services on this machine that use an address, such as "lb-us-0 of
// service chat", by address. other selects the services.
func (h Home) portUsers(other func(service string) bool) map[string]string {
	users := map[string]string{}
	names, _ := h.Services() // the result only completes what is known from the ports themselves
	for _, name := range names {
		svc, err := h.Service(name)
		if err != nil || !other(name) {
			continue
		}
		objects, _ := svc.Objects()
		for _, o := range objects {
			if o.TerminatedReason != "" {
				continue
			}
			for _, used := range append(allPortsOf(o.Endpoints, o.Kind), usedPort{addr: hostOf(o.Address)}, usedPort{addr: hostOf(o.Admin)}) {
				if used.addr != "" {
					users[used.addr] = o.ID + " of service " + name
				}
			}
		}
	}
	return users
}

// portStep is the distance of the base ports that FreePort tries: services that far apart share no port.
const portStep = 1000

// FreePort returns a value of local.port with which the processes of the service would use no port that is in use now
// or assigned to a running process of another service; 0 if there is none.
func (p *Provider) FreePort() int {
	balancers, engines := slotIDs(p.spec)
	users := p.svc.home.portUsers(func(name string) bool { return name != p.svc.name })
	for port := defaultPort; port+lastOffset <= maxPort; port += portStep {
		slots := slotFile{Port: port, Balancers: assignFreeSlots(balancers, nil, nil), Engines: assignFreeSlots(engines, nil, nil)}
		var ports []usedPort
		for id := range slots.Balancers {
			ports = append(ports, allPortsOf(slots.endpoints(id, provision.KindBalancer), provision.KindBalancer)...)
		}
		for id := range slots.Engines {
			ports = append(ports, allPortsOf(slots.endpoints(id, provision.KindReplica), provision.KindReplica)...)
		}
		if !slices.ContainsFunc(ports, func(u usedPort) bool { return users[u.addr] != "" || IsPortInUse(u.addr) }) {
			return port
		}
	}
	return 0
}

// hostOf returns the host:port of a base URL.
func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Host
}

// Ports returns the addresses that the last `up` assigned to the service's processes, by id; none if they are
// unknown.
func (s Service) Ports() map[string][]string {
	slots, err := s.readSlots()
	if err != nil || slots.Port == 0 {
		return nil
	}
	ports := map[string][]string{}
	of := slots
	add := func(slots map[string]int, kind provision.ObjectKind) {
		for id := range slots {
			for _, used := range portsOf(of.endpoints(id, kind), kind, "") {
				ports[id] = append(ports[id], used.addr)
			}
		}
	}
	add(slots.Balancers, provision.KindBalancer)
	add(slots.Engines, provision.KindReplica)
	return ports
}

// addrOf returns the loopback address with a port.
func addrOf(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// freeTimeout is how long a process may take to detect that its object file was removed, and to exit.
const freeTimeout = DefaultGrace + 3*time.Second

// WaitPortsFree waits until ports are free, and describes the ports that remain in use. ports contains
// addresses by the id of the object that last used them.
func WaitPortsFree(ctx context.Context, ports map[string][]string) []string {
	ctx, cancel := context.WithTimeout(ctx, freeTimeout)
	defer cancel()
	for {
		var remaining []string
		for _, id := range slices.Sorted(maps.Keys(ports)) {
			for _, addr := range ports[id] {
				if IsPortInUse(addr) {
					remaining = append(remaining, fmt.Sprintf("%s is still in use by %s", addr, id))
				}
			}
		}
		if len(remaining) == 0 || !sleep(ctx, pollInterval) {
			return remaining
		}
	}
}
