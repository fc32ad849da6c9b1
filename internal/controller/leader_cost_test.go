package controller

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
	"skyserve/plan"
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

// envBalancers is the folder of the service's authority for the process that serveBalancers runs in.
const envBalancers = "SKYSERVE_TEST_BALANCERS"

// serveBalancers serves the admin APIs of the balancers of bigService over mTLS until its input ends. POST /epoch sets the
// epoch of all replicas. The history has a day's curve for each region.
func serveBalancers(dir string) error {
	yaml, config, workers, snapshots := bigService()
	authority, err := identity.Home{Dir: dir}.Authority()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	lists := map[string][]byte{}
	encode := func(epoch uint64) {
		mu.Lock()
		defer mu.Unlock()
		for id, list := range workers {
			for i := range list {
				list[i].Epoch = epoch
			}
			lists[id], _ = json.Marshal(map[string]any{"workers": list})
		}
	}
	encode(0)
	history := func(w http.ResponseWriter, r *http.Request) {
		since, _ := strconv.ParseInt(r.FormValue("since"), 10, 64)
		points, noise := []telemetry.Point{}, rand.New(rand.NewPCG(1, 0))
		for m := since; m < time.Now().Unix()/60; m++ {
			for i, b := range config.Balancers {
				load := int64(3e6 * (1.2 + math.Sin(2*math.Pi*(float64(m)/1440+float64(i)/30))) * (0.9 + 0.2*noise.Float64()))
				points = append(points, telemetry.Point{Minute: m, Balancer: b.ID, Region: b.Region, Model: "org/m", Tier: service.TierNormal, Requests: load / 600, PromptTokens: load, CachedTokens: load / 3, OutputTokens: load / 5})
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"complete": true, "points": points})
	}
	addresses := map[string]string{}
	for _, b := range config.Balancers {
		mux, id := http.NewServeMux(), b.ID
		for path, text := range map[string]func() []byte{
			"/healthz": func() []byte { return nil }, "/v1/service": func() []byte { return []byte(yaml) }, "/v1/snapshot": func() []byte { return snapshots[id] },
			"/workers": func() []byte { mu.Lock(); defer mu.Unlock(); return lists[id] },
		} {
			mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text()) })
		}
		mux.HandleFunc("GET /v1/history", history)
		mux.HandleFunc("POST /add_worker", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })
		mux.HandleFunc("POST /epoch", func(_ http.ResponseWriter, r *http.Request) {
			epoch, _ := strconv.ParseUint(r.FormValue("epoch"), 10, 64)
			encode(epoch)
		})
		party, err := partyOf(authority, identity.Balancer, id)
		if err != nil {
			return err
		}
		ln, err := tls.Listen("tcp", "127.0.0.1:0", party.Server(identity.Operator, identity.Controller))
		if err != nil {
			return err
		}
		srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
		go func() { _ = srv.Serve(ln) }()
		addresses[id] = "https://" + ln.Addr().String()
	}
	if err := json.NewEncoder(os.Stdout).Encode(addresses); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// partyOf returns an identity of the service chat.
func partyOf(authority *identity.Authority, role identity.Role, id string) (identity.Party, error) {
	key, err := identity.NewKey()
	if err != nil {
		return identity.Party{}, err
	}
	chain, err := authority.Certify(key.Public(), identity.Name{Service: "chat", Role: role, ID: id}, time.Now(), time.Hour)
	return identity.NewParty(chain, key), err
}

// startBalancers runs serveBalancers in a process of its own and returns the addresses of the balancers.
func startBalancers(b *testing.B, dir string) (addresses map[string]string) {
	b.Helper()
	if err := json.NewDecoder(testkit.Rerun(b, envBalancers+"="+dir)).Decode(&addresses); err != nil {
		b.Fatal(err)
	}
	return addresses
}

// The cost of the leader of a service with 30 balancers and 1,000 replicas, over kept mTLS connections: rounds, in which it
// probes every balancer and lists its replicas; observations, in which it reads a snapshot of its own replicas from every
// balancer; minutes, in which it also reads the newest history; and reviews, hourly forecasts and plans from two weeks of
// history. %core is the share of a core at their intervals. The balancers run in another process. The reads of agents
// are measured by BenchmarkLeaderReadsAgents in package deploy.
func BenchmarkLeader(b *testing.B) {
	_, config, _, _ := bigService()
	dir := b.TempDir()
	authority, err := identity.Home{Dir: dir}.Create("chat", time.Now())
	if err != nil {
		b.Fatal(err)
	}
	self, err := partyOf(authority, identity.Controller, "x")
	if err != nil {
		b.Fatal(err)
	}
	hc := adminClient(config, &self)
	addresses := startBalancers(b, dir)
	var admins []*telemetry.Client
	for i := range config.Balancers {
		config.Balancers[i].Admin = addresses[config.Balancers[i].ID]
		admins = append(admins, telemetry.NewClient(config.Balancers[i].Admin, hc))
	}
	c := newController(config, &fakeState{}, nil, func(base string) adminAPI { return telemetry.NewClient(base, hc) }, slog.New(slog.DiscardHandler))
	l := &weekLease{token: 1}
	if err := c.runRound(context.Background(), l); err != nil { // attaches all replicas
		b.Fatal(err)
	}
	res, err := hc.Post(fmt.Sprintf("%s/epoch?epoch=%d", config.Balancers[0].Admin, c.current.Epoch()), "", nil)
	if err != nil || res.StatusCode != http.StatusOK {
		b.Fatal(res, err)
	}
	res.Body.Close()
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
	observe := func(minutes int64, history bool) (*Observed, error) {
		o, err := Observe(context.Background(), admins, time.Now().Unix()/60-minutes, history)
		if err == nil && (o.Counts[0].Replicas != len(config.Replicas)/len(config.Balancers)+1 || history && len(o.Points) == 0) {
			err = fmt.Errorf("%d replicas in %s, %d points, %v", o.Counts[0].Replicas, o.Counts[0].Region, len(o.Points), o.Notes)
		}
		return o, err
	}
	b.Run("round", measure(roundInterval, func() error { return c.runRound(context.Background(), l) }))
	b.Run("observation", measure(loopInterval, func() error { _, err := observe(0, false); return err }))
	b.Run("minute", measure(time.Minute, func() error {
		o, err := observe(plan.ObservedMinutes, true)
		if err == nil {
			_, err = o.History(time.Now())
		}
		return err
	}))
	if testing.Short() {
		return // a review takes seconds
	}
	const days = 14
	b.Run("review", measure(time.Hour, func() error {
		o, err := observe(days*24*60, true)
		if err != nil {
			return err
		}
		h, err := o.History(time.Now())
		if err != nil {
			return err
		}
		made, err := plan.Review(o.Spec, o.Counts, h, time.Now(), plan.ReviewOptions{Notes: o.Notes, RTT: o.RTT, Now: time.Now})
		if err == nil && len(made.Forecasts) != len(config.Balancers) {
			err = fmt.Errorf("%d forecasts", len(made.Forecasts))
		}
		return err
	}))
}
