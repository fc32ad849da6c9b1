package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// bigService returns a service of 30 balancers, each in a region of its own, and 1,000 replicas: its service.yaml, the
// configuration of its controller, the responses of each balancer to /workers, and the snapshot of its own replicas that each returns.
func bigService() (yaml string, config service.ControllerConfig, workers map[string][]telemetry.Worker, snapshots map[string][]byte) {
	const balancers, replicas = 30, 1000
	var text strings.Builder
	text.WriteString("name: chat\nmodels: [{name: org/m, engine: {kind: sim}, gpus: [{type: L4, tps: 1500}]}]\nregions:\n")
	config = newWeekWorld(balancers, replicas, 1).config
	s := telemetry.Snapshot{At: time.Now(), Service: "chat"}
	workers = map[string][]telemetry.Worker{}
	regions := map[service.Region]*telemetry.RegionSnapshot{}
	for _, b := range config.Balancers {
		fmt.Fprintf(&text, "  - {name: %s, replicas: {min: 1, max: 3}}\n", b.Region)
		s.Regions = append(s.Regions, telemetry.RegionSnapshot{Name: b.Region, Balancers: []telemetry.BalancerSnapshot{{ID: b.ID}}})
	}
	for i := range s.Regions {
		regions[s.Regions[i].Name] = &s.Regions[i]
	}
	some, share, age := 7, 0.375, int64(61)
	for _, r := range config.Replicas {
		workers[r.Primary] = append(workers[r.Primary], telemetry.Worker{ReplicaConfig: r.ReplicaConfig, State: service.StateReady, Outstanding: some})
		region := regions[r.Region]
		region.Replicas = append(region.Replicas, telemetry.ReplicaSnapshot{
			ID: r.ID, URL: "https://10.0.0.1:8000", Model: "org/m", GPU: "L4", Region: r.Region, Capacity: service.CapacitySpot, State: service.StateReady,
			Pending: &some, Running: &some, Outstanding: some, Sent: 123456, Pace: &share, KV: &share, PrefixHitRate: &share, OutputTokensPerSecond: &share,
			AgeMillis: &age, Version: "0.33.0", USDPerHour: &share,
		})
	}
	snapshots = map[string][]byte{}
	all := s.Regions
	for i, b := range config.Balancers {
		s.Regions = slices.Clone(all)
		for j := range s.Regions {
			if i != j {
				s.Regions[j].Replicas = []telemetry.ReplicaSnapshot{}
			}
		}
		snapshots[b.ID], _ = json.Marshal(s)
	}
	return text.String(), config, workers, snapshots
}

// cpuTime returns the processor time of this process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The cost of the leader of a service with 30 balancers and 1,000 replicas, over HTTP without TLS: rounds, in which it
// probes every balancer and lists its replicas, and observations, in which it reads a snapshot of its own replicas from every
// balancer. %core is the share of a core at their intervals; it contains the cost of the servers, which return fixed texts.
func BenchmarkLeader(b *testing.B) {
	yaml, config, workers, snapshots := bigService()
	lists := map[string][]byte{}
	encode := func(epoch uint64) {
		for id, list := range workers {
			for i := range list {
				list[i].Epoch = epoch
			}
			lists[id], _ = json.Marshal(map[string]any{"workers": list})
		}
	}
	encode(0)
	var admins []*telemetry.Client
	byAddress := map[string]*telemetry.Client{}
	for i := range config.Balancers {
		mux, id := http.NewServeMux(), config.Balancers[i].ID
		for path, text := range map[string]func() []byte{
			"/healthz": func() []byte { return nil }, "/workers": func() []byte { return lists[id] }, "/v1/service": func() []byte { return []byte(yaml) }, "/v1/snapshot": func() []byte { return snapshots[id] },
		} {
			mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text()) })
		}
		mux.HandleFunc("POST /add_worker", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })
		srv := httptest.NewServer(mux)
		b.Cleanup(srv.Close)
		config.Balancers[i].Admin = srv.URL
		byAddress[srv.URL] = telemetry.NewClient(srv.URL, nil)
		admins = append(admins, byAddress[srv.URL])
	}
	c := newController(config, &fakeState{}, nil, func(base string) admin { return byAddress[base] }, slog.New(slog.DiscardHandler))
	l := &weekLease{token: 1}
	if err := c.runRound(context.Background(), l); err != nil { // attaches all replicas
		b.Fatal(err)
	}
	encode(c.current.Epoch())
	measure := func(interval time.Duration, f func() error) func(*testing.B) {
		return func(b *testing.B) {
			start := cpuTime(b)
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(100*(cpuTime(b)-start).Seconds()/float64(b.N)/interval.Seconds(), "%core")
		}
	}
	b.Run("round", measure(roundInterval, func() error { return c.runRound(context.Background(), l) }))
	b.Run("observation", measure(loopInterval, func() error {
		o, err := Observe(context.Background(), admins, 0, false)
		if err == nil && o.Counts[0].Replicas != len(config.Replicas)/len(config.Balancers)+1 {
			err = fmt.Errorf("%d replicas in %s", o.Counts[0].Replicas, o.Counts[0].Region)
		}
		return err
	}))
}
