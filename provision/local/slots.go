package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
)

// slotFile is the content of slots.json. A slot is an object's index within the ports of its kind.
type slotFile struct {
	Port      int            `json:"port"` // local.port at that time
	Balancers map[string]int `json:"balancers"`
	Engines   map[string]int `json:"engines"`
}

// assignSlots assigns a slot to every id for as long as the service exists: adding a region or a
// replica changes no port of another. Ids that are neither wanted nor present lose their slots. It
// writes nothing; endpoints does. It is an error if running objects use another first port.
func (s Service) assignSlots(base int, balancers, engines []string) (slotFile, error) {
	old, _ := s.readSlots() // a damaged file counts as empty: slots are assigned anew
	objects, err := s.Objects()
	if err != nil {
		return slotFile{}, err
	}
	present := map[string]bool{}
	disks, err := os.ReadDir(filepath.Join(s.dir, dirMachines)) // includes machines whose processes do not hold their objects yet
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
		Port:      base,
		Balancers: assignFreeSlots(balancers, old.Balancers, present),
		Engines:   assignFreeSlots(engines, old.Engines, present),
	}, nil
}

// checkBase returns an error where running objects count their ports from another base.
func (s Service) checkBase(base int, old slotFile, objects []provision.Object) error {
	runs := slices.ContainsFunc(objects, func(o provision.Object) bool { return o.TerminatedReason == "" })
	if runs && old.Port != 0 && old.Port != base {
		return specError("%s: %s is running on ports from %d and cannot change to %d; run 'skyserve down' first", portSetting, s.name, old.Port, base)
	}
	return nil
}

// readSlots reads the saved slots.
func (s Service) readSlots() (slots slotFile, err error) {
	data, err := os.ReadFile(s.configFile(fileSlots))
	if err != nil {
		return slotFile{}, err
	}
	return slots, json.Unmarshal(data, &slots)
}

// assignFreeSlots keeps the slots of ids that are wanted or present, and gives each other wanted id the lowest
// free slot, in the order given.
func assignFreeSlots(wanted []string, old map[string]int, present map[string]bool) map[string]int {
	slots, taken := map[string]int{}, map[int]bool{}
	for _, id := range slices.Sorted(maps.Keys(old)) {
		slot := old[id]
		if (slices.Contains(wanted, id) || present[id]) && slot >= 0 && !taken[slot] {
			slots[id], taken[slot] = slot, true
		}
	}
	next := 0
	for _, id := range wanted {
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

// slotIDs returns the balancers and the minimum replicas of a service, in the order of its file: they
// get the first ports.
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

// check returns an error unless every object has ports of its own.
func (s slotFile) check() error {
	for _, slots := range []map[string]int{s.Balancers, s.Engines} {
		for _, id := range slices.Sorted(maps.Keys(slots)) {
			if slots[id] >= maxSlotsPerKind {
				return specError("placing %s on this machine: at most %d balancers and %d replicas are supported", id, maxSlotsPerKind, maxSlotsPerKind)
			}
		}
	}
	if s.Port < 1 || s.Port+lastOffset > 65535 {
		return specError("%s: must be from 1 to %d, got %d", portSetting, 65535-lastOffset, s.Port)
	}
	return nil
}

// endpoints returns the addresses of a machine of a kind.
func (s slotFile) endpoints(id string, kind provision.ObjectKind) provision.MachineEndpoints {
	at := func(offset int) string { return addrOf(s.Port + offset) }
	e := provision.MachineEndpoints{Loopback: loopback, Controller: at(controlOffset)}
	switch kind {
	case provision.KindNameServer:
		e.Listen = provision.Addresses{Agent: at(replicaAgentOffset + s.Engines[id])}
	case provision.KindBalancer:
		n := s.Balancers[id]
		e.Listen = provision.Addresses{
			Public: at(n), PublicTLS: at(n), Admin: at(adminOffset + n), Challenge: at(challengeOffset + n), Agent: at(agentOffset + n), Store: at(storeOffset),
		}
	default:
		n := s.Engines[id]
		e.Listen = provision.Addresses{Agent: at(replicaAgentOffset + n), Engine: at(replicaOffset + n)}
		e.Engine = at(engineOffset + n)
	}
	e.Advertised = e.Listen
	return e
}

// specError returns an error of configuration.
func specError(format string, args ...any) error {
	return &provision.SpecError{Err: fmt.Errorf(format, args...)}
}
