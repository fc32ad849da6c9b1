package rollout

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// Ready is told when an object has come to work, once each. Calls never overlap.
type Ready func(id string)

// NotReadyError is a service of which something does not work yet.
type NotReadyError struct {
	Waiting []string // ids, sorted
	Reasons map[string]string
	Ready   int // how many work
	Cause   error
}

// Error lists what does not work and why.
func (e *NotReadyError) Error() string {
	var lines []string
	for _, id := range e.Waiting {
		lines = append(lines, fmt.Sprintf("%s: %s", id, e.Reasons[id]))
	}
	return fmt.Sprintf("waiting for the service: %v; %d of %d are ready, these are not:\n  %s",
		e.Cause, e.Ready, e.Ready+len(e.Waiting), strings.Join(lines, "\n  "))
}

// Unwrap gives what ended the waiting.
func (e *NotReadyError) Unwrap() error { return e.Cause }

// Wait returns when every replica's model answers, every balancer takes
// requests and the controller is up. Errors: *provision.StartError when a
// process ends meanwhile, *NotReadyError when ctx ends.
func (p *Plan) Wait(ctx context.Context, ready Ready) error {
	ids := map[string]bool{}
	for _, w := range p.Layout.Wants {
		ids[w.ID] = true
	}
	for _, r := range p.Layout.Controller.Replicas {
		ids[r.ID] = true // those of static regions are no Want
	}
	return p.wait(ctx, ids, ready)
}

// wait waits for the objects in waiting.
func (p *Plan) wait(ctx context.Context, waiting map[string]bool, ready Ready) error {
	total := len(waiting)
	for {
		reasons := p.look(ctx, waiting)
		for _, id := range ids(waiting) {
			if reasons[id] == "" {
				delete(waiting, id)
				if ready != nil {
					ready(id)
				}
			}
		}
		if len(waiting) == 0 {
			return nil
		}
		if err := p.died(waiting); err != nil {
			return err
		}
		if !pause(ctx, lookEvery) {
			return &NotReadyError{Waiting: ids(waiting), Reasons: reasons, Ready: total - len(waiting), Cause: context.Cause(ctx)}
		}
	}
}

// died is the error of a waited for process that has ended.
func (p *Plan) died(waiting map[string]bool) error {
	objects, err := p.svc.Objects()
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.Gone != "" && waiting[o.ID] {
			lines, _ := p.svc.Tail(o.ID, logLines) // without its last words the error is still one
			return &provision.StartError{ID: o.ID, Err: fmt.Errorf("%s", o.Gone), Log: lines, File: p.svc.LogFile(o.ID)}
		}
	}
	return nil
}

// logLines is how many last lines of a log an error shows.
const logLines = 8

// look says why not of every object in waiting that does not work.
func (p *Plan) look(ctx context.Context, waiting map[string]bool) map[string]string {
	l := looker{reasons: map[string]string{}}
	for _, r := range p.Layout.Controller.Replicas {
		l.reasons[r.ID] = "no balancer reports on it"
	}
	for _, b := range p.Layout.Balancers {
		l.wg.Go(func() {
			problem, replicas := p.lookAtBalancer(ctx, b)
			l.balancer(b.ID, problem, replicas)
		})
	}
	l.wg.Wait()
	for _, w := range p.Layout.Wants {
		if !waiting[w.ID] {
			continue
		}
		switch w.Kind {
		case provision.KindReplica: // a balancer's report may be older than the process
			l.wg.Go(func() { l.also(w.ID, ask(ctx, w.Address+"/v1/models")) })
		case provision.KindController:
			l.wg.Go(func() { l.also(w.ID, notLeading(ctx, w.Admin)) })
		case provision.KindNameServer:
			l.wg.Go(func() { l.also(w.ID, p.notAnswering(ctx)) })
		}
	}
	l.wg.Wait()
	return l.reasons
}

// notLeading says why a controller does not work yet, or nothing: by the words of
// Status, so that what was waited for is what is shown afterwards.
func notLeading(ctx context.Context, base string) string {
	view, err := controllerView(ctx, base)
	if err != nil {
		return err.Error()
	}
	return notActing(view)
}

// looker gathers reasons from many goroutines.
type looker struct {
	wg      sync.WaitGroup
	mu      sync.Mutex
	reasons map[string]string
}

// balancer notes what a balancer said of itself and of its replicas. A replica
// is ready when one balancer says so.
func (l *looker) balancer(id, problem string, replicas map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reasons[id] = problem
	for replica, why := range replicas {
		if l.reasons[replica] != "" {
			l.reasons[replica] = why
		}
	}
}

// also notes a reason for id unless it has one already.
func (l *looker) also(id, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reasons[id] = cmp.Or(l.reasons[id], why)
}

// lookAtBalancer says why a balancer does not take requests, or nothing, and
// the same of each replica of its region.
func (p *Plan) lookAtBalancer(ctx context.Context, b service.BalancerConfig) (problem string, replicas map[string]string) {
	replicas = map[string]string{}
	askCtx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	snapshot, err := p.client(b.Admin).Snapshot(askCtx)
	if err != nil {
		return err.Error(), replicas
	}
	for _, region := range snapshot.Regions {
		if region.Name != b.Region {
			continue // the others report on theirs
		}
		for _, r := range region.Replicas {
			replicas[r.ID] = whyNot(r)
		}
	}
	check := readyPath
	if len(b.Replicas) == 0 {
		check = "/healthz" // it is ready when it can forward, and nothing promises that
	}
	return cmp.Or(waitingForCertificate(snapshot, b.ID), ask(ctx, p.publicURL(b)+check)), replicas
}

// waitingForCertificate says what keeps a balancer without a certificate; empty where it has
// one, or needs none.
func waitingForCertificate(s *telemetry.Snapshot, id string) string {
	if b := s.Balancer(id); b != nil && b.Certificate != nil && b.Certificate.Waiting != "" {
		return "waiting for certificate: " + b.Certificate.Waiting
	}
	return ""
}

// whyNot says why a replica is not ready, or nothing.
func whyNot(r telemetry.ReplicaSnapshot) string {
	if r.State == service.StateReady {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", r.State, r.Reason))
}

// publicURL is the public base URL of a balancer.
func (p *Plan) publicURL(b service.BalancerConfig) string {
	for _, w := range p.Layout.Wants {
		if w.ID == b.ID {
			return w.Address
		}
	}
	return "http://" + b.Listen
}

// localClient asks processes of this machine. It does not keep connections,
// because they are asked seldom, and does not ask who they are: the certificate
// of a public listener is for its public name and not for the loopback address.
var localClient = &http.Client{
	Timeout: askTimeout,
	Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // loopback, and nothing secret is sent
	},
}

// adminTransport carries what the admin APIs are asked, as seldom.
var adminTransport = &http.Transport{DisableKeepAlives: true}

// adminClient speaks to the admin API of a balancer of this machine.
func adminClient(admin, token string) *telemetry.Client {
	return telemetry.NewClient(admin, &http.Client{Timeout: reloadTimeout, Transport: telemetry.Bearer(token, adminTransport)})
}

// ask says why a URL does not answer 200, or nothing.
func ask(ctx context.Context, url string) string {
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
		return fmt.Sprintf("GET %s: %s", url, res.Status)
	}
	return ""
}
