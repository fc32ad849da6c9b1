package proxy

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// why is a failed try's kind: a label of few values.
type why int

const (
	whyUnreachable why = iota // no connection came about, or the address is gone
	whySilent                 // it took too long
	whyBroken                 // the connection broke
	whyStatus                 // it answered a status that tells of itself
	whyAnswer                 // it told of a fault of its own in the middle of a stream
	whyUnable                 // it cannot go on with another's answer
	whyBounced                // a peer gave the request back
	whys
)

// String is the label.
func (w why) String() string {
	return [whys]string{"unreachable", "silent", "broken", "status", "answer", "unable", "bounced"}[w]
}

// targetCount is what was sent to a replica or a peer since it was added, and how
// it failed. It outlives updates of the target's address.
type targetCount struct {
	sent   atomic.Int64
	failed [whys]atomic.Int64
	tokenEvents
}

// counted is the count of the target that an action sends to; nil when its
// address is gone.
func (v *action) counted() *targetCount {
	switch {
	case v.rank.replica != nil:
		return &v.rank.count.targetCount
	case v.peer != nil:
		return v.peer.count
	}
	return nil
}

// failed counts a try that failed.
func (v *action) failed(w why) {
	if c := v.counted(); c != nil {
		c.failed[w].Add(1)
	}
}

// gauges reads the state of core and of the targets when a scrape asks for it.
type gauges struct{ r *Runtime }

var (
	descQueue    = desc("skyserve_queue_depth", "Requests held by the balancer.")
	descOldest   = desc("skyserve_queue_oldest_seconds", "Time that the oldest queued request has waited.")
	descInFlight = desc("skyserve_in_flight", "Requests that have arrived and not ended.")
	descDraining = desc("skyserve_draining", "1 when the balancer takes no new requests.")
	descEnded    = desc("skyserve_ended_total", "Requests by how they left the balancer, forwarded ones included.", "how")
	descRefused  = desc("skyserve_retries_refused_total", "Requests that ended because too much was being retried already.")
	descEjected  = desc("skyserve_ejections_total", "Times that a replica was left out because it failed what it was sent.")
	descStopped  = desc("skyserve_requests_stopped_total", "Requests that were stopped or refused because engines died while they served them or requests with the same fingerprint.")
	descTree     = desc("skyserve_prefix_tree_bytes", "Memory of the prefix trees.")
	descNodes    = desc("skyserve_prefix_tree_nodes", "Nodes of the prefix trees.")
	descMemory   = desc("skyserve_request_bytes", "Bytes that requests and answers take of balancer.memory.requests.")
	descNoMemory = desc("skyserve_memory_refused_total", "Requests, or parts of what is kept for another try, that there was no memory for, by bound: requests (of all) or tenant.", "bound")
	descRecord   = desc("skyserve_record_dropped_total", "Steps that the record misses.")
	descEvents   = desc("skyserve_events_dropped_total", "Decisions that slow subscribers missed.")

	descModelQueued      = desc("skyserve_model_queued", "Requests held for a model.", "model")
	descModelOutstanding = desc("skyserve_model_outstanding", "Requests at the replicas of a model.", "model")
	descModelReplicas    = desc("skyserve_model_replicas", "Replicas of a model that answer.", "model")
	descModelAvailable   = desc("skyserve_model_replicas_available", "Replicas of a model that the push rule would send another request to.", "model")
	descModelWait        = desc("skyserve_model_wait_seconds", "Time that a request for a model is expected to be held if it came now.", "model")

	descInfo        = desc("skyserve_replica_info", "1; the labels tell what the replica is.", "replica", "model", "region", "gpu", "kind")
	descReady       = desc("skyserve_replica_ready", "1 when the replica answers and is not ejected.", "replica")
	descAvailable   = desc("skyserve_replica_available", "1 when the push rule would send the replica another request.", "replica")
	descLeaving     = desc("skyserve_replica_draining", "1 when the replica finishes what it has and gets nothing new.", "replica")
	descOutstanding = desc("skyserve_replica_outstanding", "Requests sent to a replica and not ended.", "replica")
	descHeld        = desc("skyserve_replica_held", "Waiting requests that are kept for a replica.", "replica")
	descPending     = desc("skyserve_replica_pending", "Requests that wait inside the engine, as it says; missing where it does not say.", "replica")
	descRunning     = desc("skyserve_replica_running", "Requests that the engine runs, as it says; missing where it does not say.", "replica")
	descKV          = desc("skyserve_replica_kv_usage_ratio", "Used share of KV memory, 0 to 1, as the engine says; missing where it does not say.", "replica")
	descAge         = desc("skyserve_replica_report_age_seconds", "Age of the figures of a replica's last probe.", "replica")
	descPace        = desc("skyserve_replica_pace_ratio", "Time between two tokens over that of the nominal replica, as learned; missing until it is.", "replica")
	descTokens      = desc("skyserve_replica_tokens_total", "Tokens that a replica generated.", "replica")
	descSent        = desc("skyserve_replica_sent_total", "Tries sent to a replica.", "replica")
	descFailures    = desc("skyserve_replica_failures_total", "Tries that failed at a replica: unreachable, silent, broken (the connection), status (5xx, 429, 401, 403 or 404 of the model), answer (an error in the stream), unable (to go on with an answer).", "replica", "cause")
	descRepPrompt   = desc("skyserve_replica_prompt_tokens_total", "Prompt tokens of a replica's answers that told the cached ones too.", "replica")
	descRepCached   = desc("skyserve_replica_cached_tokens_total", "Prompt tokens that a replica took from its cache.", "replica")

	descPeer         = desc("skyserve_peer_outstanding", "Requests forwarded to a peer and not ended.", "peer")
	descPeerLive     = desc("skyserve_peer_live", "1 when the peer answers.", "peer")
	descPeerRTT      = desc("skyserve_peer_rtt_seconds", "Round trip to a peer, the least of late; missing before its first heartbeat.", "peer")
	descPeerAge      = desc("skyserve_peer_report_age_seconds", "Age of the figures of a peer's last heartbeat; missing before the first.", "peer")
	descPeerSent     = desc("skyserve_peer_sent_total", "Tries sent to a peer.", "peer")
	descPeerFailures = desc("skyserve_peer_failures_total", "Tries that failed at a peer, by cause as for replicas, or bounced: the peer gave the request back.", "peer", "cause")
)

var allDescs = []*prometheus.Desc{
	descQueue, descOldest, descInFlight, descDraining, descEnded, descRefused, descEjected, descStopped, descTree, descNodes, descMemory, descNoMemory, descRecord, descEvents,
	descModelQueued, descModelOutstanding, descModelReplicas, descModelAvailable, descModelWait,
	descInfo, descReady, descAvailable, descLeaving, descOutstanding, descHeld, descPending, descRunning, descKV, descAge, descPace,
	descTokens, descSent, descFailures, descRepPrompt, descRepCached,
	descPeer, descPeerLive, descPeerRTT, descPeerAge, descPeerSent, descPeerFailures,
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe sends every gauge's description.
func (g gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range allDescs {
		ch <- d
	}
}

// Collect sends every gauge's present value.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	s := scrape{ch}
	r := g.r
	r.mu.Lock()
	now := r.Elapsed()
	v, load, replicas := r.core.View(now), r.core.Load(now), r.sortedReplicas()
	peers := make(map[string]*targetCount, len(r.peers))
	for id, p := range r.peers {
		peers[id] = p.count
	}
	inFlight := len(r.inFlight)
	r.mu.Unlock()

	s.gauge(descInFlight, float64(inFlight))
	s.gauge(descDraining, oneIf(r.draining.Load()))
	full, over := r.memory.Refusals()
	s.gauge(descMemory, float64(r.memory.Used()))
	s.count(descNoMemory, full, "requests")
	s.count(descNoMemory, over, "tenant")
	s.count(descRecord, r.record.lost())
	s.count(descEvents, r.subs.dropped.Load())
	s.balancer(&v)
	for i := range load {
		s.model(&load[i])
	}
	for i := range v.Replicas {
		s.replica(&v.Replicas[i])
	}
	for _, rep := range replicas {
		s.counted(rep)
	}
	for i := range v.Peers {
		s.peer(&v.Peers[i], peers[v.Peers[i].ID])
	}
}

// scrape is one collection of the present values.
type scrape struct{ ch chan<- prometheus.Metric }

func (s scrape) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s scrape) count(d *prometheus.Desc, n int64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func (s scrape) balancer(v *core.View) {
	s.gauge(descQueue, float64(v.Counts.Queued))
	s.gauge(descOldest, v.OldestWait.Seconds())
	s.gauge(descTree, float64(v.TreeBytes))
	s.gauge(descNodes, float64(v.TreeNodes))
	s.count(descRefused, v.RetriesRefused)
	s.count(descEjected, v.Ejections)
	s.count(descStopped, v.Stopped)
	c := v.Counts
	for _, e := range []struct {
		how string
		n   int64
	}{{"finished", c.Finished}, {"rejected", c.Rejected}, {"cancelled", c.Cancelled}, {"bounced", c.Bounced}} {
		s.count(descEnded, e.n, e.how)
	}
}

func (s scrape) model(l *core.ModelLoad) {
	s.gauge(descModelQueued, float64(l.Queued), l.Model)
	s.gauge(descModelOutstanding, float64(l.Outstanding-l.Failed), l.Model)
	s.gauge(descModelReplicas, float64(l.Replicas), l.Model)
	s.gauge(descModelAvailable, float64(l.Available), l.Model)
	s.gauge(descModelWait, l.Wait.Seconds(), l.Model)
}

// replica sends what core knows of one target: a replica, or one rank of it.
func (s scrape) replica(rep *core.ReplicaView) {
	s.gauge(descReady, oneIf(rep.Ready), rep.ID)
	s.gauge(descAvailable, oneIf(rep.Available), rep.ID)
	s.gauge(descLeaving, oneIf(rep.Draining), rep.ID)
	s.gauge(descOutstanding, float64(rep.Outstanding), rep.ID)
	s.gauge(descHeld, float64(rep.Held), rep.ID)
	s.count(descTokens, rep.Tokens, rep.ID)
	known(s, descPending, rep.Pending, rep.ID)
	known(s, descRunning, rep.Running, rep.ID)
	known(s, descKV, rep.KV, rep.ID)
	if rep.Reported {
		s.gauge(descAge, rep.Age.Seconds(), rep.ID)
	}
	if rep.Pace > 0 {
		s.gauge(descPace, rep.Pace, rep.ID)
	}
}

// known sends a figure that an engine told: one that it did not is no zero.
func known[T int | float64](s scrape, d *prometheus.Desc, v policy.Maybe[T], labels ...string) {
	if v.Known {
		s.gauge(d, float64(v.Value), labels...)
	}
}

// counted sends what the proxy counted of a replica.
func (s scrape) counted(rep *replica) {
	c, cfg := rep.count, &rep.cfg
	s.gauge(descInfo, 1, cfg.ID, cfg.Model, string(cfg.Region), cfg.GPU, string(cfg.Kind))
	s.count(descSent, c.sent.Load(), cfg.ID)
	s.count(descRepPrompt, c.prompt.Load(), cfg.ID)
	s.count(descRepCached, c.cached.Load(), cfg.ID)
	for w := range whyBounced { // which only peers do
		s.count(descFailures, c.failed[w].Load(), cfg.ID, w.String())
	}
}

func (s scrape) peer(p *core.PeerView, c *targetCount) {
	s.gauge(descPeer, float64(p.Outstanding), p.ID)
	s.gauge(descPeerLive, oneIf(p.Live), p.ID)
	if p.Reported {
		s.gauge(descPeerRTT, p.RTT.Seconds(), p.ID)
		s.gauge(descPeerAge, p.Age.Seconds(), p.ID)
	}
	if c == nil {
		return
	}
	s.count(descPeerSent, c.sent.Load(), p.ID)
	for w := range whys {
		s.count(descPeerFailures, c.failed[w].Load(), p.ID, w.String())
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
