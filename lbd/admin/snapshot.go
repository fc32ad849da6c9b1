package admin

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
	"skyserve/lbd/peer"
	"skyserve/lbd/policy"
	"skyserve/lbd/proxy"
)

// reasonDraining is why a balancer accepts no new requests.
const reasonDraining = "shutting down, completing in-flight requests"

// lostAfter is the time without a heartbeat after which a peer counts as unreachable, as in the
// core.
const lostAfter = time.Second

// Snapshot returns the state of the service at this balancer: the current state of its own
// replicas, and the rest as last reported by the other balancers.
func (a *API) Snapshot() telemetry.Snapshot { return a.snapshot(false) }

// snapshot is Snapshot. If own, it leaves out the replicas of reachable peers, which report them themselves.
func (a *API) snapshot(own bool) telemetry.Snapshot {
	parts := []telemetry.RegionSnapshot{a.Region()}
	for _, p := range a.opts.Peers() {
		part := peerRegion(p)
		if own && len(part.Balancers) == 1 && part.Balancers[0].Responds() {
			part.Replicas = []telemetry.ReplicaSnapshot{}
		}
		parts = append(parts, part)
	}
	s := telemetry.Snapshot{
		At: a.opts.Now().UTC(), Service: a.opts.Self.Service, Regions: merge(parts),
		Forecast: []telemetry.LoadForecast{}, Donations: []telemetry.Donation{}, Targets: []telemetry.PlannedCapacity{}, Prices: []telemetry.Price{}, Events: a.recentEvents(),
	}
	s.Alerts = a.alerts(s.Regions)
	s.Batches = []telemetry.BatchState{}
	if a.opts.Batches != nil {
		s.Batches = append(s.Batches, a.opts.Batches()...)
	}
	if a.opts.Control != nil {
		s.Controller, s.Store = a.opts.Control()
	}
	if a.opts.BalancerLaunches != nil {
		s.BalancerLaunches = a.opts.BalancerLaunches()
	}
	if a.opts.Scaling != nil {
		s.AddScaling(a.opts.Scaling())
	}
	if a.opts.Review == nil {
		return s
	}
	r := a.opts.Review()
	if r != nil {
		s.Forecast, s.Plan, s.Prices = append(s.Forecast, r.Forecast...), r.Plan, append(s.Prices, r.Prices...)
	}
	if r.Current(s.At) {
		s.Targets = append(s.Targets, r.Targets...)
	}
	return s
}

// alerts returns the alerts of all balancers and of the service's controller.
func (a *API) alerts(regions []telemetry.RegionSnapshot) []telemetry.Alert {
	var lists [][]telemetry.Alert
	for _, r := range regions {
		for i := range r.Balancers {
			lists = append(lists, r.Balancers[i].Alerts)
			r.Balancers[i].Alerts = nil // each alert is listed only once
		}
	}
	if a.opts.ServiceAlerts != nil {
		lists = append(lists, a.opts.ServiceAlerts())
	}
	return telemetry.MergeAlerts(lists...)
}

// Region returns this balancer's part of its region's snapshot, which it also sends to peers.
func (a *API) Region() telemetry.RegionSnapshot {
	view, stats, replicas := a.opts.Traffic.View(), a.opts.Traffic.TrafficStats(), a.opts.Workers.List()
	s := telemetry.RegionSnapshot{
		Name:                  a.opts.Self.Region,
		Balancers:             []telemetry.BalancerSnapshot{a.self(replicas, view.Models)},
		Replicas:              []telemetry.ReplicaSnapshot{},
		Queued:                view.Counts.Queued,
		Models:                []telemetry.ModelSnapshot{},
		Keys:                  stats.Keys,
		RequestsPerSecond:     stats.RequestsPerSecond,
		OutputTokensPerSecond: stats.OutputTokensPerSecond,
		PrefixHitRate:         stats.PrefixHitRate,
		TTFT:                  stats.TTFT,
		Outcomes:              stats.Outcomes,
		ForwardedIn:           view.Counts.ForwardedIn,
		ForwardedOut:          view.Counts.ForwardedOut,
		ForwardedTo:           a.forwardFlows(view.Peers),
	}
	if view.OldestActiveWait > 0 {
		s.QueueOldestMillis = policy.Known(view.OldestActiveWait.Milliseconds()).Ptr()
	}
	for _, m := range view.Models {
		s.Models = append(s.Models, modelSnapshot(m, modelTraffic(stats, m.Model)))
	}
	for _, r := range replicas {
		s.Replicas = append(s.Replicas, replicaSnapshot(r, stats.ByReplica[r.ID]))
	}
	return s
}

// modelTraffic returns the traffic of a model; nil if the traffic of models is unknown.
func modelTraffic(stats proxy.TrafficStats, model string) *telemetry.Traffic {
	if stats.Models == nil {
		return nil
	}
	t := stats.Models[model]
	t.Seconds = stats.TrafficSeconds
	return &t
}

// modelSnapshot converts a model's counts for the snapshot.
func modelSnapshot(m core.ModelView, traffic *telemetry.Traffic) telemetry.ModelSnapshot {
	return telemetry.ModelSnapshot{
		Model: m.Model, Queued: m.Queued, Deferred: m.Deferred, FirstTokens: m.FirstTokens, SLOMisses: m.Late,
		IdleMillis: policy.Known(m.Idle.Milliseconds()).Ptr(), Cold: m.Cold, Traffic: traffic,
	}
}

// forwardFlows sums the requests forwarded to peers by region, sorted by region.
func (a *API) forwardFlows(peers []core.PeerView) []telemetry.Flow {
	regions := map[string]service.Region{}
	for _, p := range a.opts.Peers() {
		regions[p.Peer.ID] = p.Peer.Region
	}
	sums := map[service.Region]int64{}
	for _, p := range peers {
		if region := regions[p.ID]; region != "" && p.Forwarded > 0 {
			sums[region] += p.Forwarded
		}
	}
	return sortedFlows(sums)
}

// sortedFlows converts forwards by region to a list.
func sortedFlows(sums map[service.Region]int64) []telemetry.Flow {
	flows := make([]telemetry.Flow, 0, len(sums))
	for _, region := range slices.Sorted(maps.Keys(sums)) {
		flows = append(flows, telemetry.Flow{Region: region, Requests: sums[region]})
	}
	return flows
}

// self describes this balancer. It is ready if it has a required certificate and one of its
// replicas is ready. A balancer without replicas, or whose replicas all drain, is ready if it forwards to a
// peer with a ready replica, else it is not ready. Models that scale to zero need no replica.
func (a *API) self(replicas []Replica, models []core.ModelView) telemetry.BalancerSnapshot {
	self := a.opts.Self
	scheme, adminScheme := "http", "http"
	if self.Identity != nil {
		adminScheme = "https"
	}
	if self.Balancer.TLS != nil {
		scheme = "https"
	}
	b := telemetry.BalancerSnapshot{
		ID: self.ID, Endpoint: baseURL(scheme, self.Listen), Admin: baseURL(adminScheme, self.Admin),
		Version: a.opts.Version, State: service.StateReady,
	}
	if a.opts.Certificate != nil {
		b.Certificate = a.opts.Certificate()
	}
	if a.opts.Alerts != nil {
		b.Alerts = a.opts.Alerts()
	}
	if c := b.Certificate; c != nil && c.Problem != "" {
		b.Reason = fmt.Sprintf("certificate cannot be renewed, the current one expires %s: %s", c.ExpiresAt.Format(time.DateOnly), c.Problem)
	}
	ready := func(r Replica) bool { return r.State == service.StateReady }
	serves := func(r Replica) bool { return r.State != service.StateDraining } // now or once it is ready
	switch {
	case a.opts.Draining != nil && a.opts.Draining():
		b.State, b.Reason = service.StateDraining, reasonDraining
	case b.Certificate != nil && b.Certificate.Waiting != "":
		b.State, b.Reason = service.StateStarting, "waiting for certificate: "+b.Certificate.Waiting
	case !slices.ContainsFunc(replicas, serves) && (self.Balancer.Forward == nil || *self.Balancer.Forward) && slices.ContainsFunc(a.opts.Peers(), hasReadyReplica):
		b.Reason = cmp.Or(b.Reason, "no ready replica, forwarding all requests")
	case !slices.ContainsFunc(replicas, ready) && startOnDemand(replicas, models):
		b.Reason = cmp.Or(b.Reason, "no ready replica, models start at their first request")
	case len(replicas) == 0:
		b.State, b.Reason = service.StateStarting, service.ReasonNoReplicas
	case !slices.ContainsFunc(replicas, serves):
		b.State, b.Reason = service.StateNotReady, service.ReasonAllDrained
	case !slices.ContainsFunc(replicas, ready):
		b.State, b.Reason = service.StateStarting, fmt.Sprintf("none of %s is ready", printable.Count(len(replicas), "replica"))
	}
	return b
}

// startOnDemand reports whether a model is cold, and a balancer has only replicas of cold models.
func startOnDemand(replicas []Replica, models []core.ModelView) bool {
	cold := map[string]bool{}
	for _, m := range models {
		if m.Cold {
			cold[m.Model] = true
		}
	}
	return len(cold) > 0 && !slices.ContainsFunc(replicas, func(r Replica) bool { return !cold[r.Model] })
}

// hasReadyReplica reports whether a live peer has a ready replica.
func hasReadyReplica(p peer.Health) bool {
	return p.Reported && p.Silence < lostAfter && !p.Draining && p.Region != nil &&
		slices.ContainsFunc(p.Region.Replicas, func(r telemetry.ReplicaSnapshot) bool { return r.State == service.StateReady })
}

// baseURL returns the URL of a listener for clients on this machine.
func baseURL(scheme, listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// replicaSnapshot converts a replica for the snapshot.
func replicaSnapshot(r Replica, stats proxy.ReplicaTrafficStats) telemetry.ReplicaSnapshot {
	s := telemetry.ReplicaSnapshot{
		ID: r.ID, URL: r.URL, Model: r.Model, GPU: r.GPU, Region: r.Region, Capacity: r.Capacity, State: r.State, Reason: r.Reason, Origin: r.Origin,
		PrefixHitRate: cmp.Or(stats.PrefixHitRate, r.HitRate.Ptr()), OutputTokensPerSecond: stats.OutputTokensPerSecond,
		Continuation: string(stats.Continuation), Sent: stats.Sent, Failed: stats.Failed, Attachment: stats.Attachment, Epoch: r.Epoch,
	}
	if r.USDPerHour > 0 {
		s.USDPerHour = &r.USDPerHour
	}
	if r.View != nil {
		copyFigures(&s, r.View)
	}
	return s
}

// copyFigures copies the core's figures.
func copyFigures(s *telemetry.ReplicaSnapshot, v *core.ReplicaView) {
	s.Outstanding = v.Outstanding
	if v.Pace > 0 {
		s.Pace = &v.Pace
	}
	if !v.Reported {
		return
	}
	s.Pending, s.Running, s.KV, s.OutstandingLimit = v.Pending.Ptr(), v.Running.Ptr(), v.KV.Ptr(), v.OutstandingLimit.Ptr()
	s.AgeMillis = policy.Known(v.Age.Milliseconds()).Ptr()
}

// peerRegion returns a peer's part of its region's snapshot.
func peerRegion(p peer.Health) telemetry.RegionSnapshot {
	lost := !p.Reported || p.Silence >= lostAfter
	s := telemetry.RegionSnapshot{}
	if p.Region != nil {
		s = *p.Region
	}
	s.Name = cmp.Or(p.Peer.Region, s.Name)
	b := telemetry.BalancerSnapshot{
		ID: p.Peer.ID, Endpoint: p.Peer.URL, Admin: p.Peer.Admin, State: service.StateReady,
		AgeMillis: p.RegionAge.Milliseconds(),
	}
	if p.Reported {
		b.RTTMillis = policy.Known(float64(p.RTT) / float64(time.Millisecond)).Ptr()
	}
	switch {
	case lost:
		b.State, b.Reason = service.StateUnreachable, lostReason(p)
	case p.Draining:
		b.State, b.Reason = service.StateDraining, reasonDraining
	case p.Region == nil:
		b.State, b.Reason = service.StateStarting, telemetry.ReasonNoReport
	case len(p.Region.Balancers) == 1:
		own := p.Region.Balancers[0]
		b.State, b.Reason, b.Certificate, b.Alerts, b.Version = own.State, own.Reason, own.Certificate, own.Alerts, own.Version
	}
	s.Balancers = []telemetry.BalancerSnapshot{b}
	s.Replicas = peerReplicas(p, lost)
	if lost {
		s.Queued, s.RequestsPerSecond, s.OutputTokensPerSecond, s.PrefixHitRate, s.TTFT, s.QueueOldestMillis, s.Keys = 0, nil, nil, nil, nil, nil, nil
	}
	return s
}

func lostReason(p peer.Health) string {
	reason := fmt.Sprintf("no heartbeat for %s", p.Silence.Round(100*time.Millisecond))
	if p.Reason != "" {
		reason += ": " + p.Reason
	}
	return reason
}

// peerReplicas returns a peer's replicas as last reported. The replicas of a lost peer have an
// unknown state and cannot be reached through it.
func peerReplicas(p peer.Health, lost bool) []telemetry.ReplicaSnapshot {
	if p.Region == nil {
		return nil
	}
	replicas := slices.Clone(p.Region.Replicas)
	for i := range replicas {
		r := &replicas[i]
		if r.AgeMillis != nil {
			r.AgeMillis = policy.Known(*r.AgeMillis + p.RegionAge.Milliseconds()).Ptr()
		}
		if lost {
			r.State, r.Reason = service.StateNotReady, "its balancer "+p.Peer.ID+" is unreachable"
			r.Pending, r.Running, r.KV, r.Outstanding = nil, nil, nil, 0
			r.PrefixHitRate, r.OutputTokensPerSecond = nil, nil
		}
	}
	return replicas
}
