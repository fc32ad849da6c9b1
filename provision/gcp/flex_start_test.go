package gcp_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
)

// flexStart returns a desired replica on a flex-start machine.
func flexStart(kind string) provision.Desired {
	w := replica("us-central1-0", service.CapacityFlexStart)
	w.Offerings = provision.Offerings{offer(kind, service.CapacityFlexStart)}
	return w
}

// Machines with GPUs are offered as flex-start, at the price of Google's list; one that is not in the list has no
// price, and comes after those with one.
func TestFlexStartIsOffered(t *testing.T) {
	p := provider(newGCE(nil))
	offers, err := p.Offerings(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	prices, err := p.Prices(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	flex := offers.WithPrices(prices).SortedByCapacity([]service.CapacityType{service.CapacityFlexStart})
	unpriced := 0
	for _, o := range flex {
		onDemand := testcloud.FakeGCEPrice("us-central1", o.Type, false)
		switch {
		case o.GPUs == 0:
			t.Errorf("%s has no GPU", o)
		case o.GPU == "L4" && o.PricePerHour == 0:
			unpriced++
		case math.Abs(o.PricePerHour-0.6*onDemand) > 1e-6 || o.PriceSource == "" || unpriced > 0:
			t.Errorf("%s costs %g (%s), want 0.6 of %g, before those without a price", o, o.PricePerHour, o.PriceSource, onDemand)
		}
	}
	if unpriced == 0 || len(flex) == unpriced {
		t.Errorf("%d of %d flex-start offerings have no price", unpriced, len(flex))
	}
	for _, o := range offers {
		if o.Capacity == service.CapacityFlexStart && o.PricePerHour != 0 {
			t.Errorf("%s has the built-in price %g", o, o.PricePerHour)
		}
	}
}

// A flex-start machine runs for seven days, which its offering tells; then Google stops it, and it is launched again.
func TestFlexStartRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGCE(nil)
		p := provider(g)
		w := flexStart("a3-highgpu-1g") // not sold on demand
		first := launched(t, p, w)
		end := time.Now().Add(7 * 24 * time.Hour)
		if o := first.Offering; o == nil || o.Capacity != service.CapacityFlexStart || o.Ends.Sub(end).Abs() > time.Minute || !o.EndsBy(end.Add(time.Minute)) {
			t.Fatalf("offering %+v, want the end %s", first.Offering, end)
		}
		g.EndRuns(time.Now().Add(time.Hour))
		if o := only(t, p); o.TerminatedReason != "" || !o.Offering.Ends.Equal(first.Offering.Ends) {
			t.Fatalf("before its end: %+v", o)
		}
		g.EndRuns(end.Add(time.Minute))
		o := only(t, p)
		if !strings.Contains(o.TerminatedReason, "end of its flex-start run") || o.Interrupted {
			t.Fatalf("after its end: %+v", o)
		}
		if again := launched(t, p, w); again.Handle == first.Handle {
			t.Errorf("the stopped machine was not replaced: %+v", again)
		}
	})
}

// only returns the only machine of the service.
func only(t *testing.T, p provision.Provider) provision.Object {
	t.Helper()
	have, err := p.List(context.Background(), "chat")
	if err != nil || len(have) != 1 {
		t.Fatalf("listed %+v, %v", have, err)
	}
	return have[0]
}

// Without capacity a flex-start machine is a capacity error of the zone, whether Google's operation fails or the
// machine is pending and then deleted, and nothing is left. With capacity it is awaited while it is pending.
func TestFlexStartWaitsForCapacity(t *testing.T) {
	for _, tt := range []struct {
		name    string
		pending int // calls
		stock   int
		code    string // of the error; empty = it runs
	}{
		{"capacity at once", 0, 1, ""},
		{"capacity after a while", 9, 1, ""},
		{"none: the operation fails", 0, 0, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"},
		{"none: the machine is deleted", 9, 0, "FLEX_START_WAIT_EXPIRED"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGCE(nil)
				g.SetFlexStartWait(tt.pending)
				g.SetStock("us-central1-a", "g2-standard-4", "FLEX_START", tt.stock)
				o, err := provider(g).Launch(t.Context(), flexStart("g2-standard-4"))
				var none *provision.CapacityError
				switch {
				case tt.code == "" && (err != nil || !o.PrivateIP.IsValid() || o.TerminatedReason != ""):
					t.Errorf("got %+v, %v", o, err)
				case tt.code != "" && (!errors.As(err, &none) || none.Code != tt.code || none.Scope != provision.ScopeZone || len(g.Instances()) != 0):
					t.Errorf("got %v, with the machines %+v", err, g.Instances())
				}
			})
		})
	}
}

// Flex-start machines count against the quota of preemptible GPUs, not against that of on-demand GPUs.
func TestFlexStartUsesPreemptibleQuota(t *testing.T) {
	g := newGCE(nil)
	g.SetQuota("us-central1", "NVIDIA_L4_GPUS", 0)
	if _, err := provider(g).Launch(t.Context(), flexStart("g2-standard-4")); err != nil {
		t.Fatal(err)
	}
	g.SetQuota("us-central1", "PREEMPTIBLE_NVIDIA_L4_GPUS", 1)
	second := flexStart("g2-standard-4")
	second.ID = "us-central1-1"
	var none *provision.CapacityError
	if _, err := provider(g).Launch(t.Context(), second); !errors.As(err, &none) || none.Scope != provision.ScopeQuota {
		t.Errorf("got %v", err)
	}
}
