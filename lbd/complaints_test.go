package lbd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine/server"
	"skyserve/internal/testkit"
)

// Complaints of users of other balancers, tested with a whole balancer. The numbers refer to the
// project's list of complaints. The other complaints are tested in lbd/core.

// turn is a message of a conversation.
type turn struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// say sends a conversation and returns the response.
func (n *node) say(ctx context.Context, hc *http.Client, stream bool, turns ...turn) (answer, error) {
	body, err := json.Marshal(map[string]any{"model": "llama", "stream": stream, "messages": turns, "max_tokens": 8})
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.public+chatPath, strings.NewReader(string(body)))
	if err != nil {
		return answer{}, err
	}
	resp, err := hc.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text)}, err
}

// mustSay is say without errors; it returns the replica that responded.
func (n *node) mustSay(t *testing.T, hc *http.Client, turns ...turn) string {
	t.Helper()
	a, err := n.say(t.Context(), hc, false, turns...)
	if err != nil || a.status != http.StatusOK {
		t.Fatalf("%d %s, %v", a.status, a.body, err)
	}
	return a.header.Get("X-Skyserve-Replica")
}

// words returns a long text that is different for each number.
func words(n int) string {
	random := rand.New(rand.NewPCG(uint64(n), 0))
	var out strings.Builder
	for range 300 {
		fmt.Fprintf(&out, "%x ", random.Uint32())
	}
	return out.String()
}

// A replica with the prefixes of many conversations dies: no client receives an error, and its
// conversations do not all move to one other replica.
func TestComplaint4ReplicaWithPrefixesDies(t *testing.T) {
	engines := map[string]*engine{}
	cfg := config("lb-us-0", "local/us")
	for _, id := range []string{"us-0", "us-1", "us-2"} {
		engines[id] = newEngine(t, "llama", "")
		cfg.Replicas = append(cfg.Replicas, service.ReplicaConfig{ID: id, URL: engines[id].URL, Model: "llama"})
	}
	n := start(t, cfg, Options{})
	ready(t, n)
	testkit.Eventually(t, "all replicas are ready", func() bool { return n.readyReplicas(t) == 3 })
	hc := client(t)
	const conversations = 24
	served := map[string][]int{}
	for i := range conversations {
		who := n.mustSay(t, hc, turn{"user", words(i)})
		served[who] = append(served[who], i)
	}
	dying := "us-0"
	if len(served[dying]) < 3 || len(served) != 3 {
		t.Fatalf("conversations by replica: %v; want them shared", served)
	}
	engines[dying].CloseClientConnections()
	engines[dying].Close()
	heirs := map[string]int{}
	for _, i := range served[dying] {
		for range 3 {
			heirs[n.mustSay(t, hc, turn{"user", words(i)}, turn{"assistant", "hello"}, turn{"user", "go on"})]++
		}
	}
	if heirs[dying] > 0 || len(heirs) != 2 {
		t.Errorf("what %s held went to %v, want both others", dying, heirs)
	}
	n.quiet(t)
}

func (n *node) readyReplicas(t *testing.T) (ready int) {
	for _, r := range n.snapshot(t).Regions {
		for _, rep := range r.Replicas {
			if rep.State == service.StateReady {
				ready++
			}
		}
	}
	return ready
}

// Engines fail, close connections and hang up, clients disconnect at any moment: afterwards every
// counter is zero.
func TestComplaint5LoadCountersReturnToZero(t *testing.T) {
	cfg := config("lb-us-0", "local/us")
	for id, faults := range map[string]string{"us-0": "", "us-1": "error-rate=0.3", "us-2": "reset-after-tokens=3", "us-3": "die-after=20"} {
		f, err := server.ParseFaults([]string{faults})
		if err != nil {
			t.Fatal(err)
		}
		url := simulatedUntilItDies(t, server.Options{Model: "llama", Speed: 1000, Seed: 7, Faults: f})
		cfg.Replicas = append(cfg.Replicas, service.ReplicaConfig{ID: id, URL: url, Model: "llama", Kind: service.EngineSim})
	}
	n := start(t, cfg, Options{})
	ready(t, n)
	var clients sync.WaitGroup
	for c := range 8 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 1))
			hc := &http.Client{Transport: &http.Transport{}, Timeout: testkit.Timeout}
			defer hc.CloseIdleConnections()
			for i := range 20 {
				ctx, leave := context.WithCancel(context.Background())
				if random.IntN(4) == 0 {
					time.AfterFunc(time.Duration(random.IntN(3000))*time.Microsecond, leave)
				}
				a, err := n.say(ctx, hc, random.IntN(2) == 0, turn{"user", words(100*c + i)})
				if err == nil && a.status != http.StatusOK && !strings.Contains(a.body, `{"error":{"message":`) {
					t.Errorf("%d %s", a.status, a.body)
				}
				leave()
			}
		})
	}
	clients.Wait()
	n.quiet(t)
	n.unladen(t, client(t))
}

// unladen checks that every gauge of requests in flight becomes zero. The handler of a request ends after its replica
// has been released, thus the gauges follow quiet.
func (n *node) unladen(t *testing.T, hc *http.Client) {
	t.Helper()
	names := []string{
		"skyserve_queue_depth", "skyserve_in_flight", "skyserve_model_queued", "skyserve_model_outstanding",
		"skyserve_replica_outstanding", "skyserve_replica_held", "skyserve_peer_outstanding",
	}
	testkit.Eventually(t, "all of "+strings.Join(names, ", ")+" are zero", func() bool {
		page := text(t, hc, n.adminURL+"/metrics")
		return !slices.ContainsFunc(names, func(name string) bool {
			v := figure(page, name)
			if name == "skyserve_in_flight" || name == "skyserve_queue_depth" { // the others have no line without replicas or peers
				return v != 0
			}
			return v != 0 && v != absent
		})
	})
}

// simulatedUntilItDies is simulatedAs for an engine that a fault may terminate.
func simulatedUntilItDies(t *testing.T, o server.Options) string {
	t.Helper()
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return runEngine(t, s, server.ErrDied)
}

// A client disconnects at any moment: the engine detects it immediately, at any distance.
func TestComplaint6HangupReachesEngine(t *testing.T) {
	for _, where := range []string{"here", "at a peer"} {
		for _, stream := range []bool{true, false} {
			for _, talked := range []bool{true, false} {
				if talked && !stream {
					continue // no event precedes the end
				}
				t.Run(fmt.Sprintf("%s, stream %v, in the middle %v", where, stream, talked), func(t *testing.T) {
					requested, gone := make(chan struct{}, 1), make(chan struct{}, 1)
					url := serving(t, func(w http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						if talked {
							w.Header().Set("Content-Type", "text/event-stream")
							_, _ = io.WriteString(w, `data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`+"\n\n")
							_ = http.NewResponseController(w).Flush()
						}
						requested <- struct{}{}
						<-r.Context().Done()
						gone <- struct{}{}
					})
					n := start(t, config("lb-eu-0", "local/eu", service.ReplicaConfig{ID: "eu-0", URL: url, Model: "llama"}), Options{})
					ready(t, n)
					nodes := []*node{n}
					if where == "at a peer" {
						cfg := config("lb-us-0", "local/us")
						cfg.Peers = []service.PeerConfig{{ID: "lb-eu-0", Region: "local/eu", URL: n.public}}
						n = start(t, cfg, Options{})
						ready(t, n)
						nodes = append(nodes, n)
					}
					ctx, leave := context.WithCancel(context.Background())
					var left sync.WaitGroup
					left.Go(func() {
						if _, err := n.say(ctx, client(t), stream, turn{"user", "hello"}); err == nil {
							t.Error("it got a response")
						}
					})
					<-requested
					leave()
					<-gone
					left.Wait()
					for _, n := range nodes {
						n.quiet(t)
					}
				})
			}
		}
	}
}

// No replica is ready: the balancer runs, reports this, and serves queued requests as soon as one
// replica becomes ready, regardless of the others.
func TestComplaint7StartsWithNoReplica(t *testing.T) {
	first, second := testkit.FreeAddr(), testkit.FreeAddr()
	n := start(t, config("lb-us-0", "local/us",
		service.ReplicaConfig{ID: "us-0", URL: "http://" + first, Model: "llama"},
		service.ReplicaConfig{ID: "us-1", URL: "http://" + second, Model: "llama"},
	), Options{})
	hc := client(t)
	if got := status(t, hc, n.public+"/healthz"); got != http.StatusOK {
		t.Errorf("/healthz: %d", got)
	}
	if got := status(t, hc, n.public+"/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d", got)
	}
	answered := make(chan answer, 1)
	go func() {
		a, err := n.say(t.Context(), hc, false, turn{"user", "hello"})
		if err != nil {
			t.Error(err)
		}
		answered <- a
	}()
	testkit.Eventually(t, "the request waits", func() bool { return n.outstanding(t) == 1 })
	newEngine(t, "llama", second)
	if a := <-answered; a.status != http.StatusOK || a.header.Get("X-Skyserve-Replica") != "us-1" {
		t.Errorf("%d %s by %s", a.status, a.body, a.header.Get("X-Skyserve-Replica"))
	}
}

// gate blocks requests to engines until two engines have one.
type gate struct {
	mu    sync.Mutex
	asked map[string]bool
	open  chan struct{}
}

// before starts an engine behind the gate.
func (g *gate) before(t *testing.T, engine string) string {
	t.Helper()
	to, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			g.arrive(engine)
			select {
			case <-g.open:
			case <-r.Context().Done():
				return
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// arrive counts an engine with a request.
func (g *gate) arrive(engine string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked == nil {
		g.asked = map[string]bool{}
	}
	if g.asked[engine] = true; len(g.asked) == 2 {
		select {
		case <-g.open:
		default:
			close(g.open)
		}
	}
}

// Many conversations start with the same system prompt, and continue at their replica: the whole
// conversation is the key, not its first message.
func TestComplaint10WholeConversationIsTheKey(t *testing.T) {
	cfg := config("lb-us-0", "local/us")
	cfg.Balancer.Policy = "skylb" // uses only the prefix, regardless of the measured speed of replicas
	held := &gate{open: make(chan struct{})}
	for _, id := range []string{"us-0", "us-1", "us-2"} {
		cfg.Replicas = append(cfg.Replicas, service.ReplicaConfig{ID: id, URL: held.before(t, simulated(t)), Model: "llama", Kind: service.EngineSim})
	}
	n := start(t, cfg, Options{})
	ready(t, n)
	testkit.Eventually(t, "all replicas are ready", func() bool { return n.readyReplicas(t) == 3 })
	hc := client(t)
	system := turn{"system", words(0)}
	const conversations = 9
	var talks [conversations][]turn
	var first [conversations]string
	used := map[string]bool{}
	// All start before the first response, otherwise the system prompt would keep them together.
	var begun sync.WaitGroup
	for i := range conversations {
		talks[i] = []turn{system, {"user", words(1000 + i)}}
		begun.Go(func() {
			a, err := n.say(t.Context(), client(t), false, talks[i]...)
			if err != nil || a.status != http.StatusOK {
				t.Errorf("%d %s, %v", a.status, a.body, err)
				return
			}
			first[i] = a.header.Get("X-Skyserve-Replica")
		})
	}
	begun.Wait()
	for _, id := range first {
		used[id] = true
	}
	if len(used) < 2 {
		t.Fatalf("all conversations began at %v", first)
	}
	for round := range 3 {
		for i := range conversations {
			talks[i] = append(talks[i], turn{"assistant", words(2000 + 100*round + i)}, turn{"user", words(3000 + 100*round + i)})
			if got := n.mustSay(t, hc, talks[i]...); got != first[i] {
				t.Errorf("turn %d of conversation %d went to %s, the one before to %s", round+2, i, got, first[i])
			}
		}
	}
}
