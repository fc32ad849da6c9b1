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
	// Unknown contains, by region, why its reservations could not be read.
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

// InOrder returns the reservations of a service, in the order of its file.
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

// ReservationIDs returns the ids of a region's reservations, in the order of the file.
func ReservationIDs(r service.RegionSpec) []string {
	var ids []string
	for _, held := range r.Reserved {
		if held.ID != "" {
			ids = append(ids, held.ID)
		}
	}
	return ids
}

// CheckReservations checks each entry of regions[].reserved that has an id at a time, with the existing objects
// of the service. A reservation that starts later, or ends soon, is a warning.
func CheckReservations(spec *service.Spec, reported Reservations, offers map[service.Region]provision.Offerings, have []provision.Object, at time.Time) []provision.CheckResult {
	var results []provision.CheckResult
	for i, r := range spec.Regions {
		if err := reported.Unknown[r.Name]; err != nil && len(ReservationIDs(r)) > 0 {
			results = append(results, provision.CheckResult{Where: string(r.Name), Message: "reservations: " + err.Error()})
			continue
		}
		for j, held := range r.Reserved {
			if held.ID == "" {
				continue
			}
			v := reported.find(r.Name, held.ID)
			result := checkReservation(r.Name, held, v, offers[r.Name], machinesIn(r.Name, held.ID, have), at)
			if !result.OK && result.Hint == "" {
				result.Hint = fmt.Sprintf("correct regions[%d].reserved[%d]", i, j)
			}
			results = append(results, result)
		}
	}
	return results
}

// checkReservation checks one entry. A failed check without a hint requires a correction of service.yaml.
func checkReservation(region service.Region, entry service.Reservation, v *provision.Reservation, offers provision.Offerings, ours int, at time.Time) provision.CheckResult {
	result := provision.CheckResult{Where: string(region), Message: "reservation " + entry.ID + ": "}
	if problem, hint := reservationProblem(region, entry, v, offers, ours); problem != "" {
		result.Message, result.Hint = result.Message+problem, hint
		return result
	}
	result.OK = true
	result.Message += DescribeReservation(v)
	warning, hint := reservationWarning(v, at)
	if result.Warning = warning != ""; result.Warning {
		result.Message, result.Hint = result.Message+"; "+warning, hint
	}
	return result
}

// reservationWarning returns why a usable reservation needs attention at a time, and the next step; empty if it
// does not.
func reservationWarning(v *provision.Reservation, at time.Time) (warning, hint string) {
	end := v.MachinesEnd()
	switch {
	case v.Pending:
		return "not used while its state is " + v.State + ": until then replicas use other capacity", ""
	case v.Ends.IsZero() || at.Add(provision.WarnBeforeEnd).Before(v.Ends):
		return "", ""
	case v.Block && !v.AcceptsMachines(at):
		return "new machines are not launched there: EC2 terminates its machines at " + formatTime(end), "remove it from regions[].reserved, or add another reservation"
	case v.Block:
		return "EC2 terminates its machines at " + formatTime(end), "buy the next block: skyserve offers blocks --region " + string(v.Region) + " --type " + v.Type
	}
	return "less than 24 hours are left; running machines are then billed on demand", "extend it, or add another reservation"
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
// if it can. An empty hint stands for a correction of service.yaml.
func reservationProblem(region service.Region, entry service.Reservation, v *provision.Reservation, offers provision.Offerings, ours int) (problem, hint string) {
	if v == nil {
		return fmt.Sprintf("not found in %s; it does not exist, or another account has not shared it", region), ""
	}
	if !v.Active && !v.Pending {
		return "must be active, got state " + v.State + describeTimes(v), ""
	}
	_, launchable := provision.MachineTypeOf(region.Cloud(), entry.Type)
	switch {
	case v.Type != entry.Type:
		return fmt.Sprintf("type must be %s, got %s", v.Type, entry.Type), ""
	case !launchable:
		return entry.Type + " is not a type that skyserve launches", ""
	case !inZone(offers, v.Zone):
		return fmt.Sprintf("its zone %s has no subnet of the service", v.Zone), fmt.Sprintf("add a subnet in %s to regions[].subnets", v.Zone)
	case v.Pending && v.Total >= entry.Count: // its machines are free when it starts
	case v.Free+ours == 0:
		return fmt.Sprintf("no free capacity: all %d machines are in use", v.Total), "terminate machines that use it, or increase its size"
	case v.Free+ours < entry.Count:
		return fmt.Sprintf("count is %d, but only %d of %d machines are free or used by this service", entry.Count, v.Free+ours, v.Total), ""
	}
	return "", ""
}

// inZone reports whether there are offerings in a zone.
func inZone(offers provision.Offerings, zone string) bool {
	return slices.ContainsFunc(offers, func(o provision.Offering) bool { return o.Zone == zone })
}

// DescribeReservation returns the free machines, zone, owner, state and end of a reservation as text.
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

// describeTimes returns when a reservation starts, unless it has, and ends.
func describeTimes(v *provision.Reservation) (text string) {
	if !v.Active && !v.Starts.IsZero() {
		text += ", starts " + formatTime(v.Starts)
	}
	if !v.Ends.IsZero() {
		text += ", ends " + formatTime(v.Ends)
	}
	return text
}

// limitToReported limits the entries with an id to the free machines that the cloud reports, and records
// their zones. A reservation in a zone without offerings, which has no subnet of the service, is not used, nor
// is a block that ends soon.
func (cs commitments) limitToReported(reported Reservations, offers map[service.Region]provision.Offerings, at time.Time) {
	for _, c := range cs {
		if c.entry.ID == "" {
			continue
		}
		v := reported.find(c.region, c.entry.ID)
		if v == nil || !v.AcceptsMachines(at) || v.Type != c.entry.Type || !inZone(offers[c.region], v.Zone) {
			c.unused = 0
			continue
		}
		c.zone, c.unused = v.Zone, min(c.unused, v.Free)
		c.block, c.ends, c.localSSDs = v.Block, v.MachinesEnd(), v.LocalSSDs
	}
}

// reservedOfferings returns one offering for each unused reservation of a region that has an id and these
// GPUs.
func (cs commitments) reservedOfferings(region service.Region, g service.GPU) provision.Offerings {
	var out provision.Offerings
	for _, c := range cs {
		t, launchable := provision.MachineTypeOf(region.Cloud(), c.entry.Type)
		if c.region != region || c.entry.ID == "" || c.unused <= 0 || !launchable {
			continue
		}
		o := t.Offering(region, c.zone, service.CapacityReserved)
		o.Reservation, o.PricePerHour, o.PriceSource = c.entry.ID, c.entry.Price, provision.PriceOfUser
		o.Block, o.Ends, o.LocalSSDs = c.block, c.ends, c.localSSDs
		out = append(out, o)
	}
	return out.WithGPU(g.Type, g.Count)
}
