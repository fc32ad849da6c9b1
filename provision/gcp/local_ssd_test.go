package gcp_test

import (
	"errors"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// withLocalSSDs returns a desired replica with a number of local SSDs.
func withLocalSSDs(kind string, capacity service.CapacityType, n int) provision.Desired {
	w := replica("us-central1-0", capacity)
	o := offer(kind, capacity)
	o.LocalSSDs = n
	w.Offerings = provision.Offerings{o}
	return w
}

// Local SSDs are attached as NVMe scratch disks, as many as the machine type takes, also to flex-start machines, which
// Google stops. Others are rejected, with nothing left.
func TestLocalSSDsAreAttached(t *testing.T) {
	for _, tt := range []struct {
		kind     string
		capacity service.CapacityType
		n        int
		ok       bool
	}{
		{"g2-standard-4", service.CapacityOnDemand, 0, true},
		{"g2-standard-4", service.CapacityOnDemand, 1, true},
		{"g2-standard-4", service.CapacitySpot, 1, true},
		{"g2-standard-96", service.CapacityFlexStart, 8, true},
		{"a3-highgpu-8g", service.CapacityFlexStart, 0, true}, // it always has some
		{"g2-standard-96", service.CapacityOnDemand, 4, false},
		{"a3-highgpu-8g", service.CapacityOnDemand, 16, false},
	} {
		g := newGCE(nil)
		p := provider(g)
		o, err := p.Launch(t.Context(), withLocalSSDs(tt.kind, tt.capacity, tt.n))
		if !tt.ok {
			if err == nil || len(g.Instances()) > 0 {
				t.Errorf("%s with %d: launched %+v", tt.kind, tt.n, o)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s with %d: %v", tt.kind, tt.n, err)
			continue
		}
		disks := g.Instances()[0].Disks
		if len(disks) != 1+tt.n || o.Offering.LocalSSDs != tt.n {
			t.Errorf("%s: attached %+v, the object says %d, want %d", tt.kind, disks[1:], o.Offering.LocalSSDs, tt.n)
		}
		for _, d := range disks[1:] {
			if d.Type != "SCRATCH" || d.Interface != "NVME" || !d.AutoDelete {
				t.Errorf("%s: attached %+v", tt.kind, d)
			}
		}
		if err := p.Terminate(t.Context(), o); err != nil || len(g.Instances()) > 0 {
			t.Errorf("%s: terminating: %v, left %+v", tt.kind, err, g.Instances())
		}
	}
}

// Local SSDs count against the quota of a region; those of spot machines against their own, or against the same if
// the project has none.
func TestLocalSSDsCountAgainstQuota(t *testing.T) {
	const all, spot = "LOCAL_SSD_TOTAL_GB", "PREEMPTIBLE_LOCAL_SSD_GB"
	for _, tt := range []struct {
		capacity service.CapacityType
		limits   map[string]float64
		ok       bool
		used     map[string]float64 // as Quotas reports it
	}{
		{service.CapacityOnDemand, map[string]float64{all: 375, spot: 1000}, true, map[string]float64{all: 375}},
		{service.CapacityOnDemand, map[string]float64{all: 374, spot: 1000}, false, nil},
		{service.CapacitySpot, map[string]float64{all: 0, spot: 375}, true, map[string]float64{spot: 375}},
		{service.CapacitySpot, map[string]float64{all: 1000, spot: 374}, false, nil},
		{service.CapacitySpot, map[string]float64{all: 1000, spot: 0}, true, map[string]float64{all: 375, spot: 375}},
	} {
		g := newGCE(nil)
		for code, limit := range tt.limits {
			g.SetQuota("us-central1", code, limit)
		}
		p := provider(g)
		_, err := p.Launch(t.Context(), withLocalSSDs("g2-standard-4", tt.capacity, 1))
		var none *provision.CapacityError
		if !tt.ok {
			if !errors.As(err, &none) || none.Scope != provision.ScopeQuota {
				t.Errorf("%+v: got %v", tt, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		quotas, err := p.Quotas(t.Context(), here)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, q := range quotas {
			if q.Code == all || q.Code == spot {
				found[q.Code] = true
				if q.Used != tt.used[q.Code] || q.Unit != "gb" {
					t.Errorf("%+v: %s: used %g %s, want %g", tt, q.Code, q.Used, q.Unit, tt.used[q.Code])
				}
			}
		}
		if len(found) != 2 {
			t.Errorf("reported are %v", found)
		}
	}
}

// The local SSDs of a reservation are read, except those that its machine type always has.
func TestReservationsTellLocalSSDs(t *testing.T) {
	g := newGCE(nil)
	g.PutReservation(testcloud.GCEReserved{Name: "l4", Zone: "us-central1-a", Type: "g2-standard-4", Count: 1, LocalSSDs: 1})
	g.PutReservation(testcloud.GCEReserved{Name: "h100", Zone: "us-central1-a", Type: "a3-highgpu-8g", Count: 1, LocalSSDs: 16})
	got, err := provider(g).Reservations(t.Context(), here, []string{"l4", "h100"})
	if err != nil || len(got) != 2 || got[0].LocalSSDs != 1 || got[1].LocalSSDs != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}
