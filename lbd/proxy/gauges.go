package proxy

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// failureKind is the kind of a failed attempt, a label with few values.
type failureKind int

const (
	failureUnreachable    failureKind = iota // the connection could not be opened, or the target was removed
	failureTimeout                           // the target did not respond in time
	failureDisconnected                      // the connection failed
	failureStatus                            // a status that indicates a fault of the target
	failureErrorResponse                     // an error in the response, or an invalid response
	failureCannotContinue                    // the target cannot continue the response of another one
	failureBounced                           // a peer bounced the request
	failureKinds
)

// String returns the label value.
func (w failureKind) String() string {
	return [failureKinds]string{"unreachable", "timeout", "disconnected", "status", "error_response", "cannot_continue", "bounced"}[w]
}

// targetCount counts the attempts at a replica or a peer since it was added, and its failures. An
// update of the target keeps it; another URL or number of ranks starts a new one.
type targetCount struct {
	sent   atomic.Int64
	failed [failureKinds]atomic.Int64
	// trusted: the target has served a request, or another target has confirmed its client error, since
	// its last client error was forwarded. Its next client error is forwarded without a confirmation.
	trusted atomic.Bool
	tokenEvents
}

// failures returns the number of failed attempts.
func (c *targetCount) failures() (n int64) {
	for w := range failureBounced { // a bounce is no failure of a replica
		n += c.failed[w].Load()
	}
	return n
}

// targetCounts returns the counts of the action's target, nil when the target was removed.
func (v *action) targetCounts() *targetCount {
	switch {
	case v.rank.replica != nil:
		return &v.rank.count.targetCount
	case v.peer != nil:
		return v.peer.count
	}
	return nil
}

// countFailure counts a failed attempt.
func (v *action) countFailure(w failureKind) {
	if c := v.targetCounts(); c != nil {
		c.failed[w].Add(1)
	}
}

// gauges reads the state of core and of the targets for each scrape.
type gauges struct{ r *Runtime }

var (
	descQueue    = desc("skyserve_queue_depth", "Requests queued in the balancer.")
	descOldest   = desc("skyserve_queue_oldest_seconds", "Time that the oldest queued request has waited.")
	descInFlight = desc("skyserve_in_flight", "Requests that have arrived and have not ended.")
	descDraining = desc("skyserve_draining", "1 when the balancer accepts no new requests.")
	descEnded    = desc("skyserve_ended_total", "Requests that ended at the balancer, forwarded ones included, by outcome: finished, rejected, cancelled or bounced (returned to the forwarding peer); the label 'how' is the former name of 'outcome'.", "outcome", "how")
	descRefused  = desc("skyserve_retries_refused_total", "Requests that ended because the retry budget was exhausted.")
	descEjected  = desc("skyserve_ejections_total", "Outlier ejections: times that a replica was excluded because it failed its requests.")
	descStopped  = desc("skyserve_requests_stopped_total", "Requests stopped or rejected because engines crashed while serving the same or an identical request.")
	descTree     = desc("skyserve_prefix_tree_bytes", "Memory of the prefix trees.")
	descNodes    = desc("skyserve_prefix_tree_nodes", "Nodes of the prefix trees.")
	descMemory   = desc("skyserve_request_bytes", "Bytes of balancer.memory.requests that requests and responses use.")
	descNoMemory = desc("skyserve_memory_refused_total", "Requests rejected, and retry buffers denied, because of a memory limit, by limit: requests (balancer.memory.requests) or tenant (balancer.memory.tenant); the label 'bound' is the former name of 'limit'.", "limit", "bound")
	descRecord   = desc("skyserve_record_dropped_total", "Events and decisions that could not be written to the --record file.")
	descEvents   = desc("skyserve_events_dropped_total", "Decisions that were not sent to a client of GET /v1/events of the admin API, because the client was too slow.")

	descModelQueued      = desc("skyserve_model_queued", "Queued requests for a model.", "model")
	descModelOutstanding = desc("skyserve_model_outstanding", "Outstanding requests at the replicas of a model.", "model")
	descModelReplicas    = desc("skyserve_model_replicas", "Ready replicas of a model.", "model")
	descModelAvailable   = desc("skyserve_model_replicas_available", "Replicas of a model to which the push mode allows another request to be sent.", "model")
	descModelWait        = desc("skyserve_model_wait_seconds", "Expected queue time of a request for a model that arrives now.", "model")

	// The label replica is core's target id, which may be that of a rank, from descReady to descTokens (see
	// scrape.replica), else the id of the replica (see scrape.proxyCounts).
	descInfo            = desc("skyserve_replica_info", "1; the labels describe the replica. The ranks of an engine (us-0/0) have no series of their own.", "replica", "model", "region", "gpu", "kind")
	descReady           = desc("skyserve_replica_ready", "1 when the replica, or a data-parallel rank of it (us-0/0), responds and is not ejected.", "replica")
	descAvailable       = desc("skyserve_replica_available", "1 when the push mode allows another request to be sent to the replica.", "replica")
	descReplicaDraining = desc("skyserve_replica_draining", "1 when the replica is draining: it finishes its requests and receives no new ones.", "replica")
	descOutstanding     = desc("skyserve_replica_outstanding", "Requests sent to a replica that have not ended.", "replica")
	descHeld            = desc("skyserve_replica_held", "Queued requests that are held for a replica: they wait until it has capacity, and requests behind them may be sent first.", "replica")
	descPending         = desc("skyserve_replica_pending", "Requests pending in the engine, as it reports; missing if it does not report them.", "replica")
	descRunning         = desc("skyserve_replica_running", "Requests running in the engine, as it reports; missing if it does not report them.", "replica")
	descKV              = desc("skyserve_replica_kv_usage_ratio", "KV utilisation, 0 to 1, as the engine reports; missing if it does not report it.", "replica")
	descAge             = desc("skyserve_replica_report_age_seconds", "Age of a replica's last probe result.", "replica")
	descPace            = desc("skyserve_replica_pace_ratio", "Time between two tokens in the streams of the last seconds, relative to the nominal replica (one L4 GPU with a model of 8 billion parameters); missing if few tokens were streamed in the last 10 s.", "replica")
	descTokens          = desc("skyserve_replica_tokens_total", "Tokens that a replica generated.", "replica")
	descSent            = desc("skyserve_replica_sent_total", "Attempts sent to a replica.", "replica")
	descFailures        = desc("skyserve_replica_failures_total", "Attempts that failed at a replica: unreachable, timeout, disconnected, status (5xx, 429, 401, 403, 404 for the model, 402 of a provider, a redirect, no content, or a client error of a request that another replica served), error_response (an error in the body, or an invalid response), cannot_continue (the stream of another replica).", "replica", "cause")
	descContinues       = desc("skyserve_replica_continues_streams", "1 when the replica's engine is proven to continue the chat of another replica, 0 when it would begin a new response; missing before it was checked.", "replica")
	descRepPrompt       = desc("skyserve_replica_prompt_tokens_total", "Prompt tokens of those responses of a replica that also report cached tokens.", "replica")
	descRepCached       = desc("skyserve_replica_cached_tokens_total", "Prompt tokens that a replica read from its cache.", "replica")
	descRepMismatch     = desc("skyserve_replica_cache_mismatch_tokens_total", "Prompt tokens that the balancer judged wrongly: not_cached (expected in the replica's cache, but computed) or not_expected (cached, but not known to be). Only responses that also report cached tokens count.", "replica", "kind")

	descPeer         = desc("skyserve_peer_outstanding", "Requests forwarded to a peer that have not ended.", "peer")
	descPeerLive     = desc("skyserve_peer_live", "1 when the peer responds.", "peer")
	descPeerRTT      = desc("skyserve_peer_rtt_seconds", "Minimum recent round-trip time to a peer; missing before its first heartbeat.", "peer")
	descPeerAge      = desc("skyserve_peer_report_age_seconds", "Age of a peer's last heartbeat; missing before the first.", "peer")
	descPeerSent     = desc("skyserve_peer_sent_total", "Attempts sent to a peer.", "peer")
	descPeerFailures = desc("skyserve_peer_failures_total", "Attempts that failed at a peer, by cause as for replicas, or bounced: the peer returned the request unserved.", "peer", "cause")
)

var allDescs = []*prometheus.Desc{
	descQueue, descOldest, descInFlight, descDraining, descEnded, descRefused, descEjected, descStopped, descTree, descNodes, descMemory, descNoMemory, descRecord, descEvents,
	descModelQueued, descModelOutstanding, descModelReplicas, descModelAvailable, descModelWait,
	descInfo, descReady, descAvailable, descReplicaDraining, descOutstanding, descHeld, descPending, descRunning, descKV, descAge, descPace,
	descTokens, descSent, descFailures, descContinues, descRepPrompt, descRepCached, descRepMismatch,
	descPeer, descPeerLive, descPeerRTT, descPeerAge, descPeerSent, descPeerFailures,
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe sends the description of every gauge.
func (g gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range allDescs {
		ch <- d
	}
}

// Collect sends the current value of every gauge.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	s := scrape{ch}
	r := g.r
	r.mu.Lock()
	now := r.Elapsed()
	v, load, replicas := r.core.Snapshot(now), r.core.ModelLoads(now), r.sortedReplicas()
	peers := make(map[string]*targetCount, len(r.peers))
	for id, p := range r.peers {
		peers[id] = p.count
	}
	inFlight := len(r.inFlight)
	r.mu.Unlock()

	s.gauge(descInFlight, float64(inFlight))
	s.gauge(descDraining, boolGauge(r.draining.Load()))
	full, over := r.memory.Refusals()
	s.gauge(descMemory, float64(r.memory.Used()))
	s.count(descNoMemory, full, "requests", "requests")
	s.count(descNoMemory, over, "tenant", "tenant")
	s.count(descRecord, r.record.droppedSteps())
	s.count(descEvents, r.subs.dropped.Load())
	s.balancer(&v)
	for i := range load {
		s.model(&load[i])
	}
	for i := range v.Replicas {
		s.replica(&v.Replicas[i])
	}
	for _, rep := range replicas {
		s.proxyCounts(rep)
	}
	for i := range v.Peers {
		s.peer(&v.Peers[i], peers[v.Peers[i].ID])
	}
}

// scrape is one collection of current values.
type scrape struct{ ch chan<- prometheus.Metric }

func (s scrape) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s scrape) count(d *prometheus.Desc, n int64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func (s scrape) balancer(v *core.BalancerView) {
	s.gauge(descQueue, float64(v.Counts.Queued))
	s.gauge(descOldest, v.OldestWait.Seconds())
	s.gauge(descTree, float64(v.TreeBytes))
	s.gauge(descNodes, float64(v.TreeNodes))
	s.count(descRefused, v.RetriesOverBudget)
	s.count(descEjected, v.Ejections)
	s.count(descStopped, v.Stopped)
	c := v.Counts
	for _, e := range []struct {
		outcome string
		n       int64
	}{{"finished", c.Finished}, {"rejected", c.Rejected}, {"cancelled", c.Cancelled}, {"bounced", c.Bounced}} {
		s.count(descEnded, e.n, e.outcome, e.outcome)
	}
}

func (s scrape) model(l *core.ModelLoad) {
	s.gauge(descModelQueued, float64(l.Queued), l.Model)
	s.gauge(descModelOutstanding, float64(l.Outstanding-l.Failed), l.Model)
	s.gauge(descModelReplicas, float64(l.Replicas), l.Model)
	s.gauge(descModelAvailable, float64(l.Available), l.Model)
	s.gauge(descModelWait, l.ExpectedWait.Seconds(), l.Model)
}

// replica sends core's state of one target: a replica, or one of its ranks.
func (s scrape) replica(rep *core.ReplicaView) {
	s.gauge(descReady, boolGauge(rep.Ready), rep.ID)
	s.gauge(descAvailable, boolGauge(rep.Available), rep.ID)
	s.gauge(descReplicaDraining, boolGauge(rep.Draining), rep.ID)
	s.gauge(descOutstanding, float64(rep.Outstanding), rep.ID)
	s.gauge(descHeld, float64(rep.HeldRequests), rep.ID)
	s.count(descTokens, rep.Tokens, rep.ID)
	reportKnown(s, descPending, rep.Pending, rep.ID)
	reportKnown(s, descRunning, rep.Running, rep.ID)
	reportKnown(s, descKV, rep.KV, rep.ID)
	if rep.Reported {
		s.gauge(descAge, rep.Age.Seconds(), rep.ID)
	}
	if rep.Pace > 0 {
		s.gauge(descPace, rep.Pace, rep.ID)
	}
}

// reportKnown sends a figure that the engine reported. A missing figure is not zero.
func reportKnown[T int | float64](s scrape, d *prometheus.Desc, v policy.Maybe[T], labels ...string) {
	if v.Known {
		s.gauge(d, float64(v.Value), labels...)
	}
}

// proxyCounts sends the proxy's own counts of a replica.
func (s scrape) proxyCounts(rep *replica) {
	c, cfg := rep.count, &rep.cfg
	s.gauge(descInfo, 1, cfg.ID, cfg.Model, string(cfg.Region), cfg.GPU, string(cfg.Kind))
	s.count(descSent, c.sent.Load(), cfg.ID)
	s.count(descRepPrompt, c.prompt.Load(), cfg.ID)
	s.count(descRepCached, c.cached.Load(), cfg.ID)
	s.count(descRepMismatch, c.notCached.Load(), cfg.ID, "not_cached")
	s.count(descRepMismatch, c.notExpected.Load(), cfg.ID, "not_expected")
	if state := rep.continuation(); state != ContinuationUnknown {
		s.gauge(descContinues, boolGauge(state == ContinuationProven), cfg.ID)
	}
	for w := range failureBounced { // only peers bounce
		s.count(descFailures, c.failed[w].Load(), cfg.ID, w.String())
	}
}

func (s scrape) peer(p *core.PeerView, c *targetCount) {
	s.gauge(descPeer, float64(p.Outstanding), p.ID)
	s.gauge(descPeerLive, boolGauge(p.Live), p.ID)
	if p.Reported {
		s.gauge(descPeerRTT, p.RTT.Seconds(), p.ID)
		s.gauge(descPeerAge, p.Age.Seconds(), p.ID)
	}
	if c == nil {
		return
	}
	s.count(descPeerSent, c.sent.Load(), p.ID)
	for w := range failureKinds {
		s.count(descPeerFailures, c.failed[w].Load(), p.ID, w.String())
	}
}

func boolGauge(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
