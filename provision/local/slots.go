package local

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
)

// slotFile is what slots.json holds: a slot is the place of an object within
// the ports of its kind.
type slotFile struct {
	Port      int            `json:"port"` // what local.port was
	Balancers map[string]int `json:"balancers"`
	Engines   map[string]int `json:"engines"`
}

// assignSlots gives every id a slot that it keeps for as long as the service
// exists: adding a region or a replica moves no port of another. Ids of objects
// that are neither wanted nor there any more give theirs back. Nothing is
// written; Layout.Save does that. A first port other than the one that running
// objects count from is an error.
func (s Service) assignSlots(base int, balancers, engines []string) (slotFile, error) {
	old, _ := s.readSlots() // a damaged file is as good as none: slots are dealt anew
	objects, err := s.Objects()
	if err != nil {
		return slotFile{}, err
	}
	present := map[string]bool{}
	for _, o := range objects {
		present[o.ID] = true
		if o.Gone == "" && old.Port != 0 && old.Port != base {
			return slotFile{}, specError("%s: %s runs at ports from %d on and cannot move to %d while it does; take it down first", portSetting, s.name, old.Port, base)
		}
	}
	return slotFile{
		Port:      base,
		Balancers: deal(balancers, old.Balancers, present),
		Engines:   deal(engines, old.Engines, present),
	}, nil
}

// readSlots reads the slots as they were last saved.
func (s Service) readSlots() (slots slotFile, err error) {
	data, err := os.ReadFile(s.configFile(fileSlots))
	if err != nil {
		return slotFile{}, err
	}
	return slots, json.Unmarshal(data, &slots)
}

// deal keeps the slots of ids that are wanted or present and gives each other
// wanted id the lowest free one, in the order given.
func deal(wanted []string, old map[string]int, present map[string]bool) map[string]int {
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
