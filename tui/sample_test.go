package tui

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// llama is the model of the sample services.
const llama = "meta-llama/Llama-3.1-8B-Instruct"

// What a request of the sample has on average, and the capacity of a replica in uncached prompt tokens per second.
const (
	promptTokens, outputTokens = 180, 64
	sampleCapacity             = 1300.0
)

// replica is a busy replica; load is 0..1.
func replica(id, gpu string, load float64) telemetry.ReplicaSnapshot {
	return telemetry.ReplicaSnapshot{
		ID: id, URL: "http://10.0.0.7:8000", Model: llama, GPU: gpu, State: service.StateReady,
		Pending: ptr(int(load * 4)), Running: ptr(int(load * 60)), Outstanding: int(load * 63), KV: ptr(load),
		PrefixHitRate: ptr(0.4 + load/3), OutputTokensPerSecond: ptr(load * 1400), AgeMillis: ptr(int64(80)),
	}
}

// troubled is a replica without metrics.
func troubled(id string, state service.ReplicaState, reason string) telemetry.ReplicaSnapshot {
	return telemetry.ReplicaSnapshot{ID: id, Model: llama, GPU: "L4", State: state, Reason: reason}
}

// region is a region with one balancer, whose clients send what its replicas serve.
func region(name string, replicas ...telemetry.ReplicaSnapshot) telemetry.RegionSnapshot {
	r := telemetry.RegionSnapshot{Name: service.Region(name), Replicas: replicas}
	tokens, cached, ready, load := 0.0, 0.0, 0, 0.0
	for _, rep := range replicas {
		if rep.OutputTokensPerSecond == nil {
			continue
		}
		tokens += *rep.OutputTokensPerSecond
		cached += *rep.OutputTokensPerSecond * *rep.PrefixHitRate
		if rep.State == service.StateReady {
			ready, load = ready+1, load+*rep.KV
		}
	}
	load /= float64(max(ready, 1))
	id := "lb-" + r.Name.ShortName() + "-0"
	r.Balancers = []telemetry.BalancerSnapshot{{ID: id, Endpoint: "http://127.0.0.1:8001", State: "READY", RTTMillis: ptr(83.4), AgeMillis: 60}}
	r.RequestsPerSecond, r.OutputTokensPerSecond, r.PrefixHitRate = ptr(tokens/outputTokens), ptr(tokens), ptr(cached/max(tokens, 1))
	r.TTFT = &telemetry.Percentiles{P50: 180 * (1 + load), P90: 600 * (1 + 2*load), P99: 1400 * (1 + 2*load)}
	return r
}

// forward makes a region forward requests to another: per second now, and in total.
func forward(from, to *telemetry.RegionSnapshot, perSecond float64, total int64) {
	from.ForwardedTo = append(from.ForwardedTo, telemetry.Flow{Region: to.Name, Requests: total})
	slices.SortFunc(from.ForwardedTo, func(a, b telemetry.Flow) int { return strings.Compare(string(a.Region), string(b.Region)) })
	from.ForwardedOut, to.ForwardedIn = from.ForwardedOut+total, to.ForwardedIn+total
	*from.RequestsPerSecond, *to.RequestsPerSecond = *from.RequestsPerSecond+perSecond, *to.RequestsPerSecond-perSecond
	*from.OutputTokensPerSecond, *to.OutputTokensPerSecond = *from.OutputTokensPerSecond+perSecond*outputTokens, *to.OutputTokensPerSecond-perSecond*outputTokens
}

// tenantKey is a key of a tenant, and its share of the traffic of its region.
type tenantKey struct {
	tenant, key string
	share       float64
}

// serve gives a region its queue and the traffic of the last minute, in which limited and failed requests are beyond those
// served; missShare is the share of its first tokens that missed the target.
func serve(r *telemetry.RegionSnapshot, queued, deferred int, limited, failed int64, missShare float64, keys ...tenantKey) {
	served := int64(*r.RequestsPerSecond*60 + 0.5)
	all := traffic(served, limited, failed, *r.PrefixHitRate, r.TTFT)
	*r.RequestsPerSecond = float64(served+limited+failed) / 60
	r.Queued = queued + deferred
	r.Outcomes = telemetry.Outcomes{Served: 500 * served, Limited: 500 * limited, Failed: 500 * failed, Retries: 500 * all.Outcomes.Retries}
	firstTokens := 500 * served * 2 / 3
	r.Models = []telemetry.ModelSnapshot{{
		Model: llama, Queued: queued, Deferred: deferred, FirstTokens: firstTokens, SLOMisses: int64(missShare * float64(firstTokens)), Traffic: &all,
	}}
	left := all.Outcomes
	for i, k := range keys {
		share := telemetry.Outcomes{Served: int64(k.share * float64(served)), Limited: int64(k.share * float64(limited)), Failed: int64(k.share * float64(failed))}
		if i == len(keys)-1 {
			share = left
		}
		left.Served, left.Limited, left.Failed = left.Served-share.Served, left.Limited-share.Limited, left.Failed-share.Failed
		r.Keys = append(r.Keys, telemetry.KeyTraffic{Key: k.key, Tenant: k.tenant, Traffic: traffic(share.Served, share.Limited, share.Failed, *r.PrefixHitRate, r.TTFT)})
	}
}

// traffic is a minute of requests, with the hit rate and the time to first token of their region.
func traffic(served, limited, failed int64, hit float64, ttft *telemetry.Percentiles) telemetry.Traffic {
	return telemetry.Traffic{
		Seconds: 60, Outcomes: telemetry.Outcomes{Served: served, Limited: limited, Failed: failed, Retries: failed / 2},
		Usage: telemetry.Usage{
			Requests: served, PromptTokens: promptTokens * served, CachedTokens: int64(hit * float64(promptTokens*served)), OutputTokens: outputTokens * served,
			PricedRequests: served, Cost: service.NanoUSD(50_000 * served),
		},
		TTFT: ttft, E2E: &telemetry.Percentiles{P50: ttft.P50 + 2500, P90: ttft.P90 + 3100, P99: ttft.P99 + 4200},
	}
}

// normal is a typical service in two clouds, with a region that has no machines: one replica drains, one starts, one waits for
// capacity, one does not respond, and one balancer is missing.
func normal() *telemetry.Snapshot {
	draining := replica("us-3", "L4", 0.21)
	draining.State, draining.Reason = service.StateDraining, "rolling update to image v0.11.2"
	lost := troubled("ap-2", service.StateNotReady, "GET http://10.2.0.12:8000/v1/models: connection refused")
	lost.AgeMillis = ptr(int64(16200))
	us := region("aws/us-east-1", replica("us-0", "L4", 0.75), troubled("us-10", service.StateStarting, "loading the model"), replica("us-1", "L4", 0.86), draining)
	us.Replicas[0].Version, us.Replicas[0].ReadySince = "0.11.0", ptr(noon.Add(-3*time.Hour))
	us.Replicas[0].GPUs = []telemetry.GPUFigures{{Utilisation: ptr(0.84), MemoryUsed: ptr(int64(20 << 30)), Memory: ptr(int64(24 << 30)), Temperature: ptr(71.0)}}
	us.Replicas[2].Version, us.Replicas[2].ReadySince = "0.11.0", ptr(noon.Add(-26*time.Minute))
	us.Replicas[2].GPUs = []telemetry.GPUFigures{{Utilisation: ptr(0.97), MemoryUsed: ptr(int64(22 << 30)), Memory: ptr(int64(24 << 30)), Temperature: ptr(87.0)}}
	us.Balancers[0].RTTMillis, us.Balancers[0].AgeMillis = nil, 0
	eu := region("gcp/europe-west4", replica("eu-0", "L4", 0.96), replica("eu-1", "L4", 0.82))
	ap := region("aws/ap-northeast-1", replica("ap-0", "L4", 0.32), troubled("ap-1", service.StateProvisioning, "waiting for spot capacity of g6.xlarge in ap-northeast-1c"), lost)
	ap.Balancers = append(ap.Balancers, telemetry.BalancerSnapshot{
		ID: "lb-ap-northeast-1-1", State: "UNREACHABLE", Reason: "no heartbeat for 4.1s", AgeMillis: 4100,
	})
	forward(&us, &eu, 2.8, 5820)
	forward(&us, &ap, 0.6, 1240)
	forward(&ap, &us, 0.4, 850)
	serve(&us, 1, 3, 3, 9, 0.04, tenantKey{"acme", "mobile", 0.2}, tenantKey{"acme", "web", 0.8})
	serve(&eu, 8, 0, 6, 12, 0.09, tenantKey{"shop", "checkout", 1})
	serve(&ap, 1, 0, 0, 12, 0.12, tenantKey{"", "ana@example.com", 1})
	s := &telemetry.Snapshot{At: noon, Service: "chat", Regions: []telemetry.RegionSnapshot{us, eu, ap, {Name: "static/paris"}}, Strategy: "lt-ua"}
	for i := range s.Regions {
		addresses(&s.Regions[i], i)
	}
	addPlan(s)
	s.Events = []telemetry.Event{
		{At: noon.Add(-85 * time.Minute), ID: "1", Actor: telemetry.ActorAutoscaler, Kind: telemetry.EventTermination, Model: llama, Region: us.Name, Object: "us-2", Message: "removed us-2", Reason: "KV memory 21 % used, below 30 %, 2 replicas planned; replicas before: 3"},
		{At: noon.Add(-30 * time.Minute), ID: "3", Actor: telemetry.ActorAutoscaler, Kind: telemetry.EventLaunch, Model: llama, Region: us.Name, Object: "us-1", Message: "launched us-1", Reason: "KV memory 82 % used, above 70 %; replicas before: 2"},
		{At: noon.Add(-4 * time.Minute), ID: "2", Actor: telemetry.ActorAutoscaler, Kind: telemetry.EventFailure, Model: llama, Region: ap.Name, Object: llama, Message: "scaling failed", Reason: "no spot capacity of g6.xlarge in ap-northeast-1a, -1c"},
		{At: noon.Add(-3 * time.Minute), ID: "4", Actor: telemetry.ActorAutoscaler, Kind: telemetry.EventLaunch, Model: llama, Region: us.Name, Object: "us-10", Message: "launched us-10", Reason: "KV memory 80 % used, above 70 %; replicas before: 2"},
	}
	return s
}

// addresses gives the machines of a region addresses in its network.
func addresses(r *telemetry.RegionSnapshot, network int) {
	for i := range r.Balancers {
		r.Balancers[i].Endpoint = fmt.Sprintf("http://10.%d.0.%d:8000", network, 4+i)
	}
	for i := range r.Replicas {
		if rep := &r.Replicas[i]; rep.State != service.StateProvisioning {
			n, _ := strconv.Atoi(rep.ID[strings.LastIndex(rep.ID, "-")+1:])
			rep.URL = fmt.Sprintf("http://10.%d.0.%d:8000", network, 10+n)
		}
	}
}

// addPlan adds the forecasts, prices and plan of the sample: one replica more where the ready ones cannot serve the peak, and one
// less where there are more than the minimum.
func addPlan(s *telemetry.Snapshot) {
	const us, eu, ap = service.Region("aws/us-east-1"), service.Region("gcp/europe-west4"), service.Region("aws/ap-northeast-1")
	forecast := func(r service.Region, by string, mean, lo, hi []float64, peak telemetry.Peak) telemetry.LoadForecast {
		return telemetry.LoadForecast{Model: llama, Region: r, Forecaster: by, At: noon, StepSeconds: 300, MeanTPS: mean, Lo90TPS: lo, Hi90TPS: hi, Peak: peak}
	}
	s.Forecast = []telemetry.LoadForecast{
		forecast(us, "auto", wave(12, 3000, 900), wave(12, 2400, 800), wave(12, 3700, 1000), telemetry.Peak{Mean: 4300, P95: 5100}),
		forecast(eu, "arima", wave(12, 950, 100), wave(12, 800, 100), wave(12, 1100, 100), telemetry.Peak{Mean: 1100, P95: 1250}),
		forecast(ap, "auto", wave(12, 700, 150), wave(12, 500, 100), wave(12, 850, 150), telemetry.Peak{Mean: 950, P95: 1100}),
	}
	s.Forecast[1].Deviation = "2.1x the forecast, for 12m (burst)"
	target := func(r service.Region, n int, peak float64) telemetry.PlannedCapacity {
		return telemetry.PlannedCapacity{Model: llama, Region: r, Count: n, ReplicaTPS: sampleCapacity, PeakTPS: peak}
	}
	s.Targets = []telemetry.PlannedCapacity{target(us, 4, 5100), target(eu, 2, 1250), target(ap, 2, 1100)}
	s.Prices = []telemetry.Price{{Region: us, GPU: "L4", USDPerHour: 0.8048}, {Region: eu, GPU: "L4", USDPerHour: 0.7711}, {Region: ap, GPU: "L4", USDPerHour: 1.1672}}
	s.Plan = &telemetry.PlanSummary{
		At: noon, Status: "optimal", CostPerHour: telemetry.PlanCost{Current: ptr(7.4582), Planned: ptr(7.0958)},
		Changes: []telemetry.PlanChange{
			{Model: llama, Region: us, GPU: "L4", Capacity: service.CapacityOnDemand, Current: 3, Delta: 1, Planned: 4, Reason: "peak of 5.1k uncached prompt tokens/s at 12:15; 3 x L4 serve up to 3.9k: add 1 for a capacity of 5.2k, $0.80/h more; determined by local demand"},
			{Model: llama, Region: ap, GPU: "L4", Capacity: service.CapacityOnDemand, Current: 3, Delta: -1, Planned: 2, Reason: "peak of 1.1k uncached prompt tokens/s at 12:15; 3 x L4 serve up to 3.9k: remove 1, capacity 2.6k remains, $1.17/h less; determined by the minimum of 2"},
		},
		Assumed: []string{"Llama-3.1-8B-Instruct: prefix hit rate of 64 %, as in the last day"},
	}
}

// ownMachines is a service of local regions at a low load: one replica is drained, and one is donated.
func ownMachines() *telemetry.Snapshot {
	drained := replica("us-3", "L4", 0)
	drained.State, drained.Reason = service.StateDraining, "drained; undo with 'skyserve replica drain --undo us-3'"
	donated := telemetry.ReplicaSnapshot{ID: "us-10", Model: llama, GPU: "L4", State: service.StateDonated, Donated: true}
	us := region("local/us", replica("us-0", "L4", 0.31), replica("us-1", "L4", 0.22), drained, donated)
	us.Balancers[0].RTTMillis, us.Balancers[0].AgeMillis = nil, 0
	eu := region("local/eu", replica("eu-0", "L4", 0.28), replica("eu-1", "L4", 0.25))
	forward(&eu, &us, 0.2, 430)
	serve(&us, 0, 0, 0, 0, 0.01, tenantKey{"acme", "web", 1})
	serve(&eu, 0, 0, 0, 0, 0.01, tenantKey{"shop", "checkout", 1})
	return &telemetry.Snapshot{
		At: noon, Service: "chat", Regions: []telemetry.RegionSnapshot{us, eu}, Strategy: "reactive",
		Donations: []telemetry.Donation{{Replica: "us-10", Model: llama, GPU: "L4", Region: us.Name, Since: noon.Add(-90 * time.Minute), Until: ptr(noon.Add(30 * time.Minute)), RevenuePerHour: 0.3}},
		Events: []telemetry.Event{
			{At: noon.Add(-90 * time.Minute), ID: "1", Actor: telemetry.ActorAutoscaler, Kind: telemetry.EventDonate, Model: llama, Region: us.Name, Object: "us-10", Message: "donated us-10", Reason: "KV memory 21 % used, below 30 %; replicas before: 4"},
			{At: noon.Add(-10 * time.Minute), ID: "2", Actor: telemetry.OperatorActor("alice"), Kind: telemetry.EventDrain, Model: llama, Region: us.Name, Object: "us-3", Message: "drained us-3", Reason: "skyserve replica drain"},
		},
	}
}

// withBatches is normal with batches: one in time, one late, one that waits for a quota, one being validated.
func withBatches() *telemetry.Snapshot {
	s := normal()
	s.Batches = []telemetry.BatchState{
		{ID: "batch_019ab3f2c01k3m9qzp4xt7w", Tenant: "acme", Status: "in_progress", Model: llama, Total: 20_000, Completed: 15_500, CreatedAt: noon.Add(-3 * time.Hour), Deadline: noon.Add(time.Hour), RequestsPerSecond: ptr(2.5), FinishAt: ptr(noon.Add(30 * time.Minute)), CostUSD: ptr(1.0)},
		{ID: "batch_019ab3f2c02aa5tq7rn1d0e", Tenant: "acme", Status: "in_progress", Total: 50_000, Completed: 1200, Failed: 31, CreatedAt: noon.Add(-time.Hour), Deadline: noon.Add(2 * time.Hour), RequestsPerSecond: ptr(2.5), FinishAt: ptr(noon.Add(5*time.Hour + 25*time.Minute))},
		{ID: "batch_019ab3f2c03uu8fh2kc6y9b", Tenant: "lab", Status: "in_progress", Model: llama, Total: 300, CreatedAt: noon.Add(-time.Minute), Deadline: noon.Add(24 * time.Hour), RequestsPerSecond: ptr(0.0), WaitsFor: "quota of key bob (100 requests per day)", WaitsUntil: ptr(noon.Add(12 * time.Hour))},
		{ID: "batch_019ab3f2c04gs1wv5jx8p3z", Status: "validating", CreatedAt: noon, Deadline: noon.Add(24 * time.Hour)},
	}
	return s
}

// loadHistory is the load of the last three hours of normal, by region: it ends with the load of the last minute, and europe-west4's
// rose to 2.1 times its forecast twelve minutes ago.
func loadHistory() (all []LoadSeries) {
	for _, r := range normal().Regions {
		for _, m := range r.Models {
			l := LoadSeries{Model: m.Model, Region: r.Name, Start: noon.Add(-3 * time.Hour), Step: time.Minute, TPS: make([]float64, 180)}
			for i := range l.TPS {
				back := float64(len(l.TPS) - 1 - i) // minutes
				l.TPS[i] = *uncachedLoad(m.Traffic) * (0.8 + 0.2*math.Cos(back/18))
				if r.Name.Cloud() == service.CloudGCP && back >= 12 {
					l.TPS[i] /= 2.1
				}
			}
			l.TPS[20] = math.NaN()
			all = append(all, l)
		}
	}
	return all
}

// watch sends a dashboard two minutes of snapshots of a service whose traffic leads to the snapshot.
func watch(d *desk, s *telemetry.Snapshot) {
	const step = 5 * time.Second
	for i := range 24 {
		steps := int64(23 - i) // until the snapshot
		copied := *s
		copied.Regions = slices.Clone(s.Regions)
		copied.At = s.At.Add(-time.Duration(steps) * step)
		for k := range copied.Regions {
			r := &copied.Regions[k]
			r.ForwardedTo, r.Models = slices.Clone(r.ForwardedTo), slices.Clone(r.Models)
			for f := range r.ForwardedTo {
				r.ForwardedTo[f].Requests -= steps * (r.ForwardedTo[f].Requests / 400)
			}
			for m := range r.Models {
				before := r.Models[m].Traffic.Outcomes // counted for a minute
				r.Outcomes.Served -= steps * before.Served / 12
				r.Outcomes.Limited -= steps * before.Limited / 12
				r.Outcomes.Failed -= steps * before.Failed / 12
				first := r.Models[m].FirstTokens / (500 * 12)
				r.Models[m].FirstTokens -= steps * first
				r.Models[m].SLOMisses -= int64(float64(steps*first) * float64(s.Regions[k].Models[m].SLOMisses) / float64(s.Regions[k].Models[m].FirstTokens))
			}
			if v := r.OutputTokensPerSecond; v != nil {
				r.OutputTokensPerSecond = ptr(*v * (0.88 + 0.12*math.Cos(float64(steps)/float64(4+k))))
			}
		}
		d.fetch.snapshot = &copied
		d.poll(step)
	}
}
