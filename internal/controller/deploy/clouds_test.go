package deploy_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/aws"
	"skyserve/provision/cloud"
	"skyserve/provision/gcp"
)

// clouds is both clouds, in this process.
type clouds struct {
	faults *testcloud.Faults
	aws    *testcloud.AWS
	gce    *testcloud.GCE
	places []string // of the service's regions at AWS
	poll   time.Duration
}

// newClouds returns the clouds of a service. poll is the polling interval of its programs;
// negative = without waiting.
func newClouds(spec *service.Spec, faults *testcloud.Faults, poll time.Duration) *clouds {
	c := &clouds{faults: faults, poll: poll, gce: testcloud.NewGCE("p", faults)}
	for _, r := range cloud.ManagedRegions(spec) {
		if r.Cloud() == service.CloudAWS {
			c.places = append(c.places, r.ShortName())
		}
	}
	c.aws = testcloud.NewAWS(faults, c.places...)
	for _, name := range []string{"chat", "old"} { // these tests ignore the owner
		c.gce.CreateServiceAccount("skyserve-"+name+"-lb@p.iam.gserviceaccount.com", "roles/editor")
	}
	return c
}

// open returns the clouds for a program that has just started.
func (c *clouds) open(t testing.TB) provision.MultiCloud {
	t.Helper()
	amazon, err := aws.New(context.Background(), aws.Config{
		Regions: c.places, Transport: testcloud.HandlerTransport{Handler: c.aws}, Poll: c.poll,
		Credentials: credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", "secret", ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	google := gcp.New(gcp.Config{Project: "p", Endpoint: "http://gce", Transport: testcloud.HandlerTransport{Handler: c.gce}, Poll: c.poll})
	return provision.MultiCloud{service.CloudAWS: amazon, service.CloudGCP: google}
}

// listAll returns everything that exists in both clouds, sorted, with duplicates.
func (c *clouds) listAll() []string {
	left := c.aws.RemainingResources()
	for _, i := range c.gce.Instances() {
		left = append(left, fmt.Sprintf("instance %s in %s: %s %s", i.Name, i.Zone, i.Status, i.Scheduling.ProvisioningModel))
	}
	for _, f := range c.gce.Firewalls() {
		left = append(left, fmt.Sprintf("rule %s for %v: %v %v from %v %v", f.Name, f.TargetTags, f.Allowed, f.Denied, f.SourceRanges, f.SourceTags))
	}
	return left
}

// calls returns the number of calls of both clouds.
func (c *clouds) calls() (n int) {
	for _, times := range c.faults.CallCounts() {
		n += times
	}
	return n
}

const hundred = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}]
regions:
  - {name: aws/us-east-1, replicas: {min: 20, max: 20}, capacity: [spot, on_demand]}
  - {name: aws/us-west-2, replicas: {min: 20, max: 20}}
  - {name: aws/eu-central-1, replicas: {min: 20, max: 20}}
  - {name: gcp/us-central1, replicas: {min: 20, max: 20}, capacity: [spot, on_demand]}
  - {name: gcp/europe-west4, replicas: {min: 20, max: 20}}
`

// throttle rejects calls to a region above a number per second.
func throttle(limit int) func(testcloud.Call) testcloud.Outcome {
	type window struct {
		place  string
		second int64
	}
	seen := map[window]int{}
	return func(c testcloud.Call) testcloud.Outcome {
		w := window{c.Cloud + "/" + c.Region, time.Now().Unix()}
		seen[w]++
		if seen[w] > limit {
			return testcloud.Throttled
		}
		return testcloud.Served
	}
}

// A hundred replicas in five regions of two clouds, with 20 ms per call, start within the limit of
// concurrent calls per region, a second up changes nothing, and down deletes everything; also where
// the clouds throttle, with a bounded number of retries.
func TestHundredReplicasInTwoClouds(t *testing.T) {
	testkit.Slow(t)
	spec := parse(t, hundred)
	measure := func(name string, decide func(testcloud.Call) testcloud.Outcome) (made int) {
		synctest.Test(t, func(t *testing.T) {
			f := &testcloud.Faults{DuringCall: func(testcloud.Call) { time.Sleep(20 * time.Millisecond) }, DecideOutcome: decide}
			c := newClouds(spec, f, 0)
			begun := time.Now()
			first := newDeployer(spec, c.open(t))
			plan, err := first.Plan(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, _, err := first.UpAndAwait(t.Context(), plan, nil, first.AwaitListed, func(*deploy.MachineEndedError, *deploy.MachinePlan) {}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			made = c.calls()
			t.Logf("%s: up after %v and %d calls: %v", name, time.Since(begun), made, f.CallCounts())
			if a, g := len(c.aws.Machines()), len(c.gce.Instances()); a != 63 || g != 42 {
				t.Errorf("%s: %d machines at AWS and %d at Google, want 63 and 42", name, a, g)
			}
			for _, r := range cloud.ManagedRegions(spec) {
				if most := f.MaxCallsInFlight(r.Cloud(), r.ShortName()); most > provision.MaxCallsPerHost {
					t.Errorf("%s: %d calls in flight to %s, want at most %d", name, most, r, provision.MaxCallsPerHost)
				}
			}
			stands := c.listAll()
			if p, err := up(spec, c.open(t)); err != nil || len(p.Changes) != 0 || !slices.Equal(c.listAll(), stands) {
				t.Errorf("%s: up again: %+v, %v", name, p, err)
			}
			if err := deploy.Down(t.Context(), c.open(t), "chat", "me", nil); err != nil || len(c.listAll()) != 0 {
				t.Errorf("%s: down: %v, left %q", name, err, c.listAll())
			}
		})
		return made
	}
	calm := measure("as fast as it goes", nil)
	if throttled := measure("20 calls a second and region", throttle(20)); throttled > 3*calm {
		t.Errorf("%d calls with throttling, %d without", throttled, calm)
	}
}
