package gcp_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/gcp"
)

// hundredReplicas returns 20 desired replicas in each of five regions.
func hundredReplicas() (wants []provision.Desired, places []string) {
	places = []string{"us-central1", "us-east4", "europe-west4", "asia-northeast1", "asia-southeast1"}
	for _, place := range places {
		for n := range 20 {
			w := replica(fmt.Sprintf("%s-%d", place, n), service.CapacitySpot)
			w.Region = service.Region("gcp/" + place)
			w.Offerings[0].Region, w.Offerings[0].Zone = w.Region, place+"-a"
			wants = append(wants, w)
		}
	}
	return wants, places
}

// A hundred concurrent launches have at most ten calls per region in flight, in a cloud whose calls take 20
// ms.
func TestCallsInFlightAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faults := &testcloud.Faults{DuringCall: func(testcloud.Call) { time.Sleep(20 * time.Millisecond) }}
		g := newGCE(faults)
		wants, places := hundredReplicas()
		begun := time.Now()
		if _, err := provision.Apply(t.Context(), provision.Diff(wants, nil), provider(g), provision.ApplyOptions{Parallel: len(wants)}); err != nil {
			t.Fatal(err)
		}
		calls := 0
		for _, n := range faults.CallCounts() {
			calls += n
		}
		t.Logf("%d machines: %d calls %v, %v", len(wants), calls, faults.CallCounts(), time.Since(begun))
		for _, place := range append(places, "") {
			if most := faults.MaxCallsInFlight("gcp", place); most > provision.MaxCallsPerHost || most < 2 {
				t.Errorf("%q: %d calls were in flight at once, want several and at most %d", place, most, provision.MaxCallsPerHost)
			}
		}
		if len(g.Instances()) != len(wants) {
			t.Errorf("got %d machines", len(g.Instances()))
		}
	})
}

// A call that is always rejected fails after all attempts, with increasing backoff.
func TestRetriesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, outcome := range []testcloud.Outcome{testcloud.Throttled, testcloud.InternalError, testcloud.ResponseLost} {
			faults := &testcloud.Faults{DecideOutcome: everyNth(1, outcome)}
			cfg := config(newGCE(faults))
			cfg.Poll = time.Second
			begun := time.Now()
			_, err := gcp.New(cfg).List(t.Context(), "chat")
			took := time.Since(begun)
			var denied *provision.CredentialsError
			var throttled *provision.ThrottledError
			if errors.As(err, &throttled) != (outcome == testcloud.Throttled) {
				t.Errorf("outcome %d: got %T", outcome, err)
			}
			tries, least, most := 6, 4*time.Second, 15*time.Second
			if outcome == testcloud.Throttled { // rate limits are per minute
				tries, least, most = 12, 59*time.Second, 3*time.Minute
			}
			if err == nil || errors.As(err, &denied) || faults.CallCounts()["compute.instances.aggregatedList"] != tries {
				t.Errorf("outcome %d: got %v after %v", outcome, err, faults.CallCounts())
			}
			if took < least || took > most {
				t.Errorf("outcome %d: it took %v", outcome, took)
			}
		}
	})
}

// A call beyond a rate limit succeeds in the next minute.
func TestRateLimitedCallsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		faults := &testcloud.Faults{DecideOutcome: func(testcloud.Call) testcloud.Outcome {
			if time.Since(begun) < 59*time.Second {
				return testcloud.Throttled
			}
			return testcloud.Served
		}}
		cfg := config(newGCE(faults))
		cfg.Poll = time.Second
		if _, err := gcp.New(cfg).List(t.Context(), "chat"); err != nil {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}

// A machine's guest attributes are read at most ten times a minute, which is Google's limit.
func TestFingerprintIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faults := &testcloud.Faults{}
		g := newGCE(faults)
		cfg := config(g)
		cfg.Poll = time.Second
		p := gcp.New(cfg)
		o := launched(t, p, replica("us-central1-0", service.CapacitySpot))
		other := launched(t, p, replica("us-central1-1", service.CapacitySpot))
		for range 20 { // a minute of polls, as for a booting machine
			for _, o := range []provision.Object{o, other} {
				if key, err := p.Fingerprint(t.Context(), o); key != "" || err != nil {
					t.Fatalf("got %q, %v", key, err)
				}
			}
			time.Sleep(3 * time.Second)
		}
		if n := faults.CallCounts()["compute.instances.getGuestAttributes"]; n > 20 || n < 10 {
			t.Errorf("the fingerprints of two machines were requested %d times in a minute", n)
		}
		for _, i := range g.Instances() {
			g.SetGuestAttribute(i.Name, "skyserve/fingerprint", i.Name)
		}
		time.Sleep(10 * time.Second)
		if key, err := p.Fingerprint(t.Context(), o); !strings.Contains(key, "us-central1-0") || err != nil {
			t.Errorf("got %q, %v", key, err)
		}
	})
}

// An operation that never ends is an error.
func TestOperationTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGCE(nil)
		g.SetOperationCalls(1 << 30)
		cfg := config(g)
		cfg.Poll = 2 * time.Second
		begun := time.Now()
		_, err := gcp.New(cfg).Launch(t.Context(), replica("us-central1-0", service.CapacitySpot))
		if took := time.Since(begun); err == nil || took != 15*time.Minute {
			t.Errorf("got %v after %v", err, took)
		}
	})
}

func BenchmarkLaunchAndTerminate(b *testing.B) {
	g := newGCE(nil)
	p, w := provider(g), replica("us-central1-0", service.CapacitySpot)
	b.ReportAllocs()
	for b.Loop() {
		o, err := p.Launch(b.Context(), w)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Terminate(b.Context(), o); err != nil {
			b.Fatal(err)
		}
	}
}
