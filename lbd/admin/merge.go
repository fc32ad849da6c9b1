package admin

import (
	"cmp"
	"maps"
	"slices"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// merge joins the parts of all balancers into one entry per region, sorted by name. A replica that a live balancer has is
// removed from the parts of lost balancers, and from those of balancers with an older assignment of it.
func merge(parts []telemetry.RegionSnapshot) []telemetry.RegionSnapshot {
	newest := map[string]uint64{} // the epoch of each replica at live balancers
	for _, p := range parts {
		if isLive(p) {
			for _, r := range p.Replicas {
				newest[r.ID] = max(newest[r.ID], r.Epoch)
			}
		}
	}
	byName := map[service.Region][]telemetry.RegionSnapshot{}
	names := []service.Region{}
	for _, p := range parts {
		p.Replicas = slices.DeleteFunc(slices.Clone(p.Replicas), func(r telemetry.ReplicaSnapshot) bool {
			epoch, attached := newest[r.ID]
			return attached && (!isLive(p) || r.Epoch < epoch)
		})
		if byName[p.Name] == nil {
			names = append(names, p.Name)
		}
		byName[p.Name] = append(byName[p.Name], p)
	}
	slices.Sort(names)
	regions := make([]telemetry.RegionSnapshot, 0, len(names))
	for _, name := range names {
		regions = append(regions, mergeRegion(name, byName[name]))
	}
	return regions
}

func isLive(p telemetry.RegionSnapshot) bool {
	return p.Balancers[0].Responds()
}

// mergeRegion sums the parts of one region. Unknown rates are ignored in a sum.
func mergeRegion(name service.Region, parts []telemetry.RegionSnapshot) telemetry.RegionSnapshot {
	s := telemetry.RegionSnapshot{Name: name, Balancers: []telemetry.BalancerSnapshot{}, Replicas: []telemetry.ReplicaSnapshot{}}
	flows := map[service.Region]int64{}
	for _, p := range parts {
		for _, f := range p.ForwardedTo {
			flows[f.Region] += f.Requests
		}
		s.Balancers = append(s.Balancers, p.Balancers...)
		s.Replicas = append(s.Replicas, p.Replicas...)
		s.Queued += p.Queued
		s.Outcomes = s.Outcomes.Add(p.Outcomes)
		if p.QueueOldestMillis != nil && (s.QueueOldestMillis == nil || *p.QueueOldestMillis > *s.QueueOldestMillis) {
			s.QueueOldestMillis = p.QueueOldestMillis
		}
		s.ForwardedIn += p.ForwardedIn
		s.ForwardedOut += p.ForwardedOut
		s.RequestsPerSecond = sumKnown(s.RequestsPerSecond, p.RequestsPerSecond)
		s.OutputTokensPerSecond = sumKnown(s.OutputTokensPerSecond, p.OutputTokensPerSecond)
	}
	s.Models, s.Keys, s.ForwardedTo = mergeModels(parts), mergeKeys(parts), sortedFlows(flows)
	slices.SortFunc(s.Balancers, func(a, b telemetry.BalancerSnapshot) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortStableFunc(s.Replicas, func(a, b telemetry.ReplicaSnapshot) int { return cmp.Compare(a.ID, b.ID) })
	s.PrefixHitRate = weighted(parts, func(p telemetry.RegionSnapshot) *float64 { return p.PrefixHitRate })
	s.TTFT = mergeTTFT(parts)
	return s
}

// mergeModels sums the counts per model of live balancers. It returns nil if one of them does not
// report them, or none is live, because a partial count would be wrong.
func mergeModels(parts []telemetry.RegionSnapshot) []telemetry.ModelSnapshot {
	sums := map[string]telemetry.ModelSnapshot{}
	known := false
	for _, p := range parts {
		if !isLive(p) {
			continue
		}
		if p.Models == nil {
			return nil
		}
		known = true
		for _, m := range p.Models {
			sum, seen := sums[m.Model]
			if seen {
				m.IdleMillis, m.Cold = shortestIdle(sum.IdleMillis, m.IdleMillis), sum.Cold && m.Cold
			}
			sums[m.Model] = telemetry.ModelSnapshot{
				Model: m.Model, Queued: sum.Queued + m.Queued, Deferred: sum.Deferred + m.Deferred,
				FirstTokens: sum.FirstTokens + m.FirstTokens, SLOMisses: sum.SLOMisses + m.SLOMisses, IdleMillis: m.IdleMillis, Cold: m.Cold,
				Traffic: addTraffic(sum.Traffic, m.Traffic),
			}
		}
	}
	if !known {
		return nil
	}
	models := make([]telemetry.ModelSnapshot, 0, len(sums))
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		models = append(models, sums[name])
	}
	return models
}

// addTraffic adds the traffic of two balancers; unknown traffic is ignored.
func addTraffic(a, b *telemetry.Traffic) *telemetry.Traffic {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	sum := a.Plus(*b)
	return &sum
}

// mergeKeys sums the traffic per key of live balancers; nil as in mergeModels.
func mergeKeys(parts []telemetry.RegionSnapshot) []telemetry.KeyTraffic {
	type name struct{ tenant, key string }
	sums := map[name]telemetry.Traffic{}
	known := false
	for _, p := range parts {
		if !isLive(p) {
			continue
		}
		if p.Keys == nil {
			return nil
		}
		known = true
		for _, k := range p.Keys {
			sums[name{k.Tenant, k.Key}] = sums[name{k.Tenant, k.Key}].Plus(k.Traffic)
		}
	}
	if !known {
		return nil
	}
	keys := make([]telemetry.KeyTraffic, 0, len(sums))
	for n, t := range sums {
		keys = append(keys, telemetry.KeyTraffic{Key: n.key, Tenant: n.tenant, Traffic: t})
	}
	slices.SortFunc(keys, telemetry.KeyTraffic.Compare)
	return keys
}

// shortestIdle returns the shorter of two times; nil if one is not reported.
func shortestIdle(a, b *int64) *int64 {
	if a == nil || b == nil {
		return nil
	}
	shortest := min(*a, *b)
	return &shortest
}

func sumKnown(a, b *float64) *float64 {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	sum := *a + *b
	return &sum
}

// weighted returns the mean of a figure over the parts that have it, weighted by requests per
// second.
func weighted(parts []telemetry.RegionSnapshot, figure func(telemetry.RegionSnapshot) *float64) *float64 {
	var sum, weights float64
	for _, p := range parts {
		if f := figure(p); f != nil {
			w := weight(p)
			sum, weights = sum+w**f, weights+w
		}
	}
	if weights == 0 {
		return nil
	}
	mean := sum / weights
	return &mean
}

// weight returns nearly zero for a part without recent requests.
func weight(p telemetry.RegionSnapshot) float64 {
	const minWeight = 1e-3
	if p.RequestsPerSecond == nil {
		return minWeight
	}
	return max(*p.RequestsPerSecond, minWeight)
}

// mergeTTFT joins the balancers' percentiles, weighted by requests per second.
func mergeTTFT(parts []telemetry.RegionSnapshot) *telemetry.Percentiles {
	var joined *telemetry.Percentiles
	sum := 0.0
	for _, p := range parts {
		if p.TTFT != nil {
			joined = joined.Mix(sum, p.TTFT, weight(p))
			sum += weight(p)
		}
	}
	return joined
}
