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
	agent := usedPort{at.Listen.Agent, "agent", portSetting}
	switch kind {
	case provision.KindBalancer:
		return []usedPort{{at.Listen.Public, "public", portSetting}, {at.Listen.Admin, "admin", portSetting}, agent}
	case provision.KindNameServer:
		return []usedPort{{dns, "dns", "dns.listen"}, agent}
	}
	return []usedPort{{at.Engine, "engine", portSetting}, {at.Listen.Engine, "engine for balancers", portSetting}, agent}
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
	portSetting     = "local.port"
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

// portUser returns the object of a service on this machine that uses an address; empty if it is unknown.
func (h Home) portUser(addr string) string {
	names, _ := h.Services() // the result only completes an error message
	for _, name := range names {
		svc, err := h.Service(name)
		if err != nil {
			continue
		}
		objects, _ := svc.Objects()
		for _, o := range objects {
			if o.TerminatedReason == "" && slices.ContainsFunc(append(portsOf(o.Endpoints, o.Kind, ""), usedPort{addr: hostOf(o.Address)}, usedPort{addr: hostOf(o.Admin)}), func(u usedPort) bool { return u.addr == addr }) {
				return o.ID + " of service " + name
			}
		}
	}
	return ""
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
