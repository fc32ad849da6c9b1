package deploy

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// Certificate reads the certificate of a balancer's public listener; nil where it has no TLS.
func (dl *Delivery) Certificate(ctx context.Context, o provision.Object) (*telemetry.Certificate, error) {
	s, err := dl.Snapshot(ctx, o)
	if err != nil {
		return nil, err
	}
	if b := s.Balancer(o.ID); b != nil {
		return b.Certificate, nil
	}
	return nil, nil
}

// Snapshot reads a balancer's snapshot of the service.
func (dl *Delivery) Snapshot(ctx context.Context, o provision.Object) (*telemetry.Snapshot, error) {
	hc := telemetry.SecureClient(dl.Party.Client(identity.Balancer))
	defer hc.CloseIdleConnections()
	return telemetry.NewClient(dl.adminURL(o), hc).Snapshot(ctx)
}

// AwaitCertificates returns when all balancers have obtained a certificate; when ctx ends, with an
// error that contains the reason of each balancer without one. read returns the certificate of one
// balancer; progress receives each changed reason, one call at a time.
func AwaitCertificates(ctx context.Context, have []provision.Object, read func(context.Context, provision.Object) (*telemetry.Certificate, error), progress func(id, why string)) error {
	reported := map[string]string{}
	for {
		var lines []string
		waiting := withoutCertificate(ctx, have, read)
		for _, o := range have {
			why, isWaiting := waiting[o.ID]
			if !isWaiting {
				continue
			}
			if lines = append(lines, o.ID+": "+why); reported[o.ID] != why && ctx.Err() == nil {
				progress(o.ID, why)
				reported[o.ID] = why
			}
		}
		if len(lines) == 0 {
			return nil
		}
		if !sleep(ctx, pollInterval) {
			return fmt.Errorf("waiting for certificates: %w:\n  %s", context.Cause(ctx), strings.Join(lines, "\n  "))
		}
	}
}

// withoutCertificate returns why balancers have no certificate, by ID.
func withoutCertificate(ctx context.Context, have []provision.Object, read func(context.Context, provision.Object) (*telemetry.Certificate, error)) map[string]string {
	var mu sync.Mutex
	var wg sync.WaitGroup
	waiting := map[string]string{}
	for _, o := range have {
		if o.Kind != provision.KindBalancer || o.TerminatedReason != "" || !Reachable(o) {
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, statusTimeout)
			defer cancel()
			certificate, err := read(ctx, o)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				waiting[o.ID] = err.Error()
			case certificate == nil:
				waiting[o.ID] = "the balancer has not applied its TLS configuration yet"
			case certificate.Waiting != "":
				waiting[o.ID] = certificate.Waiting
			}
		})
	}
	wg.Wait()
	return waiting
}
