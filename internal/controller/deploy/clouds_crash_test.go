package deploy_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/dns"
	"skyserve/provision/gcp"
)

// everyCall also crashes programs after calls that only read. These do not change the clouds, so
// that such a run needs minutes and detects no other errors.
var everyCall = flag.Bool("crash-every-call", false, "crash after calls that change nothing, too")

// everyChange crashes after every change, with current and with lagging lists, as .ci/nightly does (make crashes): 45 s of CPU.
// Otherwise every sixth change is followed by a crash, with both kinds of lists in turn.
var everyChange = flag.Bool("crash-every-change", false, "crash after every change, with current and with lagging lists")

const pair = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}]
regions:
  - {name: aws/us-east-1, replicas: {min: 1, max: 1}}
  - {name: gcp/us-central1, replicas: {min: 1, max: 1}}
dns: {provider: route53, name: chat.example.com, zone: example.com}
`

// operatorWorld is two clouds with a hosted zone, and the files of an operator's machine.
type operatorWorld struct {
	*clouds
	names  *testcloud.Route53
	zone   string
	stored *provision.PublicName
	memoryNotes
}

func (n *operatorWorld) StoredName() (provision.PublicName, bool, error) {
	if n.stored == nil {
		return provision.PublicName{}, false, nil
	}
	return *n.stored, true, nil
}

func (n *operatorWorld) StoreName(name provision.PublicName) error {
	name.Records = nil
	n.stored = &name
	return nil
}

func (n *operatorWorld) RemoveName() error {
	n.stored = nil
	return nil
}

func newOperatorWorld(t *testing.T, faults *testcloud.Faults) *operatorWorld {
	spec := parse(t, strings.Replace(pair, "dns:", "  - {name: aws/eu-west-1}\n  - {name: gcp/europe-west4}\ndns:", 1))
	n := &operatorWorld{clouds: newClouds(spec, faults, 0), names: testcloud.NewRoute53(faults), memoryNotes: memoryNotes{}}
	n.aws.AssignAddresses = func(i int) (public, private string) {
		return fmt.Sprintf("198.18.%d.%d", i>>8, i&255), fmt.Sprintf("172.31.%d.%d", i>>8, i&255)
	}
	n.zone = n.names.AddZone("example.com", false)
	return n
}

// state returns everything that exists, with machines in place of their addresses in records.
func (n *operatorWorld) state() []string {
	var addresses []string
	for _, m := range n.aws.Machines() {
		addresses = append(addresses, m.Public, m.Tags["skyserve:id"])
	}
	for _, i := range n.gce.Instances() {
		addresses = append(addresses, i.NetworkInterfaces[0].AccessConfigs[0].NatIP, i.Name)
	}
	left := n.listAll()
	checks, tags := n.names.HealthChecks()
	checked := map[string]string{}
	for i, c := range checks {
		checked[c.ID] = tags[i]["skyserve:id"]
		left = append(left, fmt.Sprintf("health check %s of %s at %s", checked[c.ID], tags[i]["skyserve:dns"], c.HealthCheckConfig.IPAddress))
	}
	for _, s := range n.names.RecordSets(n.zone) {
		line := fmt.Sprintf("record %s %s %s %s %+v checked by %s:", s.Name, s.Type, s.SetIdentifier, s.Region, s.GeoProximityLocation, checked[s.HealthCheckID])
		if s.ResourceRecords != nil {
			for _, v := range s.ResourceRecords.ResourceRecord {
				line += " " + v.Value
			}
		}
		left = append(left, line)
	}
	name := strings.NewReplacer(addresses...)
	for i := range left {
		left[i] = name.Replace(left[i])
	}
	slices.Sort(left)
	return left
}

// step is one action of an operator.
type step struct {
	name string
	do   func(ctx context.Context, n *operatorWorld, p provision.MultiCloud, zone provision.DNSZone) error
	// before is a change by another party; nil = none.
	before  func(n *operatorWorld)
	calls   int
	objects []string
}

// upStep returns what `skyserve up` does to clouds, in its order.
func upStep(spec *service.Spec, program string) func(context.Context, *operatorWorld, provision.MultiCloud, provision.DNSZone) error {
	return func(ctx context.Context, n *operatorWorld, p provision.MultiCloud, zone provision.DNSZone) error {
		dp := newDeployer(spec, p)
		dp.UserData = func(c cloud.MachineInput) (string, error) { return "#cloud-config\n# " + c.ID + program, nil }
		plan, err := dp.Plan(ctx)
		if err != nil {
			return err
		}
		if dp.Enrolments, err = deploy.ReadEnrolments(n); err != nil {
			return err
		}
		strangers, known := dp.Enrolments.ClassifyMachines(plan.Observed, func(provision.Object) bool { return false })
		if len(strangers) > 0 {
			return &deploy.UnknownMachinesError{Machines: strangers}
		}
		if err := dp.Enrolments.RecordKnown(known); err != nil {
			return err
		}
		_, have, err := dp.UpAndAwait(ctx, plan, nil, dp.AwaitListed, func(*deploy.MachineEndedError, *deploy.MachinePlan) {})
		if err != nil {
			return err
		}
		return deploy.PublishName(ctx, zone, n, nameFor(spec, have))
	}
}

// nameFor returns the desired name of a service with its balancers.
func nameFor(spec *service.Spec, have []provision.Object) provision.PublicName {
	if spec.DNS == nil {
		return provision.PublicName{}
	}
	name := provision.PublicName{Name: spec.DNS.Name, Zone: spec.DNS.Zone, Service: spec.Name, Owner: "me", Routing: provision.DNSRouting(spec.DNS.Routing), TTL: spec.DNS.TTL}
	for _, o := range have {
		if o.Kind == provision.KindBalancer && o.TerminatedReason == "" {
			name.Records = append(name.Records, provision.DNSRecord{ID: o.ID, Region: o.Region, Address: o.PublicIP, Check: deploy.PublicURL(spec, o) + "/readyz"})
		}
	}
	return name
}

// applyStep returns what `plan --apply` does.
func applyStep(spec *service.Spec, counts map[cloud.ReplicaGroup]provision.ClassCounts) func(context.Context, *operatorWorld, provision.MultiCloud, provision.DNSZone) error {
	return func(ctx context.Context, _ *operatorWorld, p provision.MultiCloud, _ provision.DNSZone) error {
		s := newScaling(newDeployer(spec, p))
		s.UpdateBalancers = func(ctx context.Context, plan *deploy.MachinePlan, _, _ map[string]bool) error {
			_, err := s.AwaitListed(ctx, plan)
			return err
		}
		return s.ApplyDesired(ctx, deploy.DesiredReplicas{Counts: counts})
	}
}

// downStep does what `down` does.
func downStep(ctx context.Context, n *operatorWorld, p provision.MultiCloud, zone provision.DNSZone) error {
	if err := deploy.UnpublishName(ctx, zone, n); err != nil {
		return err
	}
	return deploy.Down(ctx, p, "chat", "me", nil)
}

// gcStep does what `gc` does.
func gcStep(ctx context.Context, _ *operatorWorld, p provision.MultiCloud, _ provision.DNSZone) error {
	orphans, err := deploy.Orphans(ctx, p, []deploy.ServiceKey{{Name: "chat", Owner: "me"}})
	if err != nil {
		return err
	}
	return deploy.DeleteObjects(ctx, p, orphans, nil)
}

// lifecycle returns all steps of a service.
func lifecycle(t *testing.T) []*step {
	with := func(text string, replacements ...string) *service.Spec {
		return parse(t, strings.NewReplacer(replacements...).Replace(text))
	}
	bounds, dnsOf := "{min: 1, max: 1}", "dns: {provider: route53, name: chat.example.com, zone: example.com}"
	wide := strings.NewReplacer(bounds, "{min: 0, max: 2}").Replace(pair)
	east, central := service.Region("aws/us-east-1"), service.Region("gcp/us-central1")
	group := func(r service.Region) cloud.ReplicaGroup { return cloud.ReplicaGroup{Model: "llama", Region: r} }
	l4, h100 := provision.ReplicaClass{GPU: "L4", GPUs: 1}, provision.ReplicaClass{GPU: "H100", GPUs: 1}
	return []*step{
		{name: "up", do: upStep(with(pair), "")},
		{name: "up with more replicas", do: upStep(with(pair, bounds, "{min: 2, max: 2}"), "")},
		{name: "up with fewer replicas", do: upStep(with(pair), "")},
		{name: "plan --apply, more here and fewer there", do: applyStep(with(wide), map[cloud.ReplicaGroup]provision.ClassCounts{group(east): {provision.ReplicaClass{}: 2}, group(central): {}})},
		{name: "plan --apply, the other way", do: applyStep(with(wide), map[cloud.ReplicaGroup]provision.ClassCounts{group(east): {provision.ReplicaClass{}: 1}, group(central): {provision.ReplicaClass{}: 1}})},
		{name: "plan --apply, on another GPU", do: applyStep(with(wide, "{type: L4}", "{type: L4}, {type: H100}"), map[cloud.ReplicaGroup]provision.ClassCounts{group(east): {h100: 1}, group(central): {provision.ReplicaClass{}: 1}})},
		{name: "plan --apply, on the first one again", do: applyStep(with(wide, "{type: L4}", "{type: L4}, {type: H100}"), map[cloud.ReplicaGroup]provision.ClassCounts{group(east): {l4: 1}, group(central): {provision.ReplicaClass{}: 1}})},
		{name: "up with another program", do: upStep(with(pair), " 2")},
		{name: "up with another public port", do: upStep(with(pair, "insecure: true", "tls: {cert: a, key: b}"), " 2")},
		{name: "up with another region", do: upStep(with(pair, "dns:", "  - {name: aws/eu-west-1, replicas: {min: 0, max: 1}}\ndns:"), " 2")},
		{name: "up with a region less", do: upStep(with(pair), " 2")},
		{name: "up with another routing", do: upStep(with(pair, "zone: example.com}", "zone: example.com, routing: geo}"), " 2")},
		{name: "up with another name", do: upStep(with(pair, "chat.example.com", "llm.example.com"), " 2")},
		{name: "up without a name", do: upStep(with(pair, dnsOf, ""), " 2")},
		{name: "up with a name", do: upStep(with(pair), " 2")},
		{name: "up after machines went", do: upStep(with(pair), " 2"), before: func(n *operatorWorld) {
			for _, m := range n.aws.Machines() {
				n.aws.TerminateInstance(m.ID)
			}
			for _, i := range n.gce.Instances() {
				n.gce.SetInstanceStatus(i.Name, "TERMINATED")
			}
		}},
		{name: "up after firewalls were changed", do: upStep(with(pair), " 2"), before: func(n *operatorWorld) {
			n.aws.AddSecurityGroupRule("us-east-1", "skyserve-chat-replica", 22, "0.0.0.0/0")
			n.gce.EditFirewall(n.gce.Firewalls()[0].Name, func(f *testcloud.GCEFirewall) { f.SourceRanges = []string{"192.0.2.0/24"} })
		}},
		{name: "up after a security group was deleted", do: upStep(with(pair), " 2"), before: func(n *operatorWorld) {
			n.aws.DeleteSecurityGroup("us-east-1", "skyserve-chat-replica")
		}},
		{name: "up after records were changed", do: upStep(with(pair), " 2"), before: func(n *operatorWorld) {
			n.names.EditHealthChecks(func(c *testcloud.HealthCheckConfig) { c.ResourcePath = "/elsewhere" })
		}},
		{name: "gc of a service that nobody owns", do: gcStep, before: func(n *operatorWorld) {
			other := parse(t, strings.NewReplacer("name: chat\n", "name: old\n", dnsOf, "").Replace(pair))
			if _, err := up(other, n.open(t)); err != nil {
				t.Error(err)
			}
		}},
		{name: "down", do: downStep},
	}
}

// crash ends a program at its kth changing call, which takes effect: its response is lost, and later
// calls do not arrive.
type crash struct {
	at     int // 0 = no crash
	cancel context.CancelFunc
	calls  int
	dead   bool
}

func (d *crash) decide(c testcloud.Call) testcloud.Outcome {
	if d.dead {
		return testcloud.RequestLost
	}
	if c.ReadOnly && !*everyCall {
		return testcloud.Served
	}
	d.calls++
	if d.at == 0 || d.calls < d.at {
		return testcloud.Served
	}
	d.dead = true
	d.cancel()
	return testcloud.ResponseLost
}

// After a crash at any change to two clouds and a hosted zone, a second run leads to the same result:
// nothing is missing, remains, or exists twice. This holds whether or not lists lag behind (-crash-every-change).
func TestRerunAfterCrashInTwoClouds(t *testing.T) {
	testkit.NotUnderRace(t, "it takes minutes under the race detector, and other tests cover the same code")
	testkit.Slow(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		whole := lifecycle(t)
		if err := runLifecycle(t, whole, 0, 0); err != nil {
			t.Fatal(err)
		}
		most, points := 0, 0
		for _, c := range whole {
			t.Logf("%s: %d points, then %d objects exist", c.name, c.calls, len(c.objects))
			most, points = max(most, c.calls), points+c.calls
		}
		if left := whole[len(whole)-1].objects; len(left) > 0 {
			t.Fatalf("down left %q", left)
		}
		crashes := 0
		for _, lag := range []int{0, 2} {
			var lives sync.WaitGroup
			atOnce := make(chan struct{}, 4)
			for at := 1; at <= most; at++ {
				if !*everyChange && at%12 != lag*3 {
					continue
				}
				crashes++
				atOnce <- struct{}{}
				lives.Go(func() {
					defer func() { <-atOnce }()
					if err := runLifecycle(t, whole, at, lag); err != nil {
						t.Errorf("lists lag by %d: %v", lag, err)
					}
				})
			}
			lives.Wait()
		}
		t.Logf("crashes at %d of %d numbers of a change, %d crash points", crashes, 2*most, points)
	})
}

// maxReruns is how often a step is repeated until lagging lists are current.
const maxReruns = 4

// runLifecycle runs a lifecycle in which every step crashes after one of its calls and is run again.
// With at 0 nothing crashes, and the results of the steps are recorded.
func runLifecycle(t *testing.T, steps []*step, at, lag int) error {
	d := &crash{}
	n := newOperatorWorld(t, &testcloud.Faults{DecideOutcome: d.decide, StaleLists: lag})
	for i, this := range steps {
		if at > 0 && !slices.ContainsFunc(steps[i:], func(c *step) bool { return at <= c.calls }) {
			return nil // no later step would crash
		}
		if this.before != nil {
			this.before(n)
		}
		if err := n.convergeLists(t, lag); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		*d = crash{cancel: cancel}
		if at <= this.calls {
			d.at = at
		}
		err := n.runStep(ctx, t, this)
		cancel()
		calls, crashed := d.calls, d.at > 0
		*d = crash{}
		if at == 0 {
			this.objects, this.calls = n.state(), calls
		}
		if crashed {
			err = n.runStep(t.Context(), t, this)
		}
		for range maxReruns * min(lag, 1) {
			if err != nil || !slices.Equal(n.state(), this.objects) {
				err = n.runStep(t.Context(), t, this)
			}
		}
		if err != nil {
			return fmt.Errorf("%s, with a crash at call %d: %w", this.name, at, err)
		}
		if got := n.state(); !slices.Equal(got, this.objects) {
			return fmt.Errorf("%s, with a crash at call %d: %w", this.name, at, difference(got, this.objects))
		}
	}
	return nil
}

// pricedGoogle is Google Cloud with a price list that is read once for all programs: it never changes,
// and to read it again for each takes a fifth of the time of the test.
type pricedGoogle struct{ *gcp.Provider }

func (pricedGoogle) Prices(_ context.Context, region service.Region) ([]provision.Price, error) {
	prices, err := googlePrices()
	return prices[region], err
}

var googlePrices = sync.OnceValues(func() (map[service.Region][]provision.Price, error) {
	p := gcp.New(gcp.Config{Project: "p", Endpoint: "http://gce", Transport: testcloud.HandlerTransport{Handler: testcloud.NewGCE("p", nil)}})
	prices := map[service.Region][]provision.Price{}
	for _, r := range []service.Region{"gcp/us-central1", "gcp/europe-west4"} {
		var err error
		if prices[r], err = p.Prices(context.Background(), r); err != nil {
			return nil, err
		}
	}
	return prices, nil
})

// convergeLists makes lists current: between the steps of an operator minutes pass.
func (n *operatorWorld) convergeLists(t *testing.T, lag int) error {
	for range lag {
		err := n.runStep(t.Context(), t, &step{do: func(ctx context.Context, n *operatorWorld, p provision.MultiCloud, zone provision.DNSZone) error {
			_, listing := p.List(ctx, "")
			return errors.Join(listing, zone.Check(ctx, nameFor(parse(t, pair), nil)))
		}})
		var owned *provision.OwnedError
		if err != nil && !errors.As(err, &owned) {
			return err
		}
	}
	return nil
}

// runStep runs a step with a program that has just started.
func (n *operatorWorld) runStep(ctx context.Context, t *testing.T, c *step) error {
	zone, err := dns.NewRoute53(context.WithoutCancel(ctx), dns.Config{Endpoint: "http://route53", Transport: testcloud.HandlerTransport{Handler: n.names.Handler()}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // in the bubble's time: a list may still contain deleted objects
	defer cancel()
	p := n.open(t)
	if !*everyCall {
		p[service.CloudGCP] = pricedGoogle{p[service.CloudGCP].(*gcp.Provider)}
	}
	return c.do(ctx, n, p, zone)
}

// difference returns an error with the excess and the missing objects.
func difference(got, want []string) error {
	less := func(a, b []string) []string {
		b = slices.Clone(b)
		return slices.DeleteFunc(slices.Clone(a), func(s string) bool {
			i := slices.Index(b, s)
			if i >= 0 {
				b = slices.Delete(b, i, i+1)
			}
			return i >= 0
		})
	}
	return errors.New(strings.Join(append(append([]string{"excess:"}, less(got, want)...), append([]string{"missing:"}, less(want, got)...)...), "\n  "))
}
