package deploy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

const (
	// servePollInterval is the polling interval of balancers on this computer.
	servePollInterval = 50 * time.Millisecond
	// portTimeout is how long a balancer may fail to listen because a port is in use: an earlier process may still be
	// ending. portPollInterval is the interval of the check.
	portTimeout      = 5 * time.Second
	portPollInterval = time.Second
	// reportTimeout is how long AwaitServing waits for the reports that ready balancers exchange: many times the interval
	// of their heartbeats.
	reportTimeout = 3 * time.Second
	// maxReasonBytes bounds what is read of the reason of a balancer that is not ready, which is a short line.
	maxReasonBytes = 256
	// readyPath is a balancer's readiness endpoint, healthPath its liveness endpoint.
	readyPath  = "/readyz"
	healthPath = "/healthz"
)

// NotReadyError is a service with parts that are not ready yet.
type NotReadyError struct {
	Waiting []string // ids, sorted
	Reasons map[string]string
	Ready   int // number of ready parts
	Cause   error
}

// Error returns a message with the parts that are not ready and their reasons.
func (e *NotReadyError) Error() string {
	var lines []string
	for _, id := range e.Waiting {
		lines = append(lines, fmt.Sprintf("%s: %s", id, e.Reasons[id]))
	}
	return fmt.Sprintf("waiting for the service: %v; %d of %d are ready, these are not:\n  %s",
		e.Cause, e.Ready, e.Ready+len(e.Waiting), strings.Join(lines, "\n  "))
}

// Unwrap returns the reason that the wait ended.
func (e *NotReadyError) Unwrap() error { return e.Cause }

// ServingObserver receives the progress of AwaitServing.
type ServingObserver struct {
	// Ready is called once for each balancer and replica that is ready.
	Ready func(id string)
	// Waiting is called after each poll with those that are not ready yet, sorted, and the reasons, by id.
	Waiting func(ids []string, reasons map[string]string)
}

// AwaitServing returns when every balancer on this computer is ready and reports its replicas ready,
// including those of static regions. Balancers report that shortly after the agents. When ctx ends first, the error is a
// *NotReadyError. A balancer whose port stays in use is a *StartFailedError.
func (dl *Delivery) AwaitServing(ctx context.Context, spec *service.Spec, draining map[string]bool, progress ServingObserver) error {
	waiting := dl.servingIDs(spec, draining)
	total := len(waiting)
	ports, checked := portWatch{}, time.Now()
	for {
		reasons := dl.unreadyReasons(ctx, spec, waiting)
		for _, id := range slices.Clone(waiting) {
			if reasons[id] != "" && reasons[id] != reasonDrainedByOperator {
				continue
			}
			waiting = slices.DeleteFunc(waiting, func(w string) bool { return w == id })
			if reasons[id] == "" {
				progress.Ready(id)
			}
		}
		if len(waiting) == 0 {
			dl.awaitReports(ctx)
			return nil
		}
		progress.Waiting(waiting, reasons)
		if time.Since(checked) >= portPollInterval {
			seen := dl.readStatusesOf(ctx, dl.balancersAmong(waiting))
			checked = time.Now()
			if err := ports.check(checked, seen); err != nil {
				return err
			}
		}
		if !sleep(ctx, servePollInterval) {
			return &NotReadyError{Waiting: waiting, Reasons: reasons, Ready: total - len(waiting), Cause: context.Cause(ctx)}
		}
	}
}

// balancersAmong returns the machines of balancers with these ids.
func (dl *Delivery) balancersAmong(ids []string) []provision.Object {
	return slices.DeleteFunc(slices.Clone(dl.Machines), func(o provision.Object) bool {
		return o.Kind != provision.KindBalancer || !slices.Contains(ids, o.ID)
	})
}

// portWatch has the first reports, by balancers that are not ready, that a port is in use. Deliver does not see
// all of these failures: a balancer has no readiness probe, so its agent takes it for ready while it starts, and then counts
// its attempts from the beginning. A failure counts only if an attempt failed during the wait: the operator may have stopped
// the other process before it.
type portWatch map[string]*portFailure

type portFailure struct {
	since    time.Time
	attempts int
	again    bool // there was another attempt since
}

// check returns the failures of the balancers that cannot listen; nil if there are none yet.
func (w portWatch) check(now time.Time, seen map[string]AgentReport) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		f, first := seen[id].Failure, w[id]
		if f == nil || f.Kind != agent.FailurePortInUse {
			if first != nil && seen[id].Err == nil {
				first.again = true
			}
			continue
		}
		if first == nil {
			first = &portFailure{since: now, attempts: f.Attempts}
			w[id] = first
		}
		first.again = first.again || f.Attempts != first.attempts
		if first.again && (f.Permanent || now.Sub(first.since) >= portTimeout) {
			errs = append(errs, &StartFailedError{id, *f})
		}
	}
	return errors.Join(errs...)
}

// awaitReports waits until every balancer on this computer has the report of every other one, so that a first snapshot
// shows all regions. A report that does not arrive is no error: alerts name the balancer.
func (dl *Delivery) awaitReports(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	for !dl.haveReports(ctx) && sleep(ctx, servePollInterval) {
	}
}

// haveReports reads the snapshots of the balancers on this computer, and reports whether they are complete.
func (dl *Delivery) haveReports(ctx context.Context) bool {
	var mu sync.Mutex
	snapshots := map[string]*telemetry.Snapshot{}
	dl.eachBalancer(func(b provision.Object, a adminClient) {
		if !cloud.RunsOnThisComputer(b.Region) {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, adminTimeout)
		defer cancel()
		if s, err := a.Snapshot(ctx); err == nil {
			mu.Lock()
			defer mu.Unlock()
			snapshots[b.ID] = s
		}
	})
	return reportsComplete(dl.Machines, snapshots)
}

// reportsComplete reports whether each of these snapshots, by balancer, has the reports of the other balancers on this
// computer, with the states that they have now.
func reportsComplete(machines []provision.Object, snapshots map[string]*telemetry.Snapshot) bool {
	for _, s := range snapshots {
		for _, o := range machines {
			peer := s.Balancer(o.ID)
			if o.Kind != provision.KindBalancer || o.TerminatedReason != "" || !cloud.RunsOnThisComputer(o.Region) || peer == nil {
				continue
			}
			if !peer.Responds() || peer.Reason == telemetry.ReasonNoReport {
				return false
			}
			if of := snapshots[o.ID]; of != nil && of.Balancer(o.ID) != nil && of.Balancer(o.ID).State != peer.State {
				return false
			}
		}
	}
	return true
}

// Reload makes every balancer reload its files. The error contains those that reject them;
// balancers that do not respond, or are reloading already, are no error.
func (dl *Delivery) Reload(ctx context.Context) error {
	var mu sync.Mutex
	var all []error
	dl.eachBalancer(func(b provision.Object, a adminClient) {
		ctx, cancel := context.WithTimeout(ctx, adminTimeout)
		defer cancel()
		_, err := a.Client.Reload(ctx)
		var refusal *telemetry.StatusError
		if errors.As(err, &refusal) && refusal.Status == http.StatusBadRequest {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, fmt.Errorf("reloading %s: %s", b.ID, refusal.Message))
		}
	})
	return errors.Join(all...)
}

// servingIDs returns the sorted IDs of everything that should serve on this computer, and of the replicas of static
// regions that its balancers use.
func (dl *Delivery) servingIDs(spec *service.Spec, draining map[string]bool) []string {
	var ids []string
	if !cloud.UsesClouds(spec) { // otherwise cloud balancers have them
		for _, r := range staticReplicas(spec) {
			if !draining[r.ID] && !dl.BalancersOnly && dl.includes(r.ID) {
				ids = append(ids, r.ID)
			}
		}
	}
	for _, o := range dl.Machines {
		if o.Kind.IsMachine() && o.TerminatedReason == "" && cloud.RunsOnThisComputer(o.Region) && !draining[o.ID] && (o.Kind != provision.KindReplica || !dl.BalancersOnly && dl.includes(o.ID)) {
			ids = append(ids, o.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// reasonDrainedByOperator is the reason of a replica that an operator drained by a balancer's admin API. It stays drained
// until an operator undoes that, so nothing waits for it.
const reasonDrainedByOperator = "drained by an operator"

// drainedByOperator returns the replicas of a region that an operator drained by the balancer's admin API. It asks only if
// the balancer's snapshot has draining ones.
func (b adminClient) drainedByOperator(ctx context.Context, s *telemetry.Snapshot, region service.Region) map[string]bool {
	drained := map[string]bool{}
	draining := slices.ContainsFunc(s.Regions, func(r telemetry.RegionSnapshot) bool {
		return r.Name == region && slices.ContainsFunc(r.Replicas, func(r telemetry.ReplicaSnapshot) bool { return r.State == service.StateDraining })
	})
	if !draining {
		return drained
	}
	workers, _ := b.Workers(ctx) // after an error, none is known to be drained
	for _, w := range workers {
		if w.State == service.StateDraining && w.DrainedBy == "" {
			drained[w.ID] = true
		}
	}
	return drained
}

// unreadyReasons returns why each of some machines is not ready.
func (dl *Delivery) unreadyReasons(ctx context.Context, spec *service.Spec, ids []string) map[string]string {
	reasons := map[string]string{}
	for _, id := range ids {
		reasons[id] = "no balancer reports it"
	}
	var mu sync.Mutex
	dl.eachBalancer(func(b provision.Object, a adminClient) {
		ctx, cancel := context.WithTimeout(ctx, adminTimeout)
		defer cancel()
		s, err := a.Snapshot(ctx)
		var drained map[string]bool
		if err == nil {
			drained = a.drainedByOperator(ctx, s, b.Region)
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			reasons[b.ID] = err.Error()
			return
		}
		own, check := 0, readyPath
		for _, region := range s.Regions {
			for _, r := range region.Replicas {
				if region.Name != b.Region || !r.IsAttached() { // listed, but not serving
					continue
				}
				if !drained[r.ID] {
					own++
				}
				switch {
				case r.State == service.StateReady:
					reasons[r.ID] = ""
				case reasons[r.ID] == "": // ready at another balancer
				case drained[r.ID]:
					reasons[r.ID] = reasonDrainedByOperator
				default:
					reasons[r.ID] = strings.TrimSpace(fmt.Sprintf("%s %s", r.State, r.Reason))
				}
			}
		}
		if own == 0 || dl.BalancersOnly || dl.OnlyReplicas != nil {
			check = healthPath // without ready replicas it may never become ready
		}
		reasons[b.ID] = cmp.Or(waitingForCertificate(s, b.ID), probeProblem(ctx, PublicURL(spec, b)+check))
	})
	if _, waits := reasons[provision.NameServerID]; waits && spec.DNS != nil {
		reasons[provision.NameServerID] = nameServerProblem(ctx, spec.DNS)
	}
	return reasons
}

// eachBalancer calls do for each balancer with an address, concurrently.
func (dl *Delivery) eachBalancer(do func(provision.Object, adminClient)) {
	hc := telemetry.SecureClient(dl.Party.Client(identity.Balancer))
	defer hc.CloseIdleConnections()
	var wg sync.WaitGroup
	for _, b := range dl.Machines {
		if b.Kind == provision.KindBalancer && b.TerminatedReason == "" && Reachable(b) {
			wg.Go(func() { do(b, adminClient{telemetry.NewClient(dl.adminURL(b), hc)}) })
		}
	}
	wg.Wait()
}

// waitingForCertificate returns what a balancer without a certificate is waiting for; empty where
// it has one, or needs none.
func waitingForCertificate(s *telemetry.Snapshot, id string) string {
	if b := s.Balancer(id); b != nil && b.Certificate != nil && b.Certificate.Waiting != "" {
		return "waiting for certificate: " + b.Certificate.Waiting
	}
	return ""
}

// probeProblem returns why GET of a URL did not return 200; empty if it did.
func probeProblem(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	res, err := localClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		problem := fmt.Sprintf("GET %s returned %s", url, res.Status)
		body, _ := io.ReadAll(io.LimitReader(res.Body, maxReasonBytes)) // what was read is enough
		if reason, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n"); reason != "" {
			problem += ": " + printable.Line(reason)
		}
		return problem
	}
	return ""
}

// localClient is the client for processes on this computer. It keeps no connections, because
// requests are rare, and does not verify certificates: that of a public listener is for its public
// name, not for the loopback address.
var localClient = &http.Client{
	Timeout: time.Second,
	Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // loopback, and nothing secret is sent
	},
}
