package lbd

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skyserve/internal/testkit"
	"skyserve/lbd/record"
)

var (
	chaosSeed     = flag.Uint64("chaos.seed", 0, "run TestChaos with this seed alone; 0 = with chaos.seeds of them")
	chaosSeeds    = flag.Uint64("chaos.seeds", 2, "how many seeds TestChaos runs with, from 1 on")
	chaosDuration = flag.Duration("chaos.duration", 1500*time.Millisecond, "how long TestChaos does harm with each seed")
	chaosClients  = flag.Int("chaos.clients", 24, "how many clients TestChaos has")
)

// Replicas, links and balancers are killed, hang, are slow and send garbage under load. Every request
// ends in a way that its client can detect. No response is wrong, or appears complete when it is not.
// No resources remain in use.
func TestChaos(t *testing.T) {
	testkit.Slow(t)
	first, last := uint64(1), *chaosSeeds
	if *chaosSeed > 0 {
		first, last = *chaosSeed, *chaosSeed
	}
	var all ledger
	for seed := first; seed <= last; seed++ {
		running, files := goleak.IgnoreCurrent(), openFiles()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Logf("to replay: go test ./lbd -run TestChaos -count=1 -v -chaos.seed=%d -chaos.duration=%s", seed, *chaosDuration)
			one := survive(t, seed)
			t.Logf("%s", one)
			all.add(one)
		})
		if err := goleak.Find(running); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		testkit.Eventually(t, "no more files are open than before", func() bool { return openFiles() <= files })
	}
	if first != last {
		t.Logf("all seeds:\n%s", &all)
	}
}

// openFiles returns the number of open files of this process, if the system reports it.
func openFiles() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

// maxMemory is the maximum growth of a service's memory from before the faults to the end.
const maxMemory = 64 << 20

// survive runs a service with the faults of a seed.
func survive(t *testing.T, seed uint64) *ledger {
	w := newWorld(t, seed)
	hc := client(t)
	for _, s := range w.slots {
		w.answers(hc, s)
	}
	testkit.Eventually(t, "the controller has assigned the replicas", w.control.assigned.Load)
	before := heap()
	done, end := context.WithTimeout(context.Background(), *chaosDuration)
	defer end()
	w.done = done
	var harming, asking sync.WaitGroup
	harming.Go(func() { w.harmEngines(done, rand.New(rand.NewPCG(seed, 1))) })
	harming.Go(func() { w.harmLinks(done, rand.New(rand.NewPCG(seed, 2))) })
	harming.Go(func() { w.harmBalancers(done, rand.New(rand.NewPCG(seed, 3))) })
	for i := range *chaosClients {
		asking.Go(func() { w.client(i) })
	}
	harming.Wait()
	asking.Wait()
	for _, s := range w.slots {
		w.answers(hc, s)
	}
	w.empty(hc)
	if after := heap(); after > before+maxMemory {
		t.Errorf("%d bytes of memory were in use before, %d are after", before, after)
	}
	b := w.book()
	if t.Failed() {
		t.Logf("actions:\n%s", strings.Join(w.history, "\n"))
	}
	return b
}

// heap returns the size of the heap in bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// answers waits until a balancer serves.
func (w *world) answers(hc *http.Client, s *balancerSlot) {
	testkit.Eventually(w.T, s.cfg.ID+" serves", func() bool {
		body := `{"model":"llama","max_tokens":2,"messages":[{"role":"user","content":"well?"}]}`
		n, _ := s.now()
		resp, err := hc.Post(n.public+chatPath, "application/json", strings.NewReader(body))
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode == http.StatusOK
	})
}

// empty checks that nothing is in flight anywhere.
func (w *world) empty(hc *http.Client) {
	for _, s := range w.slots {
		n, _ := s.now()
		n.quiet(w.T)
		n.unladen(w.T, hc)
	}
	for _, e := range w.engines {
		testkit.Eventually(w.T, e.id+" has nothing to do", func() bool {
			page := text(w.T, hc, e.direct+"/metrics")
			return figure(page, "vllm:num_requests_running") == 0 && figure(page, "vllm:num_requests_waiting") == 0
		})
	}
}

// text returns the text of a page.
func text(t *testing.T, hc *http.Client, url string) string {
	resp, err := hc.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// absent is the figure of a missing metric.
const absent = -1e9

// figure returns the sum of a metric on a page.
func figure(page, name string) float64 {
	sum, found := 0.0, false
	for line := range strings.Lines(page) {
		var v float64
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			if _, err := fmt.Sscan(rest[strings.LastIndexByte(strings.TrimSpace(rest), ' ')+1:], &v); err == nil {
				sum, found = sum+v, true
			}
		}
	}
	if !found {
		return absent
	}
	return sum
}

// book counts everything, and compares the results of clients with the reports of the live
// balancers.
func (w *world) book() *ledger {
	b := newLedger()
	for _, a := range w.attempts {
		b.enter(a)
		if a.fate == lost {
			w.Errorf("%s (%s): %s", a.id, a.kind, a.why)
		}
		if a.fate == broken && !strings.Contains(a.kind, "tools") && a.kind != "JSON" {
			w.Logf("%s (%s), which could be continued: %s", a.id, a.kind, a.reply.broken)
		}
	}
	for _, d := range w.deaths {
		b.deaths = append(b.deaths, *d)
		if d.decided > maxProbes {
			w.Errorf("%s counted as dead after %d probes", d.slot.cfg.ID, d.decided)
		}
	}
	for _, s := range w.slots {
		n, _ := s.now()
		w.compare(s.cfg.ID, n)
		for _, a := range w.attempts {
			b.explain(a, w.record(n, a.id))
		}
	}
	return b
}

// maxProbes is the maximum number of probes until a dead balancer counts as dead. The adopting
// balancer may be unreachable itself at that time.
const maxProbes = 3

// compare compares a balancer's counts with the results of its clients.
func (w *world) compare(id string, n *node) {
	reported := map[outcome]int{}
	for _, m := range n.scrape(w.T)["skyserve_requests_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		end := map[string]outcome{"finished": served, "rejected": rejected, "refused": rejected, "cancelled": cancelled, "failed": broken}[labels["outcome"]]
		if end == cancelled && labels["status"] != "499" {
			end = rejected
		}
		reported[end] += int(m.GetCounter().GetValue())
	}
	seen := w.tallies[n]
	for _, end := range []outcome{served, rejected, broken} {
		if extra := reported[end] - seen.ends[end]; extra < 0 || extra > seen.unclear+maxAsides {
			w.Errorf("%s counted %d requests as %s, its clients %d and %d that are unclear", id, reported[end], end, seen.ends[end], seen.unclear)
		}
	}
}

// maxAsides limits the requests of the test itself that a balancer counted: see world.answers.
const maxAsides = 2000

// record returns a balancer's record of a request; nil if it has none.
func (w *world) record(n *node, id string) *record.RequestRecord {
	raw, err := n.admin.Decision(context.Background(), id)
	if err != nil {
		return nil
	}
	var d record.RequestRecord
	if err := json.Unmarshal(raw, &d); err != nil {
		w.Fatal(err)
	}
	return &d
}

// later waits, unless ctx ends first.
func later(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// harmEngines injects faults into engines, at most two at a time, until ctx ends; then it clears them.
func (w *world) harmEngines(ctx context.Context, random *rand.Rand) {
	hc := client(w.T)
	var hurting sync.WaitGroup
	defer hurting.Wait()
	order := random.Perm(len(w.engines))
	for round := 0; ; round++ {
		e := w.engines[order[round%len(order)]]
		kind := engineFaults[random.IntN(len(engineFaults))]
		lasts := time.Duration(100+random.IntN(500)) * time.Millisecond
		hurting.Go(func() {
			w.note("engine %s: %s for %s", e.id, kind.name, lasts)
			kind.do(e, hc)
			later(ctx, lasts)
			e.line.clearFault()
			e.fault(hc, `{}`)
		})
		if !later(ctx, max(lasts/2, 200*time.Millisecond)) {
			return
		}
	}
}

// fault configures the failure of an engine.
func (e *chaosEngine) fault(hc *http.Client, faults string) {
	if resp, err := hc.Post(e.direct+"/fault", "application/json", strings.NewReader(faults)); err == nil {
		resp.Body.Close()
	}
}

// engineFaults are the faults of engines.
var engineFaults = []struct {
	name string
	do   func(*chaosEngine, *http.Client)
}{
	{"killed", func(e *chaosEngine, _ *http.Client) { e.line.cut() }},
	{"killed", func(e *chaosEngine, _ *http.Client) { e.line.cut() }},
	{"hangs", func(e *chaosEngine, _ *http.Client) { e.line.hang() }},
	{"reset", func(e *chaosEngine, _ *http.Client) { e.line.reset() }},
	{"turns connections away", func(e *chaosEngine, _ *http.Client) { e.line.setFault(linkFault{away: true}); e.line.reset() }},
	{"slow line", func(e *chaosEngine, _ *http.Client) { e.line.setFault(linkFault{pace: 5 * time.Millisecond}) }},
	{"answers end early", func(e *chaosEngine, _ *http.Client) { e.line.setFault(linkFault{bite: 700}) }},
	{"answers end at once", func(e *chaosEngine, _ *http.Client) { e.line.setFault(linkFault{bite: 30}) }},
	{"half closed", func(e *chaosEngine, _ *http.Client) { e.line.closeHalf() }},
	{"talks nonsense", func(e *chaosEngine, _ *http.Client) {
		e.line.setFault(linkFault{greeting: "\x16\x03\x01 what?\r\n"})
		e.line.reset()
	}},
	{"is another server", func(e *chaosEngine, _ *http.Client) {
		e.line.setFault(linkFault{greeting: "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"})
		e.line.reset()
	}},
	{"half of an answer's head", func(e *chaosEngine, _ *http.Client) {
		e.line.setFault(linkFault{greeting: "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Len"})
		e.line.reset()
	}},
	{"fails", func(e *chaosEngine, hc *http.Client) { e.fault(hc, `{"error-rate":0.5}`) }},
	{"breaks off", func(e *chaosEngine, hc *http.Client) { e.fault(hc, `{"reset-after-tokens":7}`) }},
	{"slow", func(e *chaosEngine, hc *http.Client) { e.fault(hc, `{"slow":4}`) }},
	{"stands still", func(e *chaosEngine, hc *http.Client) { e.fault(hc, `{"hang-after":"0s"}`) }},
}

// harmLinks injects faults into the links from peers to a balancer, one at a time.
func (w *world) harmLinks(ctx context.Context, random *rand.Rand) {
	kinds := []struct {
		name string
		do   func(*link)
	}{
		{"hangs", (*link).hang},
		{"reset", (*link).reset},
		{"slow", func(l *link) { l.setFault(linkFault{pace: 20 * time.Millisecond}) }},
		{"loses heartbeats", func(l *link) { l.setFault(linkFault{deaf: "GET /skyserve/"}) }},
		{"half closed", (*link).closeHalf},
	}
	for later(ctx, time.Duration(50+random.IntN(200))*time.Millisecond) {
		s, kind, lasts := w.slots[random.IntN(len(w.slots))], kinds[random.IntN(len(kinds))], time.Duration(100+random.IntN(500))*time.Millisecond
		if n, _ := s.now(); n == nil {
			continue
		}
		w.note("peers of %s: %s for %s", s.cfg.ID, kind.name, lasts)
		kind.do(s.back)
		later(ctx, lasts)
		if n, _ := s.now(); n != nil {
			s.back.clearFault()
		}
	}
}

// harmBalancers kills a balancer. When its replicas are adopted and its clients are served, it starts
// another one in its place, then kills the next one. Between two kills, a balancer hangs.
func (w *world) harmBalancers(ctx context.Context, random *rand.Rand) {
	order := random.Perm(len(w.slots))
	for round := 0; later(ctx, time.Duration(200+random.IntN(300))*time.Millisecond); round++ {
		s := w.slots[order[round%len(order)]]
		w.note("balancer %s: killed", s.cfg.ID)
		d := w.kill(s)
		select {
		case <-d.adoption:
		case <-time.After(testkit.Timeout):
			w.Errorf("nobody adopted the replicas of %s", s.cfg.ID)
		}
		w.note("balancer %s: follows after %s", s.cfg.ID, time.Since(d.at))
		w.sit(s)
		if !later(ctx, time.Duration(300+random.IntN(300))*time.Millisecond) {
			return
		}
		o, lasts := w.slots[random.IntN(len(w.slots))], time.Duration(100+random.IntN(900))*time.Millisecond
		lines := []*link{o.front, o.back, o.admin}
		w.note("balancer %s: hangs for %s", o.cfg.ID, lasts)
		for _, l := range lines {
			l.hang()
		}
		later(ctx, lasts)
		for _, l := range lines {
			l.clearFault()
		}
	}
}

// ledger is the cost of the guarantees.
type ledger struct {
	ends    map[outcome]int
	reasons map[string]int // of rejections
	breaks  map[string]int // of answers, by the kind of request
	noUsage int
	// Requests whose target failed, by whether the client had received part of the response.
	early, late struct{ hit, saved int }
	extra       []time.Duration // before the first token: the delay until it was sent to the target that served it
	pauses      []time.Duration // after it: the longest in the answer
	deaths      []death
}

func newLedger() *ledger {
	return &ledger{ends: map[outcome]int{}, reasons: map[string]int{}, breaks: map[string]int{}}
}

func (b *ledger) enter(a *attempt) {
	b.ends[a.fate]++
	if a.fate == rejected {
		b.reasons[a.why]++
	}
	if a.fate == broken {
		b.breaks[a.kind]++
	}
	if a.noUsage && a.fate == served {
		b.noUsage++
	}
}

// explain counts the effects of failed targets on a request.
func (b *ledger) explain(a *attempt, d *record.RequestRecord) {
	if d == nil || a.fate == cancelled {
		return
	}
	early, late := false, false
	for _, try := range d.Attempts {
		late = late || strings.Contains(try.Failure, " after ") && strings.Contains(try.Failure, "token")
		early = early || try.Failure != "" && !late
	}
	switch {
	case late:
		b.late.hit++
		if a.fate == served {
			b.late.saved++
			b.pauses = append(b.pauses, a.pause)
		}
	case early:
		b.early.hit++
		if a.fate == served {
			b.early.saved++
			b.extra = append(b.extra, time.Duration((d.Attempts[len(d.Attempts)-1].AtMillis-d.Attempts[0].AtMillis)*float64(time.Millisecond)))
		}
	}
}

func (b *ledger) add(o *ledger) {
	if b.ends == nil {
		*b = *newLedger()
	}
	for end, n := range o.ends {
		b.ends[end] += n
	}
	for reason, n := range o.reasons {
		b.reasons[reason] += n
	}
	for kind, n := range o.breaks {
		b.breaks[kind] += n
	}
	b.noUsage += o.noUsage
	b.early.hit, b.early.saved = b.early.hit+o.early.hit, b.early.saved+o.early.saved
	b.late.hit, b.late.saved = b.late.hit+o.late.hit, b.late.saved+o.late.saved
	b.extra, b.pauses, b.deaths = append(b.extra, o.extra...), append(b.pauses, o.pauses...), append(b.deaths, o.deaths...)
}

// String returns the table of the guarantees.
func (b *ledger) String() string {
	var out strings.Builder
	n := b.ends
	fmt.Fprintf(&out, "1  requests accepted %d = served %d + rejected %d + cancelled %d + broken %d + lost with their balancer %d; lost otherwise %d\n",
		n[served]+n[rejected]+n[cancelled]+n[broken]+n[orphaned]+n[lost], n[served], n[rejected], n[cancelled], n[broken], n[orphaned], n[lost])
	fmt.Fprintf(&out, "   rejected because of %v; broken, by kind: %v; served without their usage %d; connections refused %d\n", b.reasons, b.breaks, b.noUsage, n[unreached])
	fmt.Fprintf(&out, "2  target failed before the first token: %d, served elsewhere %d, later by %s\n", b.early.hit, b.early.saved, spread(b.extra))
	fmt.Fprintf(&out, "   target failed after it: %d, continued to the end %d, with a pause of %s\n", b.late.hit, b.late.saved, spread(b.pauses))
	var decided, probes, adopted, near, far []time.Duration
	orphans := 0
	for _, d := range b.deaths {
		orphans += d.orphans
		decided, probes = append(decided, time.Duration(d.decided)), append(probes, time.Duration(d.probes))
		adopted = append(adopted, d.adopted)
		switch {
		case len(d.served) == 0:
		case d.alone:
			far = append(far, slices.Min(d.served))
		default:
			near = append(near, slices.Min(d.served))
		}
	}
	fmt.Fprintf(&out, "3  balancers killed %d, with %d requests; taken for dead after %d probes at most, replicas adopted after %d at most, %s\n",
		len(b.deaths), orphans, maximum(decided), maximum(probes), spread(adopted))
	fmt.Fprintf(&out, "   first of their clients served again by another balancer of the region after %s; by one of another region after %s\n", spread(near), spread(far))
	return out.String()
}

func maximum(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	return slices.Max(list)
}

// spread returns the median and the maximum of durations.
func spread(list []time.Duration) string {
	if len(list) == 0 {
		return "nothing"
	}
	slices.Sort(list)
	return fmt.Sprintf("%s (p50), %s (max)", list[len(list)/2].Round(100*time.Microsecond), list[len(list)-1].Round(100*time.Microsecond))
}
