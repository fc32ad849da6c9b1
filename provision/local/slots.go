package local

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"skyserve/internal/atomicfile"
	"skyserve/internal/service"
	"skyserve/provision"
)

// slotFile is the content of slots.json. A slot is an object's index within the ports of its kind.
type slotFile struct {
	Port int `json:"port"` // local.port at that time
	// AdvertisedPort takes the place of Port in the addresses to which other machines connect; 0 = Port. Tests put proxies
	// there, which delay connections.
	AdvertisedPort int            `json:"advertised_port,omitempty"`
	Balancers      map[string]int `json:"balancers"`
	Engines        map[string]int `json:"engines"`
}

// assignSlots assigns a slot to every id for as long as the service exists. Adding a region or a replica does
// not change the ports of others. Ids that are neither desired nor present lose their slots. assignSlots does
// not write slots.json; Provider.endpoints does. Running objects with another base port are an error.
func (s Service) assignSlots(base int, balancers, engines []string) (slotFile, error) {
	old, _ := s.readSlots() // a damaged file counts as empty: slots are assigned anew
	objects, err := s.Objects()
	if err != nil {
		return slotFile{}, err
	}
	present := map[string]bool{}
	disks, err := os.ReadDir(filepath.Join(s.dir, dirMachines)) // also of machines whose processes do not hold their objects yet
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return slotFile{}, fmt.Errorf("listing the machines of %s: %w", s.name, err)
	}
	for _, d := range disks {
		present[d.Name()] = true
	}
	for _, o := range objects {
		present[o.ID] = true
	}
	if err := s.checkBase(base, old, objects); err != nil {
		return slotFile{}, err
	}
	return slotFile{
		Port: base, AdvertisedPort: old.AdvertisedPort,
		Balancers: assignFreeSlots(balancers, old.Balancers, present),
		Engines:   assignFreeSlots(engines, old.Engines, present),
	}, nil
}

// isRunning reports whether the process of an object runs.
func isRunning(o provision.Object) bool { return o.TerminatedReason == "" }

// checkBase returns an error if running objects use ports from another base.
func (s Service) checkBase(base int, old slotFile, objects []provision.Object) error {
	if slices.ContainsFunc(objects, isRunning) && old.Port != 0 && old.Port != base {
		return specError("%s: %s is running on ports from %d and cannot change to %d; first run 'skyserve down %s', which also deletes its history; 'skyserve backup' saves it", PortSetting, s.name, old.Port, base, s.name)
	}
	return nil
}

// readSlots reads the saved slots.
func (s Service) readSlots() (slots slotFile, err error) {
	data, err := os.ReadFile(s.configFile(fileSlots))
	if err != nil {
		return slotFile{}, err
	}
	return slots, atomicfile.DecodeJSON(s.configFile(fileSlots), data, &slots)
}

// assignFreeSlots keeps the slots of ids that are desired or present. It assigns the lowest free slot to each
// other desired id, in the order of desired.
func assignFreeSlots(desired []string, old map[string]int, present map[string]bool) map[string]int {
	slots, taken := map[string]int{}, map[int]bool{}
	for _, id := range slices.Sorted(maps.Keys(old)) {
		slot := old[id]
		if (slices.Contains(desired, id) || present[id]) && slot >= 0 && !taken[slot] {
			slots[id], taken[slot] = slot, true
		}
	}
	next := 0
	for _, id := range desired {
		if _, has := slots[id]; has {
			continue
		}
		for taken[next] {
			next++
		}
		slots[id], taken[next] = next, true
	}
	return slots
}

// slotIDs returns the ids of the balancers and the minimum replicas of a service, in the order of its file.
// The first ports are assigned to them.
func slotIDs(spec *service.Spec) (balancers, engines []string) {
	for _, r := range spec.Regions {
		for n := range r.Balancers {
			balancers = append(balancers, provision.BalancerID(r.Name, n))
		}
		for i := range spec.Models {
			for n := range spec.BoundsFor(spec.Models[i].Name, r.Name).Min {
				if r.Name.Cloud() == service.CloudLocal {
					engines = append(engines, provision.ReplicaID(spec, i, r.Name, n))
				}
			}
		}
	}
	return balancers, engines
}

// check returns an error if the number of objects or the base port exceeds its limit.
func (s slotFile) check() error {
	for _, slots := range []map[string]int{s.Balancers, s.Engines} {
		for _, id := range slices.Sorted(maps.Keys(slots)) {
			if slots[id] >= maxSlotsPerKind {
				return specError("assigning ports to %s: at most %d balancers and %d replicas are supported on one machine", id, maxSlotsPerKind, maxSlotsPerKind)
			}
		}
	}
	if s.Port < 1 || s.Port+lastOffset > maxPort {
		return specError("%s: must be from 1 to %d, got %d", PortSetting, maxPort-lastOffset, s.Port)
	}
	return nil
}

// endpoints returns the addresses of a machine of a kind.
func (s slotFile) endpoints(id string, kind provision.ObjectKind) provision.MachineEndpoints {
	at := func(offset int) string { return addrOf(s.Port + offset) }
	e := provision.MachineEndpoints{Listen: s.addresses(s.Port, id, kind), Loopback: loopback, Controller: at(controlOffset)}
	e.Advertised = s.addresses(cmp.Or(s.AdvertisedPort, s.Port), id, kind)
	switch kind {
	case provision.KindBalancer:
		e.Controller = at(controlOffset + min(s.Balancers[id], controlSlots-1))
	case provision.KindReplica:
		e.Engine, e.CacheEvents = at(engineOffset+s.Engines[id]), at(eventsOffset+s.Engines[id])
	}
	return e
}

// addresses returns the addresses of the units of a machine with a base port.
func (s slotFile) addresses(base int, id string, kind provision.ObjectKind) provision.Addresses {
	at := func(offset int) string { return addrOf(base + offset) }
	switch kind {
	case provision.KindNameServer:
		return provision.Addresses{Agent: at(replicaAgentOffset + s.Engines[id])}
	case provision.KindBalancer:
		n := s.Balancers[id]
		a := provision.Addresses{
			Public: at(n), PublicTLS: at(n), Admin: at(adminOffset + n), Challenge: at(challengeOffset + n), Agent: at(agentOffset + n), Store: at(storeOffset + min(n, controlSlots-1)),
		}
		if n < controlSlots {
			a.Routes = at(routesOffset + n)
		}
		return a
	}
	return provision.Addresses{Agent: at(replicaAgentOffset + s.Engines[id]), Replica: at(replicaOffset + s.Engines[id])}
}

// specError returns an error of the configuration.
func specError(format string, args ...any) error {
	return &provision.SpecError{Err: fmt.Errorf(format, args...)}
}
