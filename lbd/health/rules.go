package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core/breaker"
)

// The thresholds of the alerts, with their reasons.
const (
	// shortWindow shows a sudden fault within seconds, longWindow a slow one. The errors of a replica are also
	// counted in suddenWindow: soon after a fault begins, it contains no successful requests from before.
	suddenWindow = 5 * time.Second
	shortWindow  = 10 * time.Second
	longWindow   = time.Minute
	// minFailures is the number of failures, rejections or retries that are no accident.
	minFailures = 5
	// suddenErrors is the share of a replica's requests that fail within suddenWindow or shortWindow, lastingErrors
	// the share within longWindow, from which there is an alert. A replica whose machine is healthy fails far fewer
	// than 1 %.
	suddenErrors, lastingErrors = 0.25, 0.1
	// criticalErrors is the share from which that alert is critical.
	criticalErrors = 0.25
	// failedWarning and failedCritical are shares of the clients' requests that fail, limitedWarning of those that
	// are rejected with 429.
	failedWarning, failedCritical = 0.01, 0.1
	limitedWarning                = 0.1
	// maxMissShare is the share of first tokens after their target that SageServe allows (section 2.2): its
	// targets are for the 95th percentile. burn rate 1 uses up exactly this share.
	maxMissShare = 0.05
	// burnWarning and burnCritical are burn rates of the SLO within shortWindow and longWindow.
	burnWarning, burnCritical = 2.0, 10.0
	// burnHour and burnHours are burn rates within an hour and within six. They find misses that never last a
	// minute, or are too few for burnWarning, and still use up the allowed share.
	burnHour, burnHours = 1.5, 1.0
	// retried is the number of retries per request of the balancer's clients. A retry costs a client time, and
	// engines the work of the first attempt; healthy services need nearly none.
	retried = 0.1
	// minFirstTokens is the number of first tokens from which a share of them means something.
	minFirstTokens = 20
	// longQueue and endlessQueue are waits in the queue: clients give up after about 30 s. The waits of deferred
	// requests for spare memory, and of any requests for a cold model, do not count.
	longQueue, endlessQueue = 10 * time.Second, 30 * time.Second
	// fullKV is the KV utilisation from which engines evict the memory of running requests; it is normal for
	// seconds.
	fullKV      = 0.95
	fullKVAfter = 30 * time.Second
	// notReadyAfter is how long a replica may fail its health checks.
	notReadyAfter = 3 * time.Second
	// lostPeer is how long a balancer may be silent: a restart takes about a second.
	lostPeer = 3 * time.Second
	// newPeer is lostPeer for a balancer that never responded: its machine may still boot.
	newPeer = 3 * time.Minute
	// certificateBefore is how long before its expiry a public certificate must have been renewed: ACME
	// renews after two thirds of 90 days.
	certificateBefore = 14 * 24 * time.Hour
	// unmetAfter is how long the machines of a plan may take: VMs boot and load weights.
	unmetAfter = 10 * time.Minute
)

// condition is an alert that is raised once it has held for the time after.
type condition struct {
	telemetry.Alert
	after time.Duration
}

// rules are all rules of this package. Each returns the conditions that hold.
var rules = []func(*Watch, *Observation) []condition{
	replicaErrors, slowReplicas, excludedReplicas, saturatedReplicas,
	lostBalancers, versions, certificates,
	failedRequests, limitedRequests, retriedRequests, lateFirstTokens, queuedRequests,
	plans, forecasts,
}

// raise returns a condition about an object of the balancer's region. It becomes an alert at once, unless the caller
// sets after.
func (o *Observation) raise(severity telemetry.Severity, kind, object, message, next string) condition {
	return condition{Alert: telemetry.Alert{Severity: severity, Kind: kind, Region: o.Own.Name, Object: object, Message: message, NextStep: next}}
}

// severityIf returns critical if a condition holds, else warning.
func severityIf(critical bool) telemetry.Severity {
	if critical {
		return telemetry.SeverityCritical
	}
	return telemetry.SeverityWarning
}

// mostSevere returns the first critical one of the conditions of several windows, else the first one, if there is one.
func mostSevere(windows []condition) []condition {
	for i := range windows {
		if windows[i].Severity == telemetry.SeverityCritical {
			return windows[i : i+1]
		}
	}
	return windows[:min(len(windows), 1)]
}

// share returns part of whole as text.
func share(part, whole int64) string { return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole)) }

// exceeds reports whether part is a fault: at least minFailures, and at least the share limit of whole. Both are the
// growth of a counter within a window.
func exceeds(part, whole int64, limit float64) bool {
	return whole > 0 && part >= minFailures && float64(part) >= limit*float64(whole)
}

// replicaErrors finds replicas that fail many of their requests.
func replicaErrors(w *Watch, o *Observation) (found []condition) {
	for _, r := range o.Own.Replicas {
		var windows []condition
		for _, window := range []struct {
			length time.Duration
			limit  float64
		}{{suddenWindow, suddenErrors}, {shortWindow, suddenErrors}, {longWindow, lastingErrors}} {
			old := w.before(window.length).replicas[r.ID]
			if old.attachment != r.Attachment { // its counts began at 0 within the window
				old = attempts{}
			}
			sent, failed := r.Sent-old.sent, r.Failed-old.failed
			sent = max(sent, failed) // attempts that were sent before the window may fail in it
			if !exceeds(failed, sent, window.limit) {
				continue
			}
			windows = append(windows, o.raise(severityIf(float64(failed) >= criticalErrors*float64(sent)), telemetry.AlertErrors, r.ID,
				fmt.Sprintf("failed %d of %d requests (%s) in the last %s; they are retried on other replicas where possible", failed, sent, share(failed, sent), span(window.length)),
				o.readLog(r.ID)+"; "+o.stopSending(r.ID)))
		}
		found = append(found, mostSevere(windows)...)
	}
	return found
}

// span describes a window.
func span(d time.Duration) string {
	switch {
	case d == time.Minute:
		return "minute"
	case d == time.Hour:
		return "hour"
	case d > time.Hour:
		return fmt.Sprintf("%.0f hours", d.Hours())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}

// excludedReplicas finds replicas that fail their checks, are ejected or are interrupted.
func excludedReplicas(_ *Watch, o *Observation) (found []condition) {
	for _, r := range o.Own.Replicas {
		switch {
		case r.State == service.StateInterrupted:
			found = append(found, o.raise(telemetry.SeverityWarning, telemetry.AlertInterruption, r.ID, "the cloud interrupts its machine: "+reason(r.Reason),
				o.ifDeployed("no action is needed: a replacement starts ('skyserve events' shows it)", o.addReplica(r.Model))))
		case r.State == service.StateNotReady && breaker.IsEjection(r.Reason):
			found = append(found, o.raise(telemetry.SeverityWarning, telemetry.AlertEjection, r.ID, reason(r.Reason),
				o.readLog(r.ID)))
		case r.State == service.StateNotReady:
			c := o.raise(telemetry.SeverityWarning, telemetry.AlertReplica, r.ID, "fails its health checks: "+reason(r.Reason),
				o.repairCheck(r.ID))
			c.after = notReadyAfter
			found = append(found, c)
		}
	}
	return found
}

// reason returns a reason, or that it is unknown.
func reason(text string) string {
	if text == "" {
		return "the reason is unknown"
	}
	return text
}

// saturatedReplicas finds replicas whose KV memory stays full.
func saturatedReplicas(_ *Watch, o *Observation) (found []condition) {
	for _, r := range o.Own.Replicas {
		if r.KV == nil || *r.KV < fullKV || r.State != service.StateReady {
			continue
		}
		c := o.raise(telemetry.SeverityWarning, telemetry.AlertKV, r.ID, fmt.Sprintf("KV memory is %.0f %% full: the engine may evict running requests", 100**r.KV),
			o.addReplica(r.Model)+", or lower "+o.ifDeployed("engine.max_num_seqs", "the engine's limit of running requests"))
		c.after = fullKVAfter
		found = append(found, c)
	}
	return found
}

// lostBalancers finds balancers that do not respond, and regions in which none does.
func lostBalancers(_ *Watch, o *Observation) (found []condition) {
	live := map[service.Region]bool{o.Own.Name: true}
	for _, p := range o.Peers {
		live[p.Region] = live[p.Region] || !p.Lost
	}
	for _, p := range o.Peers {
		limit := newPeer
		if p.Seen {
			limit = lostPeer
		}
		if !p.Lost || p.LostFor < limit {
			continue
		}
		message := fmt.Sprintf("no heartbeat for %s", p.LostFor.Round(time.Second))
		if p.Reason != "" {
			message += ": " + p.Reason
		}
		if !live[p.Region] {
			message += "; no balancer of " + string(p.Region) + " responds"
		}
		c := o.raise(telemetry.SeverityCritical, telemetry.AlertBalancer, p.ID, message,
			o.ifDeployed("'skyserve status' shows whether its machine runs; 'skyserve up' with the service.yaml of "+o.Service+" replaces it", "check its process, and the network between the two balancers"))
		c.Region = p.Region
		found = append(found, c)
	}
	return found
}

// versions finds balancers that run another version than this one. Only the balancer with the lower id raises
// the alert, so that each pair raises one.
func versions(_ *Watch, o *Observation) (found []condition) {
	for _, p := range o.Peers {
		if p.Version == "" || o.Version == "" || p.Lost || p.Version == o.Version || p.ID < o.Balancer {
			continue
		}
		c := o.raise(telemetry.SeverityWarning, telemetry.AlertVersion, p.ID, fmt.Sprintf("runs %s, but %s runs %s", p.Version, o.Balancer, o.Version),
			o.ifDeployed("run 'skyserve up --upgrade' with the service.yaml of "+o.Service, "restart the balancer that runs the older version"))
		c.Region = p.Region
		found = append(found, c)
	}
	return found
}

// certificates finds public certificates that end or cannot be renewed.
func certificates(_ *Watch, o *Observation) (found []condition) {
	for _, b := range o.Own.Balancers {
		c := b.Certificate
		switch {
		case c == nil:
		case c.ExpiresAt != nil && !o.At.Before(*c.ExpiresAt):
			found = append(found, o.raise(telemetry.SeverityCritical, telemetry.AlertCertificate, b.ID+" public",
				"the certificate expired on "+c.ExpiresAt.UTC().Format(time.DateOnly)+problemOf(c), nextOfCertificate))
		case c.ExpiresAt != nil && !o.At.Add(certificateBefore).Before(*c.ExpiresAt):
			found = append(found, o.raise(telemetry.SeverityWarning, telemetry.AlertCertificate, b.ID+" public",
				"the certificate expires on "+c.ExpiresAt.UTC().Format(time.DateOnly)+problemOf(c), nextOfCertificate))
		case c.Problem != "":
			found = append(found, o.raise(telemetry.SeverityWarning, telemetry.AlertCertificate, b.ID+" public",
				"the certificate cannot be renewed: "+c.Problem, nextOfCertificate))
		}
	}
	return found
}

// nextOfCertificate is the next step for a public certificate.
const nextOfCertificate = "replace the files of balancer.tls, or read the balancer's log for the errors of ACME"

// problemOf returns the problem of a certificate's renewal.
func problemOf(c *telemetry.Certificate) string {
	if c.Problem == "" {
		return ""
	}
	return "; renewal fails: " + c.Problem
}

// grown returns the growth of the outcomes within a window.
func (w *Watch) grown(window time.Duration, now telemetry.Outcomes) telemetry.Outcomes {
	old := w.before(window).outcomes
	return telemetry.Outcomes{Served: now.Served - old.Served, Limited: now.Limited - old.Limited, Failed: now.Failed - old.Failed, Retries: now.Retries - old.Retries}
}

// failedRequests finds a balancer that answers its clients with 5xx, or with errors within a stream.
func failedRequests(w *Watch, o *Observation) (windows []condition) {
	for _, window := range []time.Duration{shortWindow, longWindow} {
		d := w.grown(window, o.Own.Outcomes)
		if all := d.Served + d.Failed; exceeds(d.Failed, all, failedWarning) {
			windows = append(windows, o.raise(severityIf(float64(d.Failed) >= failedCritical*float64(all)), telemetry.AlertFailed, o.Balancer,
				fmt.Sprintf("%d of %d requests (%s) failed with 5xx or within the stream in the last %s", d.Failed, all, share(d.Failed, all), span(window)),
				o.query("top")+", view 3 shows them with their reasons; "+o.query("explain ID")+" explains one; those rejected before a replica was chosen are only in the access log (balancer.access_log)"))
		}
	}
	return mostSevere(windows)
}

// limitedRequests finds a balancer that rejects many requests with 429.
func limitedRequests(w *Watch, o *Observation) []condition {
	for _, window := range []time.Duration{shortWindow, longWindow} {
		d := w.grown(window, o.Own.Outcomes)
		if all := d.Served + d.Failed + d.Limited; exceeds(d.Limited, all, limitedWarning) {
			return []condition{o.raise(telemetry.SeverityWarning, telemetry.AlertLimited, o.Balancer,
				fmt.Sprintf("%d of %d requests (%s) were rejected with 429 in the last %s", d.Limited, all, share(d.Limited, all), span(window)),
				o.query("usage")+" shows usage and quotas by key; raise a limit, or balancer.queue_limit if the queue is full")}
		}
	}
	return nil
}

// retriedRequests finds a balancer that sends many requests more than once. If one replica fails them,
// replicaErrors names it.
func retriedRequests(w *Watch, o *Observation) []condition {
	if len(replicaErrors(w, o)) > 0 {
		return nil
	}
	for _, window := range []time.Duration{shortWindow, longWindow} {
		d := w.grown(window, o.Own.Outcomes)
		if all := d.Served + d.Failed; exceeds(d.Retries, all, retried) {
			return []condition{o.raise(telemetry.SeverityWarning, telemetry.AlertRetries, o.Balancer,
				fmt.Sprintf("%d retries for %d requests of clients (%s) in the last %s", d.Retries, all, share(d.Retries, all), span(window)),
				o.query("top")+", view 2 shows the replicas with errors (ERR%); "+o.query("explain ID")+" shows the attempts of a request")}
		}
	}
	return nil
}

// burnWindow is a window of a burn rate. The control window must exceed the rate too, so that the alert ends
// soon after its cause.
type burnWindow struct {
	length, control time.Duration
	limit           float64
}

// burnWindows are the windows of the TTFT target.
var burnWindows = []burnWindow{
	{shortWindow, shortWindow, burnWarning},
	{longWindow, longWindow, burnWarning},
	{time.Hour, 5 * time.Minute, burnHour},
	{maxWindow, 30 * time.Minute, burnHours},
}

// burn returns the burn rate of a model's TTFT target within a window: the share of late first tokens, relative to
// the allowed share. known is false without enough of them.
func (w *Watch) burn(m telemetry.ModelSnapshot, window time.Duration) (rate float64, all, late int64, known bool) {
	old := w.before(window).models[m.Model]
	all, late = m.FirstTokens-old.all, m.SLOMisses-old.late
	if all < minFirstTokens || late < 0 {
		return 0, 0, 0, false
	}
	return float64(late) / float64(all) / maxMissShare, all, late, true
}

// lateFirstTokens finds models whose streamed requests of tier fast (IW-F) miss the TTFT target.
func lateFirstTokens(w *Watch, o *Observation) (found []condition) {
	for _, m := range o.Own.Models {
		var windows []condition
		for _, window := range burnWindows {
			if window.control > longWindow && !w.covers(window.control) {
				continue
			}
			now, _, _, known := w.burn(m, window.control)
			burn, all, late, enough := w.burn(m, window.length)
			if !known || !enough || now < window.limit || burn < window.limit {
				continue
			}
			windows = append(windows, o.raise(severityIf(window.length <= longWindow && burn >= burnCritical), telemetry.AlertSLO, m.Model,
				fmt.Sprintf("%s of first tokens in %s missed the TTFT target in the last %s: burn rate %.1f (1 = the %.0f %% that are allowed)", share(late, all), o.Own.Name, span(window.length), burn, 100*maxMissShare),
				o.ifDeployed("'skyserve plan' shows whether capacity is missing; ", "")+o.query("top")+" shows slow replicas and queues"))
		}
		found = append(found, mostSevere(windows)...)
	}
	return found
}

// queuedRequests finds requests that wait long in the queue; see longQueue for the waits that do not count.
func queuedRequests(_ *Watch, o *Observation) []condition {
	if o.Own.QueueOldestMillis == nil || *o.Own.QueueOldestMillis < longQueue.Milliseconds() {
		return nil
	}
	oldest := time.Duration(*o.Own.QueueOldestMillis) * time.Millisecond
	return []condition{o.raise(severityIf(oldest >= endlessQueue), telemetry.AlertQueue, o.Balancer,
		queueMessage(o.Own.Models, oldest), o.serveQueue(mostQueued(o.Own.Models)))}
}

// mostQueued returns the model with the most queued requests that are not deferred. Of models with equally many, it
// returns the one with the most deferred requests. Like queueMessage, it omits cold models.
func mostQueued(models []telemetry.ModelSnapshot) string {
	most, longest := "", [2]int{-1}
	for _, m := range models {
		if length := [2]int{m.Queued, m.Deferred}; !m.Cold && slices.Compare(length[:], longest[:]) > 0 {
			most, longest = m.Model, length
		}
	}
	return most
}

// queueMessage describes queues whose oldest request has waited for a time. It omits cold models, whose waits do not count
// (see longQueue). It names deferred requests apart, because it is unknown how many of them wait for spare memory.
func queueMessage(models []telemetry.ModelSnapshot, oldest time.Duration) string {
	interactive, deferred := 0, 0
	for _, m := range models {
		if !m.Cold {
			interactive, deferred = interactive+m.Queued, deferred+m.Deferred
		}
	}
	wait := fmt.Sprintf(" queued for up to %s", oldest.Round(time.Second))
	if deferred == 0 {
		return printable.Count(interactive, "request") + wait
	}
	text := printable.Count(deferred, "deferred request") + wait + "; waits of deferred requests for spare memory do not count"
	if interactive > 0 {
		text = printable.Count(interactive, "request") + " and " + text
	}
	return text
}

// plans finds planning that fails, bounds that no plan satisfies, and plans whose replicas are missing.
func plans(_ *Watch, o *Observation) (found []condition) {
	if o.Review == nil || o.Review.Plan == nil {
		return nil
	}
	add := func(object, message, next string, after time.Duration) {
		c := o.raise(telemetry.SeverityWarning, telemetry.AlertPlan, object, message, next)
		c.Region, c.after = "", after
		found = append(found, c)
	}
	p := o.Review.Plan
	switch {
	case p.Error != "":
		add("plan", "planning failed: "+p.Error, "read 'skyserve logs "+o.Service+" controller'; replicas stay as they are", 0)
	case p.Status == "infeasible":
		add("plan", "no plan satisfies the bounds: "+strings.Join(p.Infeasible, "; "), "raise replicas.max or a quota of the cloud, or add a region; 'skyserve plan' shows the binding limits", 0)
	}
	var unmet []string
	for _, u := range o.Unmet {
		unmet = append(unmet, u.String())
	}
	if len(unmet) > 0 {
		add("targets", fmt.Sprintf("replicas of the plan have been missing for at least %.0f minutes: %s", unmetAfter.Minutes(), strings.Join(unmet, ", ")), "'skyserve events' and 'skyserve status' show failed launches; with autoscale.strategy: manual run 'skyserve plan --apply'", unmetAfter)
	}
	return found
}

// forecasts finds loads that deviate from their forecast.
func forecasts(_ *Watch, o *Observation) (found []condition) {
	if o.Review == nil {
		return nil
	}
	for _, f := range o.Review.Forecast {
		if f.Deviation == "" {
			continue
		}
		c := o.raise(telemetry.SeverityWarning, telemetry.AlertForecast, f.Model, "the load deviates from its forecast: "+f.Deviation,
			"run 'skyserve plan --apply' (not needed with the strategy reactive, predictive or auto)")
		c.Region = f.Region
		found = append(found, c)
	}
	return found
}
