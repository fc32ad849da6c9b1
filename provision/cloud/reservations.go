package cloud

import (
	"fmt"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Reservations are the reservations of a service that the clouds report.
type Reservations struct {
	ByRegion map[service.Region][]provision.Reservation
	// Unknown contains the error of each region whose reservations could not be read.
	Unknown map[service.Region]error
}

// find returns a reservation of a region by its id; nil if the cloud does not report it.
func (r Reservations) find(region service.Region, id string) *provision.Reservation {
	all := r.ByRegion[region]
	at := slices.IndexFunc(all, func(v provision.Reservation) bool { return v.ID == id })
	if at < 0 {
		return nil
	}
	return &all[at]
}

// InOrder returns the reservations of a service, in the order of service.yaml.
func (r Reservations) InOrder(spec *service.Spec) []provision.Reservation {
	all := []provision.Reservation{}
	for _, region := range spec.Regions {
		for _, id := range ReservationIDs(region) {
			if v := r.find(region.Name, id); v != nil {
				all = append(all, *v)
			}
		}
	}
	return all
}

// ReservationIDs returns the ids of a region's reservations, in the order of service.yaml.
func ReservationIDs(r service.RegionSpec) []string {
	var ids []string
	for _, entry := range r.Reserved {
		if entry.ID != "" {
			ids = append(ids, entry.ID)
		}
	}
	return ids
}

// CheckReservations checks whether the service can use the reservations that regions[].reserved names by id. have
// contains the existing objects of the service, at is the current time. It warns of a reservation that has not
// started or ends soon.
func CheckReservations(spec *service.Spec, reported Reservations, offers map[service.Region]provision.Offerings, have []provision.Object, at time.Time) []provision.CheckResult {
	var results []provision.CheckResult
	for i, r := range spec.Regions {
		if err := reported.Unknown[r.Name]; err != nil && len(ReservationIDs(r)) > 0 {
			results = append(results, provision.CheckResult{Where: string(r.Name), Message: "reservations: " + err.Error(), Hint: "permit this identity to read reservations, or remove the ids from regions[].reserved"})
			continue
		}
		for j, entry := range r.Reserved {
			if entry.ID == "" {
				continue
			}
			v := reported.find(r.Name, entry.ID)
			result := checkReservation(r.Name, entry, v, offers[r.Name], machinesIn(r.Name, entry.ID, have), at)
			if !result.OK && result.Hint == "" {
				result.Hint = fmt.Sprintf("correct regions[%d].reserved[%d]", i, j)
			}
			results = append(results, result)
		}
	}
	return results
}

// checkReservation checks one entry. reported is the reservation as the cloud reports it, nil if it does not. offers
// are the offerings of the region, and ours is the number of the service's machines in the reservation. A failed check
// without a hint means that the entry is wrong.
func checkReservation(region service.Region, entry service.Reservation, reported *provision.Reservation, offers provision.Offerings, ours int, at time.Time) provision.CheckResult {
	result := provision.CheckResult{Where: string(region), Message: "reservation " + entry.ID + ": "}
	if problem, hint := reservationProblem(region, entry, reported, offers, ours); problem != "" {
		result.Message, result.Hint = result.Message+problem, hint
		return result
	}
	result.OK = true
	result.Message += DescribeReservation(reported)
	warning, hint := reservationWarning(reported, at)
	if result.Warning = warning != ""; result.Warning {
		result.Message, result.Hint = result.Message+"; "+warning, hint
	}
	return result
}

// reservationWarning returns the warning for a usable reservation, and the next step; empty if there is none.
func reservationWarning(v *provision.Reservation, at time.Time) (warning, hint string) {
	end := v.MachinesEnd()
	switch {
	case v.Pending:
		return "not active yet: until it is active, replicas use other capacity", ""
	case v.Ends.IsZero() || at.Add(provision.WarnBeforeEnd).Before(v.Ends):
		return "", ""
	case v.Block && !v.AcceptsMachines(at):
		return "no further machines are launched in it, because EC2 terminates its machines at " + formatTime(end), "remove it from regions[].reserved, or add another reservation"
	case v.Block:
		return "EC2 terminates its machines at " + formatTime(end), "buy the next block: skyserve offers blocks --region " + string(v.Region) + " --type " + v.Type
	}
	return "less than 24 hours are left; after the end its machines are billed on demand", "extend it, or add another reservation"
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// machinesIn returns the number of the service's machines in a reservation.
func machinesIn(region service.Region, id string, have []provision.Object) int {
	n := 0
	for _, o := range have {
		if o.TerminatedReason == "" && o.Region == region && o.Offering != nil && o.Offering.Reservation == id {
			n++
		}
	}
	return n
}

// reservationProblem returns why a service cannot use a reservation as configured, and the next step; empty
// if it can. An empty hint means that the entry is wrong.
func reservationProblem(region service.Region, entry service.Reservation, reported *provision.Reservation, offers provision.Offerings, ours int) (problem, hint string) {
	if reported == nil {
		return fmt.Sprintf("not found in %s; it does not exist, or another account has not shared it", region), ""
	}
	if !reported.Active && !reported.Pending {
		return "must be active, got state " + reported.State + describeTimes(reported), ""
	}
	_, launchable := provision.MachineTypeOf(region.Cloud(), entry.Type)
	switch {
	case reported.Type != entry.Type:
		return fmt.Sprintf("type must be %s, got %s", reported.Type, entry.Type), ""
	case !launchable:
		return entry.Type + " is not a type that skyserve launches", ""
	case !inZone(offers, reported.Zone):
		return fmt.Sprintf("the service has no subnet in its zone %s", reported.Zone), fmt.Sprintf("add a subnet in %s to regions[].subnets", reported.Zone)
	case reported.Pending && reported.Total >= entry.Count: // its machines are free when it starts
	case reported.Pending:
		return fmt.Sprintf("count is %d, but its size is %d", entry.Count, reported.Total), ""
	case reported.Free+ours == 0:
		return fmt.Sprintf("no free capacity: %d of %d machines are in use", reported.Total, reported.Total), "terminate machines that use it, or increase its size"
	case reported.Free+ours < entry.Count:
		return fmt.Sprintf("count is %d, but only %d of %d machines are free or used by this service", entry.Count, reported.Free+ours, reported.Total), ""
	}
	return "", ""
}

// inZone reports whether there are offerings in a zone.
func inZone(offers provision.Offerings, zone string) bool {
	return slices.ContainsFunc(offers, func(o provision.Offering) bool { return o.Zone == zone })
}

// DescribeReservation describes the free machines, zone, owner, state and end of a reservation.
func DescribeReservation(v *provision.Reservation) string {
	text := fmt.Sprintf("%d of %d x %s free in %s", v.Free, v.Total, v.Type, v.Zone)
	if v.Owner != "" {
		text += ", owned by " + v.Owner
	}
	if v.Pending {
		text += ", state " + v.State
	}
	return text + describeTimes(v)
}

// describeTimes describes when a reservation starts, unless it is active, and when it ends.
func describeTimes(v *provision.Reservation) (text string) {
	if !v.Active && !v.Starts.IsZero() {
		text += ", starts " + formatTime(v.Starts)
	}
	if !v.Ends.IsZero() {
		text += ", ends " + formatTime(v.Ends)
	}
	return text
}

// limitToReported limits the entries with an id to the free machines that the cloud reports, and sets zone and the
// following fields of reservedEntry. A reservation is not used if it has another type or accepts no machines, for
// example because it is a block that ends soon. It is not used either if the service has no subnet, and so no
// offerings, in its zone.
func (es reservedEntries) limitToReported(reported Reservations, offers map[service.Region]provision.Offerings, at time.Time) {
	for _, e := range es {
		if e.reservation.ID == "" {
			continue
		}
		v := reported.find(e.region, e.reservation.ID)
		if v == nil || !v.AcceptsMachines(at) || v.Type != e.reservation.Type || !inZone(offers[e.region], v.Zone) {
			e.unused = 0
			continue
		}
		e.zone, e.unused = v.Zone, min(e.unused, v.Free)
		e.block, e.ends, e.localSSDs = v.Block, v.MachinesEnd(), v.LocalSSDs
	}
}

// reservedOfferings returns one offering for each entry of a region that has an id, unused machines and the GPUs
// of g.
func (es reservedEntries) reservedOfferings(region service.Region, g service.GPU) provision.Offerings {
	var out provision.Offerings
	for _, e := range es {
		t, launchable := provision.MachineTypeOf(region.Cloud(), e.reservation.Type)
		if e.region != region || e.reservation.ID == "" || e.unused <= 0 || !launchable {
			continue
		}
		o := t.Offering(region, e.zone, service.CapacityReserved)
		o.Reservation, o.PricePerHour, o.PriceSource = e.reservation.ID, e.reservation.Price, provision.PriceOfUser
		o.Block, o.Ends, o.LocalSSDs = e.block, e.ends, e.localSSDs
		out = append(out, o)
	}
	return out.WithGPU(g.Type, g.Count)
}
