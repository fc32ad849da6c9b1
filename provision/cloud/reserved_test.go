package cloud_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// reservedService is a service with one region, with these lines of the region.
func reservedService(gpu, region, lines string) string {
	return fmt.Sprintf(`
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: m
    engine: {kind: vllm}
    gpus: [{type: %s}]
regions:
  - name: %s
    replicas: {min: 3, max: 3}
%s`, gpu, region, lines)
}

// firstOfferings returns the first offering of each replica, with its price.
func firstOfferings(l *cloud.Layout) []string {
	var out []string
	for _, w := range l.Desired {
		if w.Kind == provision.KindReplica {
			o := w.Offerings[0]
			line := fmt.Sprintf("%s %s %g", o.Capacity, o.Type, o.PricePerHour)
			if o.Reservation != "" {
				line += " " + o.Reservation + " in " + o.Zone
			}
			out = append(out, line)
		}
	}
	return out
}

// soldOffers returns the offerings as the clouds sell them: no type on demand that is sold as spot only.
func soldOffers(spec *service.Spec) map[service.Region]provision.Offerings {
	all := offers(spec)
	for r, os := range all {
		all[r] = slices.DeleteFunc(os, func(o provision.Offering) bool {
			m, _ := provision.MachineTypeOf(r.Cloud(), o.Type)
			return m.NotOnDemand && o.Capacity == service.CapacityOnDemand
		})
	}
	return all
}

// Replicas use reserved machines in the order of service.yaml, each entry at its own price and up to its count.
func TestReplicasUseReservedMachines(t *testing.T) {
	for name, c := range map[string]struct {
		gpu, region, lines string
		want               []string
	}{
		"a type that is sold as spot only": {
			"H100", "gcp/us-central1", "    capacity: [reserved, spot]\n    reserved: [{type: a3-highgpu-1g, count: 2, price: 3}]\n",
			[]string{"reserved a3-highgpu-1g 3", "reserved a3-highgpu-1g 3", "spot a3-highgpu-1g 0"},
		},
		"two entries of one type": {
			"L4", "gcp/us-central1", "    reserved: [{type: g2-standard-4, count: 1, price: 0.3}, {type: g2-standard-4, count: 1, price: 0.4}]\n",
			[]string{"reserved g2-standard-4 0.3", "reserved g2-standard-4 0.4", "on_demand g2-standard-4 0.7068"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(parse(t, reservedService(c.gpu, c.region, c.lines)))
			in.Offerings = soldOffers(in.Spec)
			l := plan(t, in)
			if got := firstOfferings(l); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			// The running replicas use the same entries.
			in.Have = launchAll(l.Desired)
			in.Have = slices.DeleteFunc(in.Have, func(o provision.Object) bool { return o.ID == "us-central1-1" })
			if got := firstOfferings(plan(t, in))[1]; got != c.want[1] {
				t.Errorf("after the loss of a replica: got %q, want %q", got, c.want[1])
			}
		})
	}
}

// A reservation with an id is used in its zone, up to its free machines, and only while it is active.
func TestReplicasUseReservationsByID(t *testing.T) {
	const lines = "    reserved: [{id: cr-0abc, type: g6.xlarge, count: 2, price: 0.3}]\n"
	active := provision.Reservation{ID: "cr-0abc", Region: "aws/us-east-1", Type: "g6.xlarge", Zone: "us-east-1b", State: "active", Active: true, Total: 2, Free: 2}
	inReservation, onDemand := "reserved g6.xlarge 0.3 cr-0abc in us-east-1b", "on_demand g6.xlarge 0.8048"
	for name, c := range map[string]struct {
		change func(*provision.Reservation)
		want   []string
	}{
		"all free":     {func(*provision.Reservation) {}, []string{inReservation, inReservation, onDemand}},
		"one free":     {func(r *provision.Reservation) { r.Free = 1 }, []string{inReservation, onDemand, onDemand}},
		"more free":    {func(r *provision.Reservation) { r.Total, r.Free = 9, 9 }, []string{inReservation, inReservation, onDemand}},
		"expired":      {func(r *provision.Reservation) { r.Active = false }, []string{onDemand, onDemand, onDemand}},
		"ends soon":    {func(r *provision.Reservation) { r.Ends = reservedDay.Add(time.Minute) }, []string{inReservation, inReservation, onDemand}},
		"block":        {func(r *provision.Reservation) { r.Block, r.Ends = true, reservedDay.Add(90*time.Minute) }, []string{inReservation, inReservation, onDemand}},
		"block's end":  {func(r *provision.Reservation) { r.Block, r.Ends = true, reservedDay.Add(89*time.Minute) }, []string{onDemand, onDemand, onDemand}},
		"another type": {func(r *provision.Reservation) { r.Type = "g6.4xlarge" }, []string{onDemand, onDemand, onDemand}},
		"unknown":      {func(r *provision.Reservation) { r.ID = "cr-0def" }, []string{onDemand, onDemand, onDemand}},
		"no subnet":    {func(r *provision.Reservation) { r.Zone = "us-east-1f" }, []string{onDemand, onDemand, onDemand}},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(parse(t, reservedService("L4", "aws/us-east-1", lines)))
			for _, zone := range []string{"us-east-1a", "us-east-1b"} { // AWS offers each type as reserved
				m, _ := provision.MachineTypeOf(service.CloudAWS, "g6.xlarge")
				in.Offerings["aws/us-east-1"] = append(in.Offerings["aws/us-east-1"], m.Offering("aws/us-east-1", zone, service.CapacityReserved))
			}
			in.Now = reservedDay
			reported := active
			c.change(&reported)
			in.Reservations.ByRegion = map[service.Region][]provision.Reservation{"aws/us-east-1": {reported}}
			l := plan(t, in)
			if got := firstOfferings(l); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// reservedDay is the time in the tests of reservations.
var reservedDay = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// A machine in a block is marked as such, with the time at which EC2 terminates it.
func TestOfferingOfBlock(t *testing.T) {
	in := input(parse(t, reservedService("L4", "aws/us-east-1", "    reserved: [{id: cr-0abc, type: g6.xlarge, count: 2}]\n")))
	v := provision.Reservation{ID: "cr-0abc", Type: "g6.xlarge", Zone: "us-east-1b", Active: true, Total: 2, Free: 2, Block: true, Ends: reservedDay.Add(48 * time.Hour)}
	in.Now, in.Reservations.ByRegion = reservedDay, map[service.Region][]provision.Reservation{"aws/us-east-1": {v}}
	for _, w := range plan(t, in).Desired {
		if w.Kind != provision.KindReplica || w.Offerings[0].Capacity != service.CapacityReserved {
			continue
		}
		if o := w.Offerings[0]; !o.Block || !o.Ends.Equal(reservedDay.Add(47*time.Hour+30*time.Minute)) {
			t.Errorf("got %+v", o)
		}
	}
	changes := provision.Changes{{Action: provision.ActionLaunch, Desired: provision.Desired{Machine: &provision.MachineConfig{}, Offerings: provision.Offerings{{Region: "aws/us-east-1", Type: "p5.48xlarge", VCPUs: 192, Block: true}}}}}
	if needs := cloud.QuotaNeedsOfChanges(changes); len(needs) > 0 {
		t.Errorf("a block counts against quotas: %v", needs)
	}
}

// Each problem of a reservation is named with the next step.
func TestCheckReservations(t *testing.T) {
	spec := parse(t, reservedService("L4", "aws/us-east-1", "    reserved: [{id: cr-0abc, type: g6.xlarge, count: 2}]\n"))
	ends := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	inUse := []provision.Object{{Region: "aws/us-east-1", Offering: &provision.Offering{Reservation: "cr-0abc"}}}
	for name, c := range map[string]struct {
		change func(*provision.Reservation)
		have   []provision.Object
		ok     bool
		want   string
	}{
		"usable":       {func(r *provision.Reservation) { r.Ends = ends }, nil, true, "reservation cr-0abc: 2 of 2 x g6.xlarge free in us-east-1b, owned by 111122223333, ends 2026-12-01T00:00:00Z"},
		"in use by us": {func(r *provision.Reservation) { r.Free = 1 }, inUse, true, "reservation cr-0abc: 1 of 2 x g6.xlarge free in us-east-1b, owned by 111122223333"},
		"unknown":      {func(r *provision.Reservation) { r.ID = "cr-0def" }, nil, false, "reservation cr-0abc: not found in aws/us-east-1; it does not exist, or another account has not shared it"},
		"cancelled":    {func(r *provision.Reservation) { r.Active, r.State = false, "cancelled" }, nil, false, "reservation cr-0abc: must be active, got state cancelled"},
		"expired":      {func(r *provision.Reservation) { r.Active, r.State, r.Ends = false, "expired", ends }, nil, false, "reservation cr-0abc: must be active, got state expired, ends 2026-12-01T00:00:00Z"},
		"failed":       {func(r *provision.Reservation) { r.Active, r.State = false, "payment-failed" }, nil, false, "reservation cr-0abc: must be active, got state payment-failed"},
		"another type": {func(r *provision.Reservation) { r.Type = "g6.4xlarge" }, nil, false, "reservation cr-0abc: type must be g6.4xlarge, got g6.xlarge"},
		"another zone": {func(r *provision.Reservation) { r.Zone = "us-east-1f" }, nil, false, "reservation cr-0abc: the service has no subnet in its zone us-east-1f"},
		"nothing free": {func(r *provision.Reservation) { r.Free = 0 }, nil, false, "reservation cr-0abc: no free capacity: 2 of 2 machines are in use"},
		"too small": {func(r *provision.Reservation) {
			r.Active, r.Pending, r.State, r.Total, r.Free = false, true, "scheduled", 1, 0
		}, nil, false, "reservation cr-0abc: count is 2, but its size is 1"},
		"too few free": {func(r *provision.Reservation) { r.Free = 1 }, nil, false, "reservation cr-0abc: count is 2, but only 1 of 2 machines are free or used by this service"},
	} {
		t.Run(name, func(t *testing.T) {
			v := provision.Reservation{ID: "cr-0abc", Region: "aws/us-east-1", Type: "g6.xlarge", Zone: "us-east-1b", State: "active", Active: true, Total: 2, Free: 2, Owner: "111122223333"}
			c.change(&v)
			reported := cloud.Reservations{ByRegion: map[service.Region][]provision.Reservation{"aws/us-east-1": {v}}}
			got := cloud.CheckReservations(spec, reported, offers(spec), c.have, reservedDay)
			if len(got) != 1 || got[0].OK != c.ok || got[0].Message != c.want || got[0].OK == (got[0].Hint != "") {
				t.Errorf("got %+v, want %q", got, c.want)
			}
		})
	}
	unread := cloud.Reservations{Unknown: map[service.Region]error{"aws/us-east-1": errors.New("denied")}}
	if got := cloud.CheckReservations(spec, unread, offers(spec), nil, reservedDay); len(got) != 1 || got[0].OK || got[0].Message != "reservations: denied" {
		t.Errorf("unread: got %+v", got)
	}
}

// A reservation that is not usable yet, or not for long, is used as far as possible, with a warning.
func TestReservationWarnings(t *testing.T) {
	spec := parse(t, reservedService("L4", "aws/us-east-1", "    reserved: [{id: cr-0abc, type: g6.xlarge, count: 2}]\n"))
	for name, c := range map[string]struct {
		change  func(*provision.Reservation)
		warning bool
		want    string
	}{
		"far end":   {func(r *provision.Reservation) { r.Ends = reservedDay.Add(24*time.Hour + time.Second) }, false, "ends 2026-11-02T00:00:01Z"},
		"near end":  {func(r *provision.Reservation) { r.Ends = reservedDay.Add(24 * time.Hour) }, true, "ends 2026-11-02T00:00:00Z; less than 24 hours are left; after the end its machines are billed on demand"},
		"block":     {func(r *provision.Reservation) { r.Block, r.Ends = true, reservedDay.Add(24*time.Hour) }, true, "ends 2026-11-02T00:00:00Z; EC2 terminates its machines at 2026-11-01T23:30:00Z"},
		"last hour": {func(r *provision.Reservation) { r.Block, r.Ends = true, reservedDay.Add(time.Hour) }, true, "ends 2026-11-01T01:00:00Z; no further machines are launched in it, because EC2 terminates its machines at 2026-11-01T00:30:00Z"},
		"not yet": {func(r *provision.Reservation) {
			r.Active, r.Pending, r.State, r.Free, r.Starts = false, true, "scheduled", 0, reservedDay.Add(time.Hour)
		}, true, "state scheduled, starts 2026-11-01T01:00:00Z; not active yet: until it is active, replicas use other capacity"},
		"being paid": {func(r *provision.Reservation) { r.Active, r.Pending, r.State = false, true, "payment-pending" }, true, "state payment-pending; not active yet: until it is active, replicas use other capacity"},
	} {
		t.Run(name, func(t *testing.T) {
			v := provision.Reservation{ID: "cr-0abc", Region: "aws/us-east-1", Type: "g6.xlarge", Zone: "us-east-1b", State: "active", Active: true, Total: 2, Free: 2}
			c.change(&v)
			got := cloud.CheckReservations(spec, cloud.Reservations{ByRegion: map[service.Region][]provision.Reservation{"aws/us-east-1": {v}}}, offers(spec), nil, reservedDay)
			if len(got) != 1 || !got[0].OK || got[0].Warning != c.warning || !strings.HasSuffix(got[0].Message, "in us-east-1b, "+c.want) {
				t.Errorf("got %+v, want %q", got, c.want)
			}
		})
	}
}
