package cloud_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// twoLocalSSDs is a service on machines with two L4 at Google and on those at AWS.
func twoLocalSSDs(lines string) string {
	return strings.Replace(reservedService("L4, count: 2, local_ssds: 2", "gcp/us-central1", lines), "min: 3, max: 3", "min: 1, max: 1", 1)
}

// replicaOf returns the only replica.
func replicaOf(t *testing.T, l *cloud.Layout) provision.Desired {
	t.Helper()
	for _, w := range l.Desired {
		if w.Kind == provision.KindReplica {
			return w
		}
	}
	t.Fatal("no replica")
	return provision.Desired{}
}

// A replica is launched with the local SSDs of its GPUs, at their price, and needs their quota. A price of
// service.yaml includes them.
func TestLocalSSDsAreAttachedAtGoogle(t *testing.T) {
	const ssd = 2 * 375 * 0.08 / 730
	for name, tt := range map[string]struct {
		lines string
		price float64
		from  string
		needs []string
	}{
		"on demand": {"", 2.0008 + ssd, "list price in us-central1, with local SSDs", []string{"LOCAL_SSD_TOTAL_GB", "LOCAL_SSD_TOTAL_GB_PER_VM_FAMILY (G2)"}},
		"spot":      {"    capacity: [spot]\n", 0, "", []string{"PREEMPTIBLE_LOCAL_SSD_GB"}},
		"reserved":  {"    reserved: [{type: g2-standard-24, count: 1, price: 1}]\n", 1, "service.yaml", []string{"LOCAL_SSD_TOTAL_GB", "LOCAL_SSD_TOTAL_GB_PER_VM_FAMILY (G2)"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(parse(t, twoLocalSSDs(tt.lines)))
			l := plan(t, in)
			o := replicaOf(t, l).Offerings[0]
			if o.LocalSSDs != 2 || math.Abs(o.PricePerHour-tt.price) > 1e-9 || o.PriceSource != tt.from {
				t.Errorf("got %d local SSDs, $%g per hour (%s), want 2 at $%g (%s)", o.LocalSSDs, o.PricePerHour, o.PriceSource, tt.price, tt.from)
			}
			for kind, needs := range map[string]map[cloud.QuotaKey]float64{
				"the service":  cloud.QuotaNeeds(in.Spec),
				"all launches": cloud.QuotaNeedsOfChanges(provision.Diff(l.Desired, nil)),
			} {
				var codes []string
				for _, n := range cloud.CompareQuotas(needs, nil) {
					if strings.Contains(n.Code, "LOCAL_SSD") {
						codes = append(codes, n.Code)
						if n.Needs != 750 || n.Unit != "gb" {
							t.Errorf("%s: %s: needs %g %s, want 750 gb", kind, n.Code, n.Needs, n.Unit)
						}
					}
				}
				if !slices.Equal(codes, tt.needs) {
					t.Errorf("%s: needs %q, want %q", kind, codes, tt.needs)
				}
			}
		})
	}
}

// At AWS, local_ssds is invalid: the instance type determines the local disks.
func TestLocalSSDsAreNotAttachedAtAWS(t *testing.T) {
	spec := parse(t, strings.Replace(twoLocalSSDs("  - name: aws/us-east-1\n"), "count: 2, local_ssds: 2", "local_ssds: 1", 1))
	for _, w := range plan(t, input(spec)).Desired {
		if o := w.Offerings; w.Kind == provision.KindReplica && (o[0].LocalSSDs == 1) != (w.Region.Cloud() == service.CloudGCP) {
			t.Errorf("%s has %d local SSDs", w.ID, o[0].LocalSSDs)
		}
	}
}

// Machines in a reservation with an id have the local SSDs of that reservation, which Google requires.
func TestReservedMachinesHaveTheirLocalSSDs(t *testing.T) {
	for _, ssds := range []int{0, 2} {
		in := input(parse(t, twoLocalSSDs("    reserved: [{id: mine, type: g2-standard-24, count: 1, price: 1}]\n")))
		in.Now = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
		in.Reservations.ByRegion = map[service.Region][]provision.Reservation{"gcp/us-central1": {
			{ID: "mine", Region: "gcp/us-central1", Type: "g2-standard-24", Zone: "us-central1a", Active: true, Total: 1, Free: 1, LocalSSDs: ssds},
		}}
		if o := replicaOf(t, plan(t, in)).Offerings[0]; o.Reservation != "mine" || o.LocalSSDs != ssds || o.PricePerHour != 1 {
			t.Errorf("got %+v, want %d local SSDs", o, ssds)
		}
	}
}

func TestLocalSSDProblems(t *testing.T) {
	for _, tt := range []struct{ from, to, path, problem string }{
		{"", "", "", ""},
		{"local_ssds: 2", "local_ssds: 1", "models[0].gpus[0].local_ssds", "must be 2 for g2-standard-24 of Google Cloud"},
		{"gcp/us-central1", "aws/us-east-1", "models[0].gpus[0].local_ssds", "is only valid for services with a Google Cloud region: the instance type determines the local disks at AWS"},
	} {
		var path, problem string
		for _, p := range cloud.LocalSSDProblems(parse(t, strings.Replace(twoLocalSSDs(""), tt.from, tt.to, 1))) {
			path, problem = p.Path, p.Problem
		}
		if path != tt.path || problem != tt.problem {
			t.Errorf("got %q: %q, want %q: %q", path, problem, tt.path, tt.problem)
		}
	}
}
