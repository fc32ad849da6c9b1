package remote_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
	"skyserve/provision/remote"
)

// callURL calls a machine at a URL.
func callURL(base string) remote.CallFunc {
	return func(ctx context.Context, call remote.CallKind, body []byte) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/"+string(call), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", resp.Status, text)
		}
		return text, err
	}
}

// machine is a machine in the cloud that executes calls.
func machine(t *testing.T, h *remote.Handler) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("POST /{call}", h)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// client calls machines one after the other.
func client(servers ...*httptest.Server) *remote.Client {
	return &remote.Client{Cloud: "gcp", Machines: func() []remote.CallFunc {
		var ways []remote.CallFunc
		for _, s := range servers {
			ways = append(ways, callURL(s.URL))
		}
		return ways
	}}
}

func newHandler(p provision.Provider) *remote.Handler {
	return &remote.Handler{Service: "chat", Owner: "o", Provider: p, ByRegion: map[service.Region]provision.Provider{"gcp/us-central1": p}}
}

func want(id string) provision.Desired {
	return provision.Desired{ID: id, Kind: provision.KindReplica, Service: "chat", Owner: "o", Region: "gcp/us-central1", SpecHash: "s", Labels: map[string]string{"model": "m"}}
}

// A provider that calls through a machine passes the conformance tests.
func TestClientConformsToProviderContract(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Subject {
		s := machine(t, newHandler(&conformance.Memory{}))
		return conformance.Subject{
			Provider: client(s), Reopen: func(*testing.T) provision.Provider { return client(s) }, Service: "chat",
			Desired: []provision.Desired{want("us-central1-0"), want("us-central1-1")},
		}
	})
}

// fixedCloud returns fixed results.
type fixedCloud struct {
	provision.Provider
	err    error
	object provision.Object
	region service.Region // of the requested offerings
}

func (c *fixedCloud) Launch(context.Context, provision.Desired) (provision.Object, error) {
	return c.object, c.err
}

func (c *fixedCloud) Offerings(_ context.Context, r service.Region) (provision.Offerings, error) {
	c.region = r
	return provision.Offerings{{Type: "g2-standard-4", Region: r, PricePerHour: 0.7}}, c.err
}

func (c *fixedCloud) Fingerprint(_ context.Context, o provision.Object) (string, error) {
	return "key of " + o.Handle, c.err
}

// Errors that callers distinguish have the same type and text at the caller.
func TestErrorsKeepTypes(t *testing.T) {
	offer := provision.Offering{Type: "g2-standard-4", Region: "gcp/us-central1", Zone: "us-central1-a", Capacity: "spot", GPU: "L4", GPUs: 1}
	for _, err := range []error{
		&provision.CapacityError{Offering: offer, Scope: provision.ScopeZone, Code: "ZONE_RESOURCE_POOL_EXHAUSTED", Err: errors.New("no room")},
		fmt.Errorf("launching: %w", &provision.CapacityError{Offering: offer, Scope: provision.ScopeQuota, Code: "QUOTA_EXCEEDED"}),
		&provision.CredentialsError{Cloud: "gcp", Action: "compute.instances.create", Code: "forbidden", Err: errors.New("who are you"), Hint: "grant it"},
		&provision.OwnedError{Resource: "the service chat", Where: "gcp/us-central1", Owner: "them"},
		&provision.ThrottledError{Cloud: "gcp", Code: "rateLimitExceeded", Err: errors.New("slow down")},
		errors.New("the network is down"),
	} {
		cloud := &fixedCloud{err: err}
		_, got := client(machine(t, newHandler(cloud))).Launch(t.Context(), want("us-central1-0"))
		var capacity, gotCapacity *provision.CapacityError
		var credentials, gotCredentials *provision.CredentialsError
		var owned, gotOwned *provision.OwnedError
		var throttled, gotThrottled *provision.ThrottledError
		switch {
		case got == nil:
			t.Errorf("%v: no error", err)
		case errors.As(err, &capacity):
			if !errors.As(got, &gotCapacity) || gotCapacity.Offering != capacity.Offering || gotCapacity.Scope != capacity.Scope || gotCapacity.Code != capacity.Code {
				t.Errorf("%v became %v", err, got)
			}
		case errors.As(err, &credentials):
			if !errors.As(got, &gotCredentials) || got.Error() != err.Error() || gotCredentials.Hint != credentials.Hint {
				t.Errorf("%v became %v", err, got)
			}
		case errors.As(err, &owned):
			if !errors.As(got, &gotOwned) || *gotOwned != *owned {
				t.Errorf("%v became %v", err, got)
			}
		case errors.As(err, &throttled):
			if !errors.As(got, &gotThrottled) || got.Error() != err.Error() {
				t.Errorf("%v became %v", err, got)
			}
		case got.Error() != err.Error():
			t.Errorf("%v became %v", err, got)
		}
	}
}

// A call that a machine accepts without responding times out, even if the caller sets no deadline. Then the
// next machine is called.
func TestCallTimesOutOnHungMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context, _ remote.CallKind, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		answers := func(context.Context, remote.CallKind, []byte) ([]byte, error) {
			return []byte(`{"object":{"handle":"h"}}`), nil
		}
		ways := []remote.CallFunc{hangs, answers}
		c := &remote.Client{Cloud: "gcp", Machines: func() []remote.CallFunc { return ways }}
		begun := time.Now()
		o, err := c.Launch(t.Context(), want("us-central1-0"))
		if took := time.Since(begun); err != nil || o.Handle != "h" || took < time.Minute || took > 10*time.Minute {
			t.Errorf("after %v: %+v, %v", took, o, err)
		}
		ways = ways[:1]
		if _, err := c.Launch(t.Context(), want("us-central1-0")); !errors.Is(err, remote.ErrNoMachine) || !strings.Contains(err.Error(), "no response within") {
			t.Errorf("no machine responds: %v", err)
		}
	})
}

// All fields of an object are transferred.
func TestObjectsRoundTrip(t *testing.T) {
	cloud := &fixedCloud{object: provision.Object{
		ID: "us-central1-0", Kind: provision.KindReplica, Service: "chat", Owner: "o", Region: "gcp/us-central1", SpecHash: "s", Handle: "h",
		Offering: &provision.Offering{Type: "g2-standard-4", Capacity: "spot"}, Labels: map[string]string{"model": "m"}, CostPerHour: 0.28,
		PublicIP: netip.MustParseAddr("203.0.113.1"), PrivateIP: netip.MustParseAddr("10.0.0.1"),
	}}
	h := newHandler(cloud)
	h.Attestor = cloud
	c := client(machine(t, h))
	if o, err := c.Launch(t.Context(), want("us-central1-0")); err != nil || !reflect.DeepEqual(o, cloud.object) {
		t.Errorf("%+v came back as %+v (%v)", cloud.object, o, err)
	}
	if offers, err := c.Offerings(t.Context(), "gcp/us-central1"); err != nil || len(offers) != 1 || offers[0].PricePerHour != 0.7 || cloud.region != "gcp/us-central1" {
		t.Errorf("offerings of %s: %+v (%v)", cloud.region, offers, err)
	}
	if f, err := c.Fingerprint(t.Context(), cloud.object); err != nil || f != "key of h" {
		t.Errorf("fingerprint %q (%v)", f, err)
	}
}

// spotCloud reports interruptions and capacity advice.
type spotCloud struct{ *conformance.Memory }

func (spotCloud) Interruptions(_ context.Context, r service.Region, name string) ([]provision.Object, error) {
	return []provision.Object{{ID: "us-central1-0", Service: name, Region: r, Interrupted: true}}, nil
}

func (spotCloud) CapacityAdvice(_ context.Context, _ service.Region, offers provision.Offerings, _ int) ([]provision.CapacityAdvice, error) {
	return []provision.CapacityAdvice{{Type: offers[0].Type, Zone: offers[0].Zone, Score: new(0.8)}}, nil
}

// Interruptions and capacity advice are transferred; a cloud without them reports none.
func TestSpotReportsThroughMachine(t *testing.T) {
	const region = service.Region("gcp/us-central1")
	offers := provision.Offerings{{Type: "g2-standard-4", Region: region, Zone: "us-central1-a", Capacity: "spot"}}
	c := client(machine(t, newHandler(spotCloud{&conformance.Memory{}})))
	ended, err := c.Interruptions(t.Context(), region, "chat")
	if err != nil || len(ended) != 1 || !ended[0].Interrupted || ended[0].Region != region {
		t.Errorf("interruptions: %+v, %v", ended, err)
	}
	advice, err := c.CapacityAdvice(t.Context(), region, offers, 1)
	if err != nil || len(advice) != 1 || *advice[0].Score != 0.8 || advice[0].Zone != "us-central1-a" {
		t.Errorf("advice: %+v, %v", advice, err)
	}
	if _, err := c.Interruptions(t.Context(), region, "other"); err == nil {
		t.Error("the interruptions of another service were listed")
	}
	plain := client(machine(t, newHandler(&conformance.Memory{})))
	ended, failed := plain.Interruptions(t.Context(), region, "chat")
	advice, err = plain.CapacityAdvice(t.Context(), region, offers, 1)
	if len(ended) > 0 || len(advice) > 0 || failed != nil || err != nil {
		t.Errorf("a cloud without reports: %+v, %v, %+v, %v", ended, failed, advice, err)
	}
}

// A machine executes only calls for its own service, for replicas, in its own regions.
func TestHandlerRejectsForeignCalls(t *testing.T) {
	m := &conformance.Memory{}
	server := machine(t, newHandler(m))
	c := client(server)
	change := func(do func(*provision.Desired)) provision.Desired {
		w := want("us-central1-0")
		do(&w)
		return w
	}
	for name, w := range map[string]provision.Desired{
		"another service": change(func(w *provision.Desired) { w.Service = "other" }),
		"another owner":   change(func(w *provision.Desired) { w.Owner = "them" }),
		"a balancer":      change(func(w *provision.Desired) { w.Kind = provision.KindBalancer }),
	} {
		if _, err := c.Launch(t.Context(), w); err == nil || len(m.Objects()) > 0 {
			t.Errorf("%s was launched: %+v (%v)", name, m.Objects(), err)
		}
	}
	if _, err := c.List(t.Context(), "other"); err == nil {
		t.Error("another service was listed")
	}
	if _, err := c.List(t.Context(), ""); err == nil {
		t.Error("all services were listed")
	}
	if _, err := c.ListIn(t.Context(), "chat", "gcp/mars-north1"); err == nil {
		t.Error("a region was listed that it does not know")
	}

	// the kind in the cloud's list counts, not the kind in the call
	foreign := change(func(w *provision.Desired) { w.Kind = provision.KindBalancer })
	o, err := m.Launch(t.Context(), foreign)
	if err != nil {
		t.Fatal(err)
	}
	o.Kind = provision.KindReplica
	var owned *provision.OwnedError
	if err := c.Terminate(t.Context(), o); !errors.As(err, &owned) || len(m.Objects()) != 1 {
		t.Errorf("a balancer that was called a replica: %v", err)
	}
	for path, body := range map[string]string{"/format": "{}", "/launch": "{}", "/list": "[]", "/terminate": `{"region":"gcp/us-central1"}`} {
		resp, err := http.Post(server.URL+path, "application/json", bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s %s: %s", path, body, resp.Status)
		}
	}
}

// A valid argument of another call does not hide one for another service.
func TestHandlerChecksEveryArgument(t *testing.T) {
	records, own := &recordsOf{}, want("us-central1-0")
	h := newHandler(&conformance.Memory{})
	h.Balancers, h.Records = true, records
	server := machine(t, h)
	object := provision.Object{ID: own.ID, Kind: own.Kind, Service: own.Service, Owner: own.Owner, Region: own.Region}
	foreign := provision.PublicName{Name: "other.example.com", Service: "other", Owner: "o"}
	for name, tt := range map[string]struct {
		path string
		body map[string]any
	}{
		"a name beside a machine":           {"/move-records", map[string]any{"want": own, "name": foreign, "zone": "Z1"}},
		"a service beside a machine":        {"/list", map[string]any{"want": own, "service": "other"}},
		"a service beside an object":        {"/interruptions", map[string]any{"object": object, "service": "other"}},
		"a service beside its own name":     {"/list", map[string]any{"name": provision.PublicName{Service: own.Service, Owner: own.Owner}, "service": "other"}},
		"an object beside a machine to run": {"/terminate", map[string]any{"want": own, "object": provision.Object{Kind: own.Kind, Service: "other", Owner: own.Owner}}},
	} {
		body, err := json.Marshal(tt.body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Post(server.URL+tt.path, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden || records.zone != "" {
			t.Errorf("%s: %s, records in zone %q", name, resp.Status, records.zone)
		}
	}
}

// Where controllers replace balancers, a machine also launches and terminates balancers and repairs firewalls of its
// own service, and nothing else.
func TestHandlerForBalancers(t *testing.T) {
	m := &conformance.Memory{}
	h := newHandler(m)
	h.Balancers = true
	c := client(machine(t, h))
	launch := func(kind provision.ObjectKind, owner string) (provision.Object, error) {
		w := want("lb-us-central1-0-" + string(kind))
		w.Kind, w.Owner = kind, owner
		return c.Launch(t.Context(), w)
	}
	own := want("us-central1-0").Owner
	for kind, permitted := range map[provision.ObjectKind]bool{provision.KindBalancer: true, provision.KindFirewall: true, provision.KindIdentity: false, provision.KindBinary: false} {
		o, err := launch(kind, own)
		if (err == nil) != permitted {
			t.Errorf("launching a %s: %v", kind, err)
		}
		if _, err := launch(kind, "them"); err == nil {
			t.Errorf("a %s of another owner was launched", kind)
		}
		if err := c.Terminate(t.Context(), o); permitted && (err == nil) != (kind == provision.KindBalancer) {
			t.Errorf("terminating a %s: %v", kind, err)
		}
	}
}

// recordsOf records the calls of a RecordUpdater.
type recordsOf struct {
	zone string
	name provision.PublicName
	err  error
}

func (r *recordsOf) UpdateRecords(_ context.Context, zoneID string, n provision.PublicName) error {
	r.zone, r.name = zoneID, n
	return r.err
}

// Where controllers replace balancers, a machine at AWS also moves the records of its own service.
func TestHandlerMovesRecords(t *testing.T) {
	records := &recordsOf{}
	h := newHandler(&conformance.Memory{})
	h.Balancers, h.Records = true, records
	c := client(machine(t, h))
	own := provision.PublicName{
		Name: "chat.example.com", Zone: "example.com", Service: "chat", Owner: "o", Routing: provision.RoutingGeo,
		Records: []provision.DNSRecord{{ID: "lb-0", Region: "aws/us-east-1", Address: netip.MustParseAddr("192.0.2.1"), Check: "http://192.0.2.1/readyz"}},
	}
	if err := c.UpdateRecords(t.Context(), "Z1", own); err != nil || records.zone != "Z1" || !reflect.DeepEqual(records.name, own) {
		t.Errorf("%+v arrived as %+v in zone %s: %v", own, records.name, records.zone, err)
	}
	records.err = &provision.CredentialsError{Cloud: "aws", Action: "route53:UpdateHealthCheck", Code: "AccessDenied", Err: errors.New("denied")}
	var refused *provision.CredentialsError
	if err := c.UpdateRecords(t.Context(), "Z1", own); !errors.As(err, &refused) || refused.Action != "route53:UpdateHealthCheck" {
		t.Errorf("got %v", err)
	}
	*records = recordsOf{}
	for name, change := range map[string]func(h *remote.Handler, n *provision.PublicName){
		"another service":                      func(_ *remote.Handler, n *provision.PublicName) { n.Service = "other" },
		"another owner":                        func(_ *remote.Handler, n *provision.PublicName) { n.Owner = "them" },
		"controllers do not replace balancers": func(h *remote.Handler, _ *provision.PublicName) { h.Balancers = false },
		"a machine without hosted zones":       func(h *remote.Handler, _ *provision.PublicName) { h.Records = nil },
	} {
		h, n := *h, own
		change(&h, &n)
		if err := client(machine(t, &h)).UpdateRecords(t.Context(), "Z1", n); err == nil || records.zone != "" {
			t.Errorf("%s: records of %+v moved: %v", name, records.name, err)
		}
	}
}

// When one machine does not respond, the next one is called. An error of the cloud itself is final.
func TestCallFallsBackToNextMachine(t *testing.T) {
	m := &conformance.Memory{}
	dead := machine(t, newHandler(m))
	dead.Close()
	works := machine(t, newHandler(m))
	if _, err := client(dead, works).Launch(t.Context(), want("us-central1-0")); err != nil || len(m.Objects()) != 1 {
		t.Errorf("%+v (%v)", m.Objects(), err)
	}
	if _, err := client().List(t.Context(), "chat"); !errors.Is(err, remote.ErrNoMachine) {
		t.Errorf("without a machine: %v", err)
	}
	if _, err := client(dead).List(t.Context(), "chat"); !errors.Is(err, remote.ErrNoMachine) {
		t.Errorf("with a dead one: %v", err)
	}
	asked := 0
	refuses := &remote.Client{Cloud: "gcp", Machines: func() []remote.CallFunc {
		refusal := func(context.Context, remote.CallKind, []byte) ([]byte, error) {
			asked++
			return json.Marshal(map[string]any{"error": map[string]any{"text": "no"}})
		}
		return []remote.CallFunc{refusal, refusal}
	}}
	if err := refuses.Terminate(t.Context(), provision.Object{}); err == nil || err.Error() != "no" || asked != 1 {
		t.Errorf("called %d machines: %v", asked, err)
	}
}
