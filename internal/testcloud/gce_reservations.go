package testcloud

import (
	"net/http"
	"path"
	"slices"
	"strconv"
	"time"
)

// GCEReserved is a reservation of the emulated project, in the terms of
// https://cloud.google.com/compute/docs/reference/rest/v1/reservations (November 2026). It is not enforced
// at launches.
type GCEReserved struct {
	Project string // the project that owns it; empty = the emulated one
	Name    string
	Zone    string
	Type    string
	Count   int
	Status  string    // empty = READY
	Deleted time.Time // when Google deletes it; zero = never
	// LocalSSDs is the number of local SSDs of each machine.
	LocalSSDs int
}

// PutReservation adds a reservation, or replaces the one with its name and zone.
func (g *GCE) PutReservation(v GCEReserved) {
	g.withLock(func() {
		if v.Project == "" {
			v.Project = g.project
		}
		if v.Status == "" {
			v.Status = "READY"
		}
		g.reserved = slices.DeleteFunc(g.reserved, func(o GCEReserved) bool {
			return o.Project == v.Project && o.Name == v.Name && o.Zone == v.Zone
		})
		g.reserved = append(g.reserved, v)
	})
}

type gceReservationAnswer struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Zone     string `json:"zone"`
	Status   string `json:"status"`
	Delete   string `json:"deleteAtTime,omitempty"`
	Required bool   `json:"specificReservationRequired"`
	Specific struct {
		Count      string `json:"count"`
		InUse      string `json:"inUseCount"`
		Properties struct {
			MachineType string            `json:"machineType"`
			LocalSSDs   []gceReservedDisk `json:"localSsds,omitempty"`
		} `json:"instanceProperties"`
	} `json:"specificReservation"`
}

// gceReservedDisk is a local SSD of a reservation.
type gceReservedDisk struct {
	DiskSizeGB string `json:"diskSizeGb"`
	Interface  string `json:"interface"`
}

// getReservation serves reservations.get.
func (g *GCE) getReservation(r *http.Request) (any, *gceError) {
	project, zone, name := r.PathValue("project"), r.PathValue("zone"), r.PathValue("name")
	at := slices.IndexFunc(g.reserved, func(v GCEReserved) bool { return v.Project == project && v.Zone == zone && v.Name == name })
	if at < 0 {
		return nil, newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s/zones/%s/reservations/%s' was not found", project, zone, name)
	}
	v, used := g.reserved[at], 0
	for _, i := range g.instances.all() {
		if a := i.ReservationAffinity; a != nil && path.Base(i.Zone) == zone && slices.ContainsFunc(a.Values, func(s string) bool { return path.Base(s) == name }) {
			used++
		}
	}
	answer := gceReservationAnswer{Kind: "compute#reservation", Name: name, Zone: g.link("zones/" + zone), Status: v.Status, Required: true}
	answer.Specific.Count, answer.Specific.InUse, answer.Specific.Properties.MachineType = strconv.Itoa(v.Count), strconv.Itoa(used), v.Type
	for range v.LocalSSDs {
		answer.Specific.Properties.LocalSSDs = append(answer.Specific.Properties.LocalSSDs, gceReservedDisk{strconv.Itoa(gceLocalSSDGB), "NVME"})
	}
	if !v.Deleted.IsZero() {
		answer.Delete = v.Deleted.Format(time.RFC3339)
	}
	return answer, nil
}
