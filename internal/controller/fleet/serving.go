package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

const (
	// serveEvery is how often balancers on this computer are asked whether they serve.
	serveEvery = 50 * time.Millisecond
	// readyPath is where a balancer says whether it takes requests, healthPath whether it runs.
	readyPath  = "/readyz"
	healthPath = "/healthz"
)

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

// AwaitServing returns when every balancer on this computer takes requests and finds its replicas
// ready, those of static regions too: a moment after agents said so. ready is told of each, once;
// nil = nobody is. The error, when ctx ends first, is a *NotReadyError.
func (h *Handover) AwaitServing(ctx context.Context, spec *service.Spec, leaving map[string]bool, ready func(id string)) error {
	waiting := h.serving(spec, leaving)
	total := len(waiting)
	for {
		reasons := h.unready(ctx, spec, waiting)
		for _, id := range slices.Clone(waiting) {
			if reasons[id] == "" {
				waiting = slices.DeleteFunc(waiting, func(w string) bool { return w == id })
				if ready != nil {
					ready(id)
				}
			}
		}
		if len(waiting) == 0 {
			return nil
		}
		if !pause(ctx, serveEvery) {
			return &NotReadyError{Waiting: waiting, Reasons: reasons, Ready: total - len(waiting), Cause: context.Cause(ctx)}
		}
	}
}

// Reload has every balancer read its files again. The error is of those that refuse what they find;
// one that does not answer, or that hears of it from its agent at this moment, is none.
func (h *Handover) Reload(ctx context.Context) error {
	var mu sync.Mutex
	var all []error
	h.eachBalancer(func(b provision.Object, a administered) {
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

// serving are the ids of what is to serve on this computer, or is attached to it, sorted.
func (h *Handover) serving(spec *service.Spec, leaving map[string]bool) []string {
	var ids []string
	if !cloud.Rents(spec) { // else balancers elsewhere have them
		for _, r := range attachedOf(spec) {
			if !leaving[r.ID] {
				ids = append(ids, r.ID)
			}
		}
	}
	for _, o := range h.Have {
		if o.Kind.IsMachine() && o.Gone == "" && cloud.IsHere(o.Region) && !leaving[o.ID] {
			ids = append(ids, o.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// unready says why each of some machines does not serve.
func (h *Handover) unready(ctx context.Context, spec *service.Spec, ids []string) map[string]string {
	reasons := map[string]string{}
	for _, id := range ids {
		reasons[id] = "no balancer reports on it"
	}
	var mu sync.Mutex
	h.eachBalancer(func(b provision.Object, a administered) {
		ctx, cancel := context.WithTimeout(ctx, adminTimeout)
		defer cancel()
		s, err := a.Snapshot(ctx)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			reasons[b.ID] = err.Error()
			return
		}
		own, check := 0, readyPath
		for _, region := range s.Regions {
			for _, r := range region.Replicas {
				if region.Name != b.Region || r.State == service.StateDonated { // it is listed, and serves nobody
					continue
				}
				own++
				if r.State == service.StateReady {
					reasons[r.ID] = ""
				} else if reasons[r.ID] != "" {
					reasons[r.ID] = strings.TrimSpace(fmt.Sprintf("%s %s", r.State, r.Reason))
				}
			}
		}
		if own == 0 {
			check = healthPath // it is ready when it can forward, and nothing promises that
		}
		reasons[b.ID] = cmp.Or(waitingForCertificate(s, b.ID), answersAt(ctx, PublicURL(spec, b)+check))
	})
	if _, waits := reasons[provision.NameServerID]; waits && spec.DNS != nil {
		reasons[provision.NameServerID] = unanswered(ctx, spec.DNS)
	}
	return reasons
}

// eachBalancer does something with each balancer that has an address, all of them at once.
func (h *Handover) eachBalancer(do func(provision.Object, administered)) {
	hc := telemetry.SecureClient(h.Party.Client(identity.Balancer))
	defer hc.CloseIdleConnections()
	var wg sync.WaitGroup
	for _, b := range h.Have {
		if b.Kind == provision.KindBalancer && b.Gone == "" && Reachable(b) {
			wg.Go(func() { do(b, administered{telemetry.NewClient(h.adminURL(b), hc)}) })
		}
	}
	wg.Wait()
}

// waitingForCertificate says what keeps a balancer without a certificate; empty where it has
// one, or needs none.
func waitingForCertificate(s *telemetry.Snapshot, id string) string {
	if b := s.Balancer(id); b != nil && b.Certificate != nil && b.Certificate.Waiting != "" {
		return "waiting for certificate: " + b.Certificate.Waiting
	}
	return ""
}

// answersAt says why a URL does not answer 200, or nothing.
func answersAt(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	res, err := hereClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Sprintf("GET %s: %s", url, res.Status)
	}
	return ""
}

// hereClient asks processes of this computer. It keeps no connections, because they are asked
// seldom, and does not ask who they are: the certificate of a public listener is for its public
// name and not for the loopback address.
var hereClient = &http.Client{
	Timeout: time.Second,
	Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // loopback, and nothing secret is sent
	},
}
