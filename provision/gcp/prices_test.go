package gcp_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/gcp"
)

// The price of a machine type is the sum of its parts in its region, on demand and as spot machines. The list
// is read once for all regions, page by page.
func TestPrices(t *testing.T) {
	faults := &testcloud.Faults{}
	g := newGCE(faults)
	g.SetPageSize(50)
	p := provider(g)
	seen := map[float64]bool{}
	for _, place := range []string{"us-central1", "europe-west4", "us-central1"} {
		got, err := p.Prices(t.Context(), service.Region("gcp/"+place))
		flexStart := 0
		got = slices.DeleteFunc(got, func(p provision.Price) bool { // TestFlexStartIsOffered checks these
			if p.Capacity == service.CapacityFlexStart {
				flexStart++
				return true
			}
			return false
		})
		if err != nil || len(got) != 2*len(provision.MachineTypes(service.CloudGCP)) || flexStart != 9 {
			t.Fatalf("%s: got %+v, %v", place, got, err)
		}
		for _, price := range got {
			want := testcloud.FakeGCEPrice(place, price.Type, price.Capacity == service.CapacitySpot)
			listed, _ := provision.MachineTypeOf(service.CloudGCP, price.Type)
			if math.Abs(price.PerHour-want) > 1e-9 || math.Abs(want-listed.OnDemand) < 1e-3 || price.Source != "Google price list, "+place {
				t.Errorf("got %+v, want %g, and another price than the list's %g", price, want, listed.OnDemand)
			}
			seen[price.PerHour] = true
		}
	}
	if len(seen) != 4*len(provision.MachineTypes(service.CloudGCP)) {
		t.Errorf("%d prices of 2 regions are different", len(seen))
	}
	if pages := faults.CallCounts()["cloudbilling.services.skus.list"]; pages != 7 {
		t.Errorf("read %d pages of 330 SKUs, 50 a page", pages)
	}
}

// A denied or invalid list is an error with the reason; the valid prices are returned.
func TestPriceListErrors(t *testing.T) {
	const action = "cloudbilling.services.skus.list"
	change := func(description string, edit func(*testcloud.GCESKU)) func(*testcloud.GCE) {
		return func(g *testcloud.GCE) {
			g.EditPriceList(func(all []testcloud.GCESKU) []testcloud.GCESKU {
				i := slices.IndexFunc(all, func(s testcloud.GCESKU) bool { return s.Description == description })
				edit(&all[i])
				return all
			})
		}
	}
	for _, tt := range []struct {
		name    string
		change  func(*testcloud.GCE)
		priced  int
		says    string
		refused string // the denied permission
		hint    string
	}{
		{name: "valid setup", change: func(*testcloud.GCE) {}, priced: 37},
		{
			name: "the API is off", refused: "the Cloud Billing API", hint: "gcloud services enable cloudbilling.googleapis.com",
			change: func(g *testcloud.GCE) {
				g.FailCalls(action, 403, "accessNotConfigured", "Cloud Billing API has not been used in project 1 before or it is disabled.")
			},
		},
		{
			name: "no quota project", refused: "the Cloud Billing API", hint: "set-quota-project",
			change: func(g *testcloud.GCE) {
				g.FailCalls(action, 403, "SERVICE_DISABLED", "The cloudbilling.googleapis.com API requires a quota project, which is not set by default.")
			},
		},
		{
			name: "without the scope", refused: "the Cloud Billing API", hint: "cloud-billing.readonly",
			change: func(g *testcloud.GCE) {
				g.FailCalls(action, 403, "insufficientPermissions", "Request had insufficient authentication scopes.")
			},
		},
		{name: "invalid response", change: func(g *testcloud.GCE) { g.FailCalls(action, 418, "teapot", "I am one") }, says: "I am one"},
		{
			name: "another currency", change: change("G2 Instance Core running in us-central1", func(s *testcloud.GCESKU) { s.Currency = "EUR" }), priced: 33,
			says: `"G2 Instance Core running in us-central1": invalid price per hour: 0 units and 26000000 nanos of "EUR"`,
		},
		{
			name: "another unit", change: change("Nvidia L4 GPU attached to Spot Preemptible VMs running in us-central1", func(s *testcloud.GCESKU) { s.Unit = "mo" }), priced: 33,
			says: "number of rates per h must be 1",
		},
		{
			name: "two prices", change: change("Commitment v1: E2 Instance Core in us-central1 for 1 Year", func(s *testcloud.GCESKU) {
				s.Description, s.Usage = "E2 Instance Core running in Americas", "OnDemand"
			}), priced: 36, says: "e2 core in us-central1: price must be unique",
		},
		{name: "no H100 there", change: change("Nvidia H100 80GB GPU running in us-central1", func(s *testcloud.GCESKU) { s.Regions = []string{"europe-west4"} }), priced: 33},
		{name: "nothing there", change: func(g *testcloud.GCE) { g.EditPriceList(func([]testcloud.GCESKU) []testcloud.GCESKU { return nil }) }, says: "no prices for us-central1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGCE(nil)
			tt.change(g)
			got, err := provider(g).Prices(t.Context(), here)
			if len(got) != tt.priced || (err == nil) != (tt.says+tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %d prices, %v, want %d and %q", len(got), err, tt.priced, tt.says)
			}
			var refused *provision.CredentialsError
			if tt.refused != "" && (!errors.As(err, &refused) || refused.Action != tt.refused || !strings.Contains(refused.Hint, tt.hint)) {
				t.Errorf("got %+v of %v", refused, err)
			}
			if offers, err := provider(g).Offerings(t.Context(), here); err != nil || len(offers) == 0 {
				t.Errorf("offerings: %d, %v", len(offers), err)
			}
		})
	}
}

// Calls that are throttled, fail or are lost are retried. Invalid credentials are a CredentialsError.
func TestPriceCallsAreRetried(t *testing.T) {
	for _, o := range []testcloud.Outcome{testcloud.Throttled, testcloud.InternalError, testcloud.RequestLost, testcloud.ResponseLost} {
		left := 3
		g := newGCE(&testcloud.Faults{DecideOutcome: func(testcloud.Call) testcloud.Outcome {
			if left == 0 {
				return testcloud.Served
			}
			left--
			return o
		}})
		if got, err := provider(g).Prices(t.Context(), here); err != nil || len(got) != 37 {
			t.Errorf("%v: got %d prices, %v", o, len(got), err)
		}
	}
	g := newGCE(nil)
	g.RequireToken("good")
	_, err := withToken(config(g), token{value: "bad"}).Prices(t.Context(), here)
	var refused *provision.CredentialsError
	if !errors.As(err, &refused) || refused.Action != "" || !strings.Contains(refused.Hint, "gcloud auth") {
		t.Errorf("got %v", err)
	}
}

var _ provision.Pricer = (*gcp.Provider)(nil)
