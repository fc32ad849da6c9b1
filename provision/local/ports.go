package local

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"skyserve/provision"
)

// CheckPorts makes sure that every port that a launch needs is free. The error
// is of the first one that is not (a *provision.PortTakenError) and says how
// many more there are.
func (l *Layout) CheckPorts(changes provision.Changes) error {
	var taken []*provision.PortTakenError
	for _, c := range changes {
		if c.Action != provision.ActionLaunch {
			continue
		}
		for _, p := range l.recipes[c.ID()].Ports {
			if PortTaken(p.Addr) {
				taken = append(taken, &provision.PortTakenError{Addr: p.Addr, ID: c.ID(), Purpose: p.Purpose, Setting: cmp.Or(p.Setting, portSetting)})
			}
		}
	}
	if len(taken) == 0 {
		return nil
	}
	first := slices.MinFunc(taken, func(a, b *provision.PortTakenError) int { return strings.Compare(a.Addr, b.Addr) })
	first.Holder = l.svc.home.holder(first.Addr)
	if len(taken) == 1 {
		return first
	}
	return fmt.Errorf("%w (ports taken in all: %d)", first, len(taken))
}

// PortTaken tells whether somebody listens on an address of this machine.
func PortTaken(addr string) bool {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return errors.Is(err, syscall.EADDRINUSE)
	}
	ln.Close()
	return false
}

// holder names the object of a service of this machine that has an address,
// empty when none is known to.
func (h Home) holder(addr string) string {
	names, _ := h.Services() // it is only for the wording of an error
	for _, name := range names {
		svc, err := h.Service(name)
		if err != nil {
			continue
		}
		objects, _ := svc.Objects()
		for _, o := range objects {
			if o.Gone == "" && (hostOf(o.Address) == addr || hostOf(o.Admin) == addr || o.Labels[labelStore] == addr) {
				return o.ID + " of the service " + name
			}
		}
	}
	return ""
}

// hostOf is the host:port of a base URL.
func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Host
}

// Ports are the addresses that the processes of the service were given when it
// was last brought up, by id; none when that is not known any more.
func (s Service) Ports() map[string][]string {
	slots, err := s.readSlots()
	if err != nil || slots.Port == 0 {
		return nil
	}
	at := func(offset int) string { return addrOf(slots.Port + offset) }
	ports := map[string][]string{provision.ControllerID: {at(storeOffset), at(controlOffset)}}
	for id, slot := range slots.Balancers {
		ports[id] = []string{at(slot), at(adminOffset + slot)}
	}
	for id, slot := range slots.Engines {
		ports[id] = []string{at(engineOffset + slot)}
	}
	return ports
}

// addrOf is a port of the loopback address.
func addrOf(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
