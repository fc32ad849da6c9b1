package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// distantBalancer returns the admin API of a balancer behind a round-trip time, over HTTP. A connection takes two round
// trips, those of TCP and TLS, and a request one.
func distantBalancer(b *fakeBalancer, rtt time.Duration) (api adminAPI, stop func()) {
	listener := testkit.NewPipes()
	mux := http.NewServeMux()
	handle := func(pattern string, respond func(r *http.Request) any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(rtt)
			_ = json.NewEncoder(w).Encode(respond(r))
		})
	}
	handle("GET /healthz", func(*http.Request) any { return nil })
	handle("GET /workers", func(r *http.Request) any {
		workers, _ := b.Workers(r.Context())
		return map[string]any{"workers": workers}
	})
	handle("POST /workers", func(r *http.Request) (answer any) {
		var replica service.ReplicaConfig
		if json.NewDecoder(r.Body).Decode(&replica) == nil {
			_, _ = b.AddWorker(r.Context(), replica)
		}
		return nil
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Hour}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(listener) })
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case <-time.After(2 * rtt):
			return listener.Dial(ctx, network, address)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	return telemetry.NewClient("http://balancer", &http.Client{Transport: transport}), func() {
		time.Sleep(time.Minute) // until no request or connection is in progress
		transport.CloseIdleConnections()
		_ = srv.Close()
		serving.Wait()
	}
}

// A new leader has no connection to balancers yet, which takes several round trips: balancers far away are not taken for
// dead, and get their replicas.
func TestDistantBalancersAreAlive(t *testing.T) {
	for _, rtt := range []time.Duration{10 * time.Millisecond, 140 * time.Millisecond, 220 * time.Millisecond, 300 * time.Millisecond, 450 * time.Millisecond} {
		t.Run(fmt.Sprint(rtt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				events := &eventList{}
				w.events = store.NewEventQueue(events, "c", telemetry.Event{Actor: telemetry.ActorController}, w.log)
				for _, b := range w.balancers {
					w.lb[b.ID].has = map[string]uint64{}
					var stop func()
					b.admin, stop = distantBalancer(w.lb[b.ID], rtt)
					defer stop()
				}
				ctx, end := context.WithTimeoutCause(t.Context(), 10*time.Second, errDead)
				defer end()
				_ = w.runTerm(ctx, w.lease)
				for _, e := range w.events.Pending() {
					if e.Kind == telemetry.EventDeath || e.Kind == telemetry.EventAdoption {
						t.Errorf("recorded: %s: %s", e.Message, e.Reason)
					}
				}
				for _, r := range w.config.Replicas {
					if !slices.Contains(w.lb[r.Primary].replicas(), r.ID) {
						t.Errorf("%s is not attached to %s", r.ID, r.Primary)
					}
				}
			})
		})
	}
}
