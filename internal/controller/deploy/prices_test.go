package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testcloud/conformance"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// pricedCloud is a cloud that reports prices.
type pricedCloud struct {
	*conformance.Memory
	requests atomic.Int32
	prices   func(ctx context.Context, r service.Region) ([]provision.Price, error)
}

func (p *pricedCloud) Prices(ctx context.Context, r service.Region) ([]provision.Price, error) {
	p.requests.Add(1)
	return p.prices(ctx, r)
}

// tenfoldPrices returns ten times the list prices, on demand and spot.
func tenfoldPrices(_ context.Context, r service.Region) ([]provision.Price, error) {
	var prices []provision.Price
	for _, m := range provision.MachineTypes(r.Cloud()) {
		prices = append(prices,
			provision.Price{Type: m.Type, Capacity: service.CapacityOnDemand, PerHour: 10 * m.OnDemand, Source: "costly " + r.ShortName()},
			provision.Price{Type: m.Type, Capacity: service.CapacitySpot, PerHour: 4 * m.OnDemand, Source: "costly spot " + r.ShortName()})
	}
	return prices, nil
}

const pricedService = `
name: chat
balancer: {auth: {keys_from: env:KEYS}, insecure: true}
models:
  - name: llama
    engine: {kind: vllm}
    gpus: [{type: L4}]
  - name: stated
    engine: {kind: vllm}
    gpus: [{type: H100, price: 3}]
regions:
  - name: aws/us-east-1
    replicas: {min: 1, max: 3}
  - name: aws/eu-west-1
    replicas: {min: 1, max: 3}
    reserved: [{type: g6.xlarge, count: 1, price: 0.5}]
    capacity: [reserved, on_demand]
`

// costsOf returns the cost and price source of each machine that a plan launches.
func costsOf(p *deploy.MachinePlan) map[string]string {
	all := map[string]string{}
	for _, c := range p.Changes {
		if len(c.Desired.Offerings) > 0 {
			text, _ := json.Marshal(math.Round(c.Desired.CostPerHour*1e6) / 1e6)
			all[c.ID()] = string(text) + " " + c.Desired.Offerings[0].PriceSource
		}
	}
	return all
}

// Prices of service.yaml take precedence over a cloud's, and those over list prices. A cloud that
// reports no prices delays nothing.
func TestPlanUsesCloudPrices(t *testing.T) {
	spec := parse(t, pricedService)
	refused := errors.New("prices are secret")
	listed := map[string]string{
		"lb-us-east-1-0": "0.08925 list price in us-east-1", "lb-eu-west-1-0": "0.08925 list price in us-east-1",
		"us-east-1-0": "0.8048 list price in us-east-1", "eu-west-1-0": "0.5 service.yaml",
		"us-east-1-stated-0": "3 service.yaml", "eu-west-1-stated-0": "3 service.yaml",
	}
	reported := map[string]string{
		"lb-us-east-1-0": "0.8925 costly us-east-1", "lb-eu-west-1-0": "0.8925 costly eu-west-1",
		"us-east-1-0": "8.048 costly us-east-1", "eu-west-1-0": "0.5 service.yaml",
		"us-east-1-stated-0": "3 service.yaml", "eu-west-1-stated-0": "3 service.yaml",
	}
	half := map[string]string{"lb-us-east-1-0": reported["lb-us-east-1-0"], "us-east-1-0": reported["us-east-1-0"]}
	for id, cost := range listed {
		if half[id] == "" {
			half[id] = cost
		}
	}
	for _, tt := range []struct {
		name    string
		prices  func(context.Context, service.Region) ([]provision.Price, error)
		want    map[string]string
		unknown []service.Region
	}{
		{"reported", tenfoldPrices, reported, nil},
		{"refused", func(context.Context, service.Region) ([]provision.Price, error) { return nil, refused }, listed, []service.Region{"aws/eu-west-1", "aws/us-east-1"}},
		{"refused in one region", func(ctx context.Context, r service.Region) ([]provision.Price, error) {
			if r.ShortName() == "eu-west-1" {
				return nil, refused
			}
			return tenfoldPrices(ctx, r)
		}, half, []service.Region{"aws/eu-west-1"}},
		{"incomplete prices", func(ctx context.Context, r service.Region) ([]provision.Price, error) {
			prices, _ := tenfoldPrices(ctx, r)
			return prices, refused
		}, reported, []service.Region{"aws/eu-west-1", "aws/us-east-1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cloud := &pricedCloud{Memory: newCloud(spec), prices: tt.prices}
			p, err := newDeployer(spec, cloud).Plan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := costsOf(p)
			for id, want := range tt.want {
				if got[id] != want {
					t.Errorf("%s costs %q, want %q of %v", id, got[id], want, got)
				}
			}
			var unknown []service.Region
			for r, err := range p.Unpriced {
				unknown = append(unknown, r)
				if !errors.Is(err, refused) {
					t.Errorf("%s: %v", r, err)
				}
			}
			slices.Sort(unknown)
			if !slices.Equal(unknown, tt.unknown) || cloud.requests.Load() != 2 {
				t.Errorf("unknown are %q after %d requests, want %q", unknown, cloud.requests.Load(), tt.unknown)
			}
		})
	}
}

// Launches in the drift of `status` cost what `up` reports. Without launches no prices are requested.
func TestDriftUsesCloudPrices(t *testing.T) {
	spec := parse(t, pricedService)
	cloud := &pricedCloud{Memory: newCloud(spec), prices: tenfoldPrices}
	i := &deploy.Inspector{Deployer: newDeployer(spec, cloud), Listers: map[service.Region]deploy.Lister{}}
	for _, r := range spec.Regions {
		i.Listers[r.Name] = cloudRegion{Memory: cloud.Memory, region: r.Name}
	}
	i.ReadStatus = func(context.Context, []provision.Object, provision.Object) (agent.Status, error) {
		return agent.Status{}, nil
	}
	p, err := newDeployer(spec, cloud).Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cloud.requests.Store(0)
	for range 2 {
		s, err := i.Status(t.Context())
		if err != nil || len(s.Drift) == 0 || !slices.Equal(s.Drift, deploy.ChangesOf(p.Changes)) || cloud.requests.Load() != 2 {
			t.Errorf("got %+v, %v after %d requests, want %+v", s, err, cloud.requests.Load(), deploy.ChangesOf(p.Changes))
		}
	}
	if _, err := newDeployer(spec, cloud.Memory).Up(t.Context(), p, nil); err != nil {
		t.Fatal(err)
	}
	cloud.requests.Store(0)
	still := &deploy.Inspector{Deployer: newDeployer(spec, cloud), Listers: i.Listers, ReadStatus: i.ReadStatus}
	if s, err := still.Status(t.Context()); err != nil || len(s.Drift) != 0 || cloud.requests.Load() != 0 {
		t.Errorf("without launches: %+v, %v after %d requests", s, err, cloud.requests.Load())
	}
}

// A cloud that never returns prices delays a plan by at most half a minute.
func TestPriceRequestTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := parse(t, pricedService)
		cloud := &pricedCloud{Memory: newCloud(spec), prices: func(ctx context.Context, _ service.Region) ([]provision.Price, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		begun := time.Now()
		p, err := newDeployer(spec, cloud).Plan(t.Context())
		if err != nil || time.Since(begun) != 30*time.Second || costsOf(p)["us-east-1-0"] != "0.8048 list price in us-east-1" {
			t.Errorf("after %s: %v, %v", time.Since(begun), costsOf(p), err)
		}
		if err := p.Unpriced["aws/us-east-1"]; err == nil || !strings.Contains(err.Error(), "no response within 30s") {
			t.Errorf("got %v", err)
		}
	})
}

// The reconciler requests prices in the background, keeps the previous ones if a later request fails,
// and provides its offerings to the planner.
func TestReconcilerRequestsPricesInBackground(t *testing.T) {
	testkit.Slow(t)
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		var refuse atomic.Bool
		cloud := &pricedCloud{Memory: u.Memory, prices: func(ctx context.Context, r service.Region) ([]provision.Price, error) {
			select {
			case <-time.After(20 * time.Second):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if refuse.Load() {
				return nil, errors.New("prices are secret")
			}
			return tenfoldPrices(ctx, r)
		}}
		rc := u.reconciler()
		rc.SetProber(allServe)
		inner := rc.Open
		rc.Open = func(ctx context.Context, means json.RawMessage, spec *service.Spec, owner string) (deploy.CloudAccess, error) {
			reach, err := inner(ctx, means, spec, owner)
			reach.Provider = cloud
			return reach, err
		}
		if rc.Offerings() != nil {
			t.Errorf("before the first observation: %v", rc.Offerings())
		}
		price := func() float64 {
			return rc.Offerings()["aws/eu-west-1"].WithGPU("L4", 1).SortedByCapacity([]service.CapacityType{service.CapacityOnDemand})[0].PricePerHour
		}
		u.ChangeObject("us-east-1-1", nil)
		u.reconcileFor(t, rc, 10*time.Second, always)
		if got := u.replicas(); !slices.Equal(got, allKept) || price() != 0.8048 {
			t.Errorf("while it waits for prices: %q at %g", got, price())
		}
		u.reconcileFor(t, rc, 40*time.Second, always)
		if math.Abs(price()-8.048) > 1e-9 || cloud.requests.Load() != 4 {
			t.Errorf("with prices: %g after %d requests", price(), cloud.requests.Load())
		}
		refuse.Store(true)
		u.reconcileFor(t, rc, 36*time.Minute, always)
		if math.Abs(price()-8.048) > 1e-9 || cloud.requests.Load() != 4+2*2 {
			t.Errorf("refused: %g after %d requests", price(), cloud.requests.Load())
		}
	})
}
