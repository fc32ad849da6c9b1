package provision_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

const (
	spot     = service.CapacitySpot
	onDemand = service.CapacityOnDemand
	reserved = service.CapacityReserved
)

// offer is an offering of an L4 or H100 in a zone of AWS.
func offer(kind, zone string, capacity service.CapacityType, price float64) provision.Offering {
	gpu := "L4"
	if strings.HasPrefix(kind, "p5") {
		gpu = "H100"
	}
	return provision.Offering{
		Type: kind, Region: service.Region("aws/" + zone[:len(zone)-1]), Zone: zone, Capacity: capacity, GPU: gpu, GPUs: 1, PricePerHour: price,
	}
}

func TestSortedByCapacityFollowsOrder(t *testing.T) {
	all := provision.Offerings{
		offer("g6.xlarge", "us-east-1b", onDemand, 0.8), offer("g6.xlarge", "us-east-1a", onDemand, 0.8),
		offer("g6.xlarge", "us-east-1c", spot, 0.5), offer("g6.xlarge", "us-east-1a", spot, 0.4),
		offer("g6.xlarge", "us-east-1b", spot, 0), offer("g6.xlarge", "us-east-1a", reserved, 0.3),
	}
	want := []string{
		"spot g6.xlarge in us-east-1a", "spot g6.xlarge in us-east-1c", "spot g6.xlarge in us-east-1b", // its price is unknown
		"on_demand g6.xlarge in us-east-1a", "on_demand g6.xlarge in us-east-1b",
	}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		var got []string
		for _, o := range all.SortedByCapacity([]service.CapacityType{spot, onDemand}) {
			got = append(got, o.String())
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// A capacity error covers exactly its scope, and expires.
func TestExhaustedMatchesScopeAndExpires(t *testing.T) {
	begin := time.Unix(1000, 0)
	refused := offer("g6.xlarge", "us-east-1a", spot, 0.4)
	others := map[string]provision.Offering{
		"itself":                 refused,
		"another zone":           offer("g6.xlarge", "us-east-1b", spot, 0.4),
		"another type":           offer("g6.4xlarge", "us-east-1a", spot, 0.4),
		"another region":         offer("g6.xlarge", "eu-west-1a", spot, 0.4),
		"another GPU":            offer("p5.4xlarge", "us-east-1a", spot, 6),
		"another capacity type":  offer("g6.xlarge", "us-east-1a", onDemand, 0.8),
		"a machine without GPUs": {Type: "c7i.large", Region: "aws/us-east-1", Zone: "us-east-1a", Capacity: spot},
	}
	for scope, want := range map[provision.CapacityScope][]string{
		provision.ScopeZone:   {"itself"},
		provision.ScopeRegion: {"another zone", "itself"},
		provision.ScopeQuota:  {"another type", "another zone", "itself"},
		provision.ScopeCloud:  {"another region", "another type", "another zone", "itself"},
	} {
		var e provision.ExhaustedOfferings
		e.Add(&provision.CapacityError{Offering: refused, Scope: scope}, begin)
		var got []string
		for name, o := range others {
			if e.Covers(o, begin.Add(time.Minute)) {
				got = append(got, name)
			}
			if e.Covers(o, begin.Add(time.Hour)) {
				t.Errorf("%s: %s is passed over an hour later", scope, name)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: passes over %q, want %q", scope, got, want)
		}
	}
}

// limitedCapacity has capacity only in some zones.
type limitedCapacity struct {
	fake
	zones []string
	tried []string
}

func (s *limitedCapacity) Launch(ctx context.Context, w provision.Desired) (provision.Object, error) {
	if len(w.Offerings) != 1 {
		return provision.Object{}, fmt.Errorf("got %d offerings, want one at a time", len(w.Offerings))
	}
	o := w.Offerings[0]
	s.tried = append(s.tried, o.Zone)
	if !slices.Contains(s.zones, o.Zone) {
		return provision.Object{}, &provision.CapacityError{Offering: o, Scope: provision.ScopeZone, Code: "InsufficientInstanceCapacity", Err: errors.New("no")}
	}
	return s.fake.Launch(ctx, w)
}

func TestLaunchFallsBackToNextOffering(t *testing.T) {
	var wants []provision.Desired
	for i := range 3 {
		w := want(fmt.Sprint("us-", i), provision.KindReplica, "aws/us-east-1", "s")
		for _, zone := range []string{"us-east-1a", "us-east-1b", "us-east-1c"} {
			w.Offerings = append(w.Offerings, offer("g6.xlarge", zone, spot, 0.4))
		}
		wants = append(wants, w)
	}
	for _, tt := range []struct {
		zones []string
		tried []string
		err   []string
	}{
		{[]string{"us-east-1c"}, []string{"us-east-1a", "us-east-1b", "us-east-1c", "us-east-1c", "us-east-1c"}, nil},
		{nil, []string{"us-east-1a", "us-east-1b", "us-east-1c"}, []string{"us-0", "aws/us-east-1", "spot g6.xlarge in us-east-1b: InsufficientInstanceCapacity", "us-2", "3 more skipped, without capacity"}},
	} {
		s := &limitedCapacity{zones: tt.zones}
		_, err := provision.Apply(context.Background(), provision.Diff(wants, nil), s, provision.ApplyOptions{Parallel: 1})
		if !slices.Equal(s.tried, tt.tried) {
			t.Errorf("attempted %q, want %q: offerings that recently had no capacity are skipped", s.tried, tt.tried)
		}
		if (err != nil) != (tt.err != nil) {
			t.Errorf("got %v", err)
		}
		for _, part := range tt.err {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("got %q, want %q in it", err, part)
			}
		}
	}
}

// With surge, the replacement is ready before the old replica is drained and terminated; without, the old one is drained
// first. A replacement that does not become ready is terminated and the old one stays, unless the run was interrupted.
func TestSurgeLaunchesBeforeTerminating(t *testing.T) {
	same := want("us-0", provision.KindReplica, "aws/us-east-1", "new")
	other := want("us-1", provision.KindReplica, "aws/us-east-1", "new")
	running := objectOf(other, 2)
	broken := errors.New("it does not answer")
	for name, tt := range map[string]struct {
		surge   *provision.Replacement
		waiting error
		stopped bool // the context ends while the replacement starts
		did     []string
		left    string
	}{
		"terminated first":                       {nil, nil, false, []string{"drained us-0", "terminate us-0", "launch us-0", "settled us-0"}, "us-0 new"},
		"terminated first, never ready":          {nil, broken, false, []string{"drained us-0", "terminate us-0", "launch us-0", "settled us-0"}, "us-0 new"},
		"launched first":                         {&provision.Replacement{Desired: same}, nil, false, []string{"launch us-0", "settled us-0", "drained us-0", "terminate us-0"}, "us-0 new"},
		"launched first with another id":         {&provision.Replacement{Desired: other}, nil, false, []string{"launch us-1", "settled us-1", "drained us-0", "terminate us-0"}, "us-1 new"},
		"launched first, never ready":            {&provision.Replacement{Desired: other}, broken, false, []string{"launch us-1", "settled us-1", "terminate us-1"}, "us-0 old"},
		"launched first, interrupted":            {&provision.Replacement{Desired: other}, context.Canceled, true, []string{"launch us-1", "settled us-1"}, "us-0 old us-1 new"},
		"launched by an earlier run":             {&provision.Replacement{Running: &running}, nil, false, []string{"settled us-1", "drained us-0", "terminate us-0"}, "us-1 new"},
		"launched by an earlier run and failing": {&provision.Replacement{Running: &running}, broken, false, []string{"settled us-1", "terminate us-1"}, "us-0 old"},
	} {
		old := objectOf(same, 1)
		old.SpecHash = "old"
		f := &fake{objects: []provision.Object{old}}
		changes := provision.Diff([]provision.Desired{same}, f.objects)
		if tt.surge != nil && tt.surge.Running != nil {
			f.objects = append(f.objects, running)
		}
		ctx, stop := context.WithCancel(t.Context())
		_, err := provision.Apply(ctx, changes, f, provision.ApplyOptions{
			Surge: func(context.Context, provision.Change) (*provision.Replacement, error) { return tt.surge, nil },
			WaitReady: func(_ context.Context, o provision.Object) error {
				f.log = append(f.log, "settled "+o.ID)
				if tt.stopped {
					stop()
				}
				return tt.waiting
			},
			Drain: func(_ context.Context, o provision.Object) { f.log = append(f.log, "drained "+o.ID) },
		})
		stop()
		var left []string
		for _, o := range f.objects {
			left = append(left, o.ID+" "+o.SpecHash)
		}
		slices.Sort(left)
		if !errors.Is(err, tt.waiting) || !slices.Equal(f.log, tt.did) || strings.Join(left, " ") != tt.left {
			t.Errorf("%s: did %q, left %q, %v; want %q, %q", name, f.log, left, err, tt.did, tt.left)
		}
	}
}

func TestMultiCloudRoutesByCloud(t *testing.T) {
	aws, gcp := &fake{}, &fake{}
	p := provision.MultiCloud{"aws": aws, "gcp": gcp}
	wants := []provision.Desired{want("a", provision.KindReplica, "aws/us-east-1", "s"), want("g", provision.KindReplica, "gcp/us-central1", "s")}
	if _, err := provision.Apply(context.Background(), provision.Diff(wants, nil), p, provision.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	have, err := p.List(context.Background(), "chat")
	if err != nil || len(have) != 2 || aws.objects[0].ID != "a" || gcp.objects[0].ID != "g" {
		t.Errorf("got %+v, %v", have, err)
	}
	if _, err := p.Launch(context.Background(), want("x", provision.KindReplica, "azure/west", "s")); err == nil || !strings.Contains(err.Error(), "azure") {
		t.Errorf("got %v, want an error that names the cloud", err)
	}
	for _, o := range have {
		if err := p.Terminate(context.Background(), o); err != nil {
			t.Error(err)
		}
	}
	if len(aws.objects)+len(gcp.objects) != 0 {
		t.Errorf("remaining: %+v, %+v", aws.objects, gcp.objects)
	}
}

// failingList returns an error from List.
type failingList struct{ fake }

func (*failingList) List(context.Context, string) ([]provision.Object, error) {
	return nil, errors.New("throttled")
}

func TestMultiCloudListFailsIfOneCloudFails(t *testing.T) {
	p := provision.MultiCloud{"aws": &fake{objects: []provision.Object{{ID: "a"}}}, "gcp": &failingList{}}
	if have, err := p.List(context.Background(), "chat"); err == nil || have != nil || !strings.Contains(err.Error(), "gcp") {
		t.Errorf("got %+v, %v", have, err)
	}
}

// blockedTransport responds when its channel is closed.
type blockedTransport struct{ answer chan struct{} }

func (s blockedTransport) RoundTrip(*http.Request) (*http.Response, error) {
	<-s.answer
	return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
}

func TestCallsPerHostAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		rt := provision.LimitCallsPerHost(blockedTransport{answers})
		const calls = 3 * provision.MaxCallsPerHost
		ended := map[string]int{}
		results := make(chan string, 2*calls)
		ctx, cancel := context.WithCancel(t.Context())
		for _, host := range []string{"a", "b"} {
			for range calls {
				go func() {
					r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host, nil)
					_, err := rt.RoundTrip(r)
					results <- fmt.Sprint(host, err)
				}()
			}
		}
		synctest.Wait()
		cancel() // waiting requests end; requests in flight continue
		synctest.Wait()
		for len(results) > 0 {
			ended[<-results]++
		}
		want := map[string]int{"acontext canceled": calls - provision.MaxCallsPerHost, "bcontext canceled": calls - provision.MaxCallsPerHost}
		if !reflect.DeepEqual(ended, want) {
			t.Errorf("waiting for a turn were %v, want %v", ended, want)
		}
		close(answers)
	})
}

func TestCatalogueIsConsistent(t *testing.T) {
	for _, cloud := range []string{service.CloudAWS, service.CloudGCP} {
		types := provision.MachineTypes(cloud)
		if len(types) == 0 || !slices.ContainsFunc(types, func(m provision.MachineType) bool { return m.GPU == "" }) {
			t.Errorf("%s has no machine for balancers: %+v", cloud, types)
		}
		for _, m := range types {
			if (m.GPU == "") != (m.GPUs == 0) || m.VCPUs <= 0 || m.From == "" || m.Spot > m.OnDemand {
				t.Errorf("cannot be: %+v", m)
			}
			if got, ok := provision.MachineTypeOf(cloud, m.Type); !ok || got != m {
				t.Errorf("%s is there twice", m.Type)
			}
		}
	}
	if _, ok := provision.MachineTypeOf("aws", "z9.huge"); ok {
		t.Error("z9.huge is in it")
	}
}

// A machine with one offering, or one that was skipped, is reported in the singular.
func TestNoCapacityOfOneIsSingular(t *testing.T) {
	one := offer("g6.xlarge", "us-east-1a", spot, 0.4)
	for want, e := range map[string]*provision.AllOfferingsExhaustedError{
		"launching us-0 in aws/us-east-1: none of 1 offering has capacity:\n  spot g6.xlarge in us-east-1a: No":                    {ID: "us-0", Region: "aws/us-east-1", Attempted: []*provision.CapacityError{{Offering: one, Code: "No"}}},
		"launching us-0 in aws/us-east-1: none of 1 offering has capacity:\n  1 more skipped, without capacity in the last 10 min": {ID: "us-0", Region: "aws/us-east-1", Skipped: provision.Offerings{one}},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
