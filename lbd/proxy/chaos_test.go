package proxy

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// faultyEngine is an engine that fails in different ways, by a seed.
func faultyEngine(seed uint64) http.HandlerFunc {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	moods := []http.HandlerFunc{
		speak("a", " b", " c"), speak("a", " b", " c"), speak("one"), whole(plainReply), status(500), status(429), status(400),
		cut("text/event-stream", chunk("a")), cut("text/event-stream", ""), cut("application/json", "{"), speakRaw(chunk("x")),
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			<-req.Context().Done()
		},
	}
	return func(w http.ResponseWriter, req *http.Request) { moods[draw(len(moods))](w, req) }
}

// disturbClients sends requests, one after the other, and disconnects early from some of them.
func disturbClients(b *balancer, seed uint64, requests int) {
	random := rand.New(rand.NewPCG(seed, 2))
	for range requests {
		ctx, leave := context.WithCancel(context.Background())
		body := streamBody
		if random.IntN(3) == 0 {
			body = plainBody
		}
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, b.url+chatPath, strings.NewReader(body))
		early := random.IntN(4) == 0
		if early {
			time.AfterFunc(time.Duration(random.IntN(2000))*time.Microsecond, leave)
		}
		if resp, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		leave()
	}
}

// churn adds, removes, drains and reports replicas until ctx ends.
func churn(ctx context.Context, b *balancer, urls map[string]string, seed uint64) {
	ids := []string{"us-0", "us-1", "us-2", "us-3"}
	random := rand.New(rand.NewPCG(seed, 3))
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		id := ids[random.IntN(len(ids))]
		switch random.IntN(8) {
		case 0:
			_, _ = b.RemoveReplica(id, 0)
		case 1:
			b.DrainReplica(id)
		case 2, 3:
			_, _ = b.AddReplica(service.ReplicaConfig{ID: id, URL: urls[id], Model: testModel})
		default:
			b.report(id)
		}
	}
}

// Under random faults every request ends in exactly one way, all counts return to zero, and the record
// replays every decision.
func TestChaos(t *testing.T) {
	for _, seed := range []uint64{1, 2} {
		var record bytes.Buffer
		o := testOptions(t)
		o.Record = &record
		o.Core.MaxWait = 100 * time.Millisecond
		o.Limits.FirstByteTimeout, o.Limits.ResponseTimeout, o.Limits.IdleTimeout = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
		o.Limits.RecordBuffer = 1 << 16
		rt, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(context.Background())
		rt.Start(running)
		b := serveWith(t, rt)
		urls := map[string]string{"us-3": refusing(t)}
		for i, id := range []string{"us-0", "us-1", "us-2"} {
			urls[id] = engine(t, faultyEngine(seed+uint64(i)*100))
			b.attach(id, urls[id])
		}
		b.attach("us-3", urls["us-3"])
		chaos, calm := context.WithCancel(context.Background())
		var churner, clients sync.WaitGroup
		churner.Go(func() { churn(chaos, b, urls, seed) })
		for i := range 8 {
			clients.Go(func() { disturbClients(b, seed*1000+uint64(i), 40) })
		}
		clients.Wait()
		calm()
		churner.Wait()
		b.srv.Close() // a request whose client disconnected immediately may not have been read yet
		c := b.settled()
		lawful(t, c)
		if c.Queued != 0 || c.Outstanding != 0 || c.Arrived == 0 || c.Finished == 0 || c.Rejected == 0 || c.Cancelled == 0 {
			t.Errorf("seed %d: counts after the chaos: %+v", seed, c)
		}
		for _, r := range b.View().Replicas {
			if r.Outstanding != 0 {
				t.Errorf("seed %d: %s has %d outstanding after the chaos", seed, r.ID, r.Outstanding)
			}
		}
		stop()
		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
		replays(t, record.Bytes())
		arrivals := int64(0)
		for _, p := range b.History(0) {
			arrivals += p.Requests
		}
		if arrivals != c.Arrived {
			t.Errorf("seed %d: the points count %d requests, core %d", seed, arrivals, c.Arrived)
		}
	}
}

func TestTwoBalancersUnderChaos(t *testing.T) {
	us, eu := pair(t, "secret")
	for i, b := range []*balancer{us, eu} {
		b.limits.FirstByteTimeout, b.limits.ResponseTimeout, b.limits.IdleTimeout = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
		b.attach("r-0", engine(t, faultyEngine(uint64(i)+7)))
	}
	chaos, calm := context.WithCancel(context.Background())
	var reporter, clients sync.WaitGroup
	reporter.Go(func() {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for n := 0; ; n++ {
			select {
			case <-chaos.Done():
				return
			case <-ticker.C:
				if n%4 == 0 {
					us.report("r-0")
				}
				eu.report("r-0")
				us.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-eu-0", PeerReport: &core.PeerReport{Models: eu.ModelLoads()}})
				eu.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-us-0", PeerReport: &core.PeerReport{Models: us.ModelLoads()}})
			}
		}
	})
	for i := range 6 {
		clients.Go(func() { disturbClients(us, uint64(i), 20) })
	}
	clients.Wait()
	calm()
	reporter.Wait()
	us.srv.Close()
	eu.srv.Close()
	here, there := us.settled(), eu.settled()
	lawful(t, here)
	lawful(t, there)
	if here.Queued+here.Outstanding+there.Queued+there.Outstanding != 0 || here.ForwardedOut == 0 {
		t.Errorf("counts after the chaos: %+v and %+v", here, there)
	}
}
