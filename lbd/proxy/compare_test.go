//go:build compare && linux

// Comparison of skyserve's balancer with nginx and haproxy on this machine, with the same engine,
// which computes nothing. `make compare-proxy` runs it. It does not check times, only that every
// response was correct.
package proxy_test

import (
	"context"
	"flag"
	"fmt"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"
)

var (
	binaryFlag   = flag.String("binary", "../../bin/skyserve", "skyserve, as built for release")
	roundsFlag   = flag.Int("rounds", 5, "rounds of each load; medians are shown")
	lengthFlag   = flag.Duration("length", 4*time.Second, "length of a round")
	gapFlag      = flag.Duration("gap", 4*time.Millisecond, "time between two events of a stream")
	eventsFlag   = flag.Int("events", 64, "events of a stream")
	streamsFlag  = flag.Int("streams", 10000, "streams that are held at the same time")
	profilesFlag = flag.String("profiles", "", "existing folder for profiles of skyserve, taken in rounds of their own")
)

const (
	compareReplicas = 4               // addresses of the engine, so that there is a choice
	heldGap         = 2 * time.Second // between two events of a held stream
	warmUp          = time.Second
	idleLength      = 3 * time.Second
	heldLength      = 3 * time.Second // each held stream has an event within it
	fewStreams      = 100             // with fewer, noise hides the cost of a stream
	spareFiles      = 1000            // files that a proxy opens in addition to two sockets per stream
	profileLength   = 10 * time.Second
)

// load is the behaviour of the clients in a round.
type load struct {
	name        string
	stream      bool
	connections int
}

var loads = []load{
	{"small POSTs", false, 16},
	{"small POSTs", false, 64},
	{"streams", true, 16},
	{"streams", true, 64},
}

// comparison is one run of the comparison.
type comparison struct {
	*testing.T
	ctx     context.Context
	engine  *group
	engines []string
	streams int
	idle    []float64 // CPU seconds per second of each rival without requests
	out     strings.Builder
}

func TestCompareProxy(t *testing.T) {
	needPrograms(t)
	if *roundsFlag < 1 || *eventsFlag < 1 || *streamsFlag < fewStreams {
		t.Fatalf("comparing proxies: want -rounds and -events of 1 or more and -streams of %d or more, got %d, %d and %d", fewStreams, *roundsFlag, *eventsFlag, *streamsFlag)
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c := &comparison{T: t, ctx: ctx, streams: *streamsFlag}
	t.Cleanup(func() { fmt.Println(c.out.String()) }) // results are printed even if a later part fails
	fmt.Fprintf(&c.out, "\n%s\n%s; %s; %s\n", machine(), version(t, "nginx", "-v"), version(t, "haproxy", "-v"), version(t, *binaryFlag, "version"))
	fmt.Fprintf(&c.out, "each with as many workers or threads as there are cores, before %d replicas that compute nothing; bodies of %d bytes\n", compareReplicas, bodySize)
	c.fitStreams()
	c.engine = startHelper(ctx, t, "engine", engineJob{Replicas: compareReplicas, Events: *eventsFlag, Gap: *gapFlag, HeldGap: heldGap})
	c.engine.readLine(t, &c.engines)

	c.compareLoads()
	c.compareHeld()
}

// fitStreams limits the number of streams to the sockets that a proxy may open.
func (c *comparison) fitStreams() {
	c.Helper()
	files := raiseFileLimit(c.T, 2*c.streams+spareFiles)
	limit := (files - spareFiles) / 2
	switch {
	case limit < fewStreams:
		c.Fatalf("comparing held streams: only %d files may be open\nhint: ulimit -n %d", files, 2*c.streams+spareFiles)
	case limit < c.streams:
		fmt.Fprintf(&c.out, "%d held streams instead of %d: only %d files may be open (ulimit -n)\n", limit, c.streams, files)
		c.streams = limit
	}
}

// compareLoads measures each load in interleaved rounds, so that temporary noise on the machine
// affects all proxies.
func (c *comparison) compareLoads() {
	var running []contender
	for _, r := range rivals() {
		running = append(running, r.start(c.ctx, c.T, c.engines, c.streams))
	}
	c.compareIdle(running)
	for k, l := range loads {
		seed := uint16(k+1) << 8 // each load has different conversations
		rounds := make([][]round, len(running))
		for i := range *roundsFlag + 1 {
			for j, p := range running {
				length := *lengthFlag
				if i == 0 {
					length = warmUp
				}
				r := c.run(p, l, length, seed+uint16(i))
				if i > 0 {
					rounds[j] = append(rounds[j], r)
				}
			}
			c.Logf("%s, %d connections: round %d of %d", l.name, l.connections, i, *roundsFlag)
		}
		c.report(l, rounds)
		c.profile(running, fmt.Sprintf("%s-%d", l.name, l.connections), func(p contender) {
			c.run(p, l, profileLength, seed+uint16(*roundsFlag+1))
		})
	}
	for _, p := range running {
		p.end(c.T)
	}
}

// round is the result of one round for one proxy.
type round struct {
	clientResult
	CPU time.Duration
	RSS int64
}

// run makes a client send load to a proxy for a while.
func (c *comparison) run(p contender, l load, length time.Duration, seed uint16) round {
	c.Helper()
	client := startHelper(c.ctx, c.T, "client", clientJob{
		Address: p.address, Connections: l.connections, Length: length, Stream: l.stream, Events: *eventsFlag, Seed: seed,
	})
	defer client.end(c.T)
	c.waitForLine(client, "ready")
	before := p.cpu(c.T)
	client.writeLine(c.T, nil)
	var r round
	client.readLine(c.T, &r.clientResult)
	r.CPU, r.RSS = p.cpu(c.T)-before, p.rss(c.T)
	c.check(p, r.clientResult)
	return r
}

// waitForLine waits for a message of the client.
func (c *comparison) waitForLine(client *group, want string) {
	c.Helper()
	got, err := client.stdout.ReadString('\n')
	if strings.TrimSpace(got) != want {
		c.Fatalf("hearing the client: want %q, got %q (%v): %s", want, got, err, client.lastWords())
	}
}

// check fails if a response was wrong or missing.
func (c *comparison) check(p contender, r clientResult) {
	c.Helper()
	if len(r.Failures) > 0 || r.Requests == 0 {
		c.Fatalf("asking %s: %d requests were answered, and: %s", p.name, r.Requests, strings.Join(r.Failures, "\n"))
	}
}

// compareIdle measures the CPU use without requests: probes of replicas, timers. It is part of every
// load.
func (c *comparison) compareIdle(running []contender) {
	before := make([]time.Duration, len(running))
	began := time.Now()
	for i, p := range running {
		before[i] = p.cpu(c.T)
	}
	c.pause(idleLength)
	w := c.table("without requests", "CPU ms/s", "RSS MB")
	for i, p := range running {
		c.idle = append(c.idle, (p.cpu(c.T)-before[i]).Seconds()/time.Since(began).Seconds())
		fmt.Fprintf(w, "%s\t%.2f\t%.0f\n", rivals()[i].name, 1000*c.idle[i], megabytes(p.rss(c.T)))
	}
	_ = w.Flush()
	c.profile(running, "idle", func(contender) {})
}

// pause waits, or fails when the test is interrupted.
func (c *comparison) pause(length time.Duration) {
	c.Helper()
	select {
	case <-time.After(length):
	case <-c.ctx.Done():
		c.Fatal("interrupted")
	}
}

// profile saves a CPU profile of skyserve under load, in a separate round.
func (c *comparison) profile(running []contender, name string, meanwhile func(contender)) {
	query := fmt.Sprintf("profile?seconds=%d", int(profileLength.Seconds()))
	for i, p := range running {
		if *profilesFlag == "" || p.admin == "" {
			continue
		}
		done := make(chan error, 1)
		go func() { done <- p.saveProfile(query, profileLength, profileFile(i, name)) }()
		meanwhile(p)
		if err := <-done; err != nil {
			c.Errorf("profiling %s: %v", p.name, err)
		}
	}
}

// profileFile returns the file for a profile of a rival.
func profileFile(number int, name string) string {
	return filepath.Join(*profilesFlag, strings.ReplaceAll(rivals()[number].name+"-"+name+".pprof", " ", "-"))
}

// compareHeld measures the memory of many concurrent streams, with freshly started proxies: memory of
// earlier requests would hide that of the streams.
func (c *comparison) compareHeld() {
	w := c.table(fmt.Sprintf("%d held streams, an event every %s", c.streams, heldGap), "KB/stream", "RSS MB before", "RSS MB with them", "CPU us/event")
	defer w.Flush()
	for i, r := range rivals() {
		p := r.start(c.ctx, c.T, c.engines, c.streams)
		before := p.rss(c.T)
		held, perEvent := c.hold(p, profileFile(i, "held"))
		p.end(c.T)
		c.Logf("held %d streams through %s", c.streams, r.name)
		fmt.Fprintf(w, "%s\t%.1f\t%.0f\t%.0f\t%.1f\n", r.name, float64(held-before)/1024/float64(c.streams), megabytes(before), megabytes(held), perEvent)
	}
}

// hold keeps all streams through a proxy open for a while. It returns the proxy's memory at the end in
// bytes, and the CPU time per event in microseconds. Then each stream is read to its end. A heap
// profile of skyserve is written to the file if one is given.
func (c *comparison) hold(p contender, file string) (rss int64, perEvent float64) {
	c.Helper()
	client := startHelper(c.ctx, c.T, "client", clientJob{Address: p.address, Connections: c.streams, Stream: true, Hold: true})
	defer client.end(c.T)
	c.waitForLine(client, "held")
	cpu, began := p.cpu(c.T), time.Now()
	c.pause(heldLength)
	events := float64(c.streams) * time.Since(began).Seconds() / heldGap.Seconds()
	rss, perEvent = p.rss(c.T), micros(p.cpu(c.T)-cpu)/events
	if *profilesFlag != "" && p.admin != "" {
		if err := p.saveProfile("heap?debug=1", 0, file); err != nil { // as text, which contains the stacks too
			c.Errorf("profiling %s: %v", p.name, err)
		}
	}
	client.writeLine(c.T, nil)
	c.engine.writeLine(c.T, nil)
	var result clientResult
	client.readLine(c.T, &result)
	c.check(p, result)
	if result.Held != c.streams {
		c.Fatalf("holding streams through %s: want %d, got %d", p.name, c.streams, result.Held)
	}
	return rss, perEvent
}

// table starts a table whose first column names the proxies.
func (c *comparison) table(title string, columns ...string) *tabwriter.Writer {
	fmt.Fprintf(&c.out, "\n%s\n", title)
	w := tabwriter.NewWriter(&c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\t%s\n", strings.Join(columns, "\t"))
	return w
}

// report prints the table of a load.
func (c *comparison) report(l load, rounds [][]round) {
	work, unit := "req/s", "request"
	wait := "ms"
	if l.stream {
		work, unit, wait = "events/s", "event", "ms to first event"
	}
	title := fmt.Sprintf("%s, %d connections: %d rounds of %s, median (min..max)", l.name, l.connections, *roundsFlag, *lengthFlag)
	w := c.table(title, work, "p50 "+wait, "p99 "+wait, "CPU us/"+unit, "without idle", "CPU / nginx's", "RSS MB", "events/read")
	var first float64
	for i, rs := range rounds {
		figure := func(of func(round) float64) spread {
			var all []float64
			for _, r := range rs {
				all = append(all, of(r))
			}
			return spreadOf(all)
		}
		cpu := figure(func(r round) float64 { return micros(r.CPU) / r.work() })
		if i == 0 {
			first = cpu.median
		}
		perRead := "-"
		if l.stream {
			perRead = figure(func(r round) float64 { return r.work() / float64(r.Reads) }).only(2)
		}
		busy := figure(func(r round) float64 { return (micros(r.CPU) - c.idle[i]*micros(r.Took)) / r.work() })
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t%.0f\t%s\n", rivals()[i].name,
			figure(func(r round) float64 { return r.work() / r.Took.Seconds() }).write(0),
			figure(func(r round) float64 { return micros(r.Median) / 1000 }).write(2),
			figure(func(r round) float64 { return micros(r.P99) / 1000 }).write(2),
			cpu.write(1), busy.only(1), cpu.median/first, figure(func(r round) float64 { return megabytes(r.RSS) }).median, perRead)
	}
	_ = w.Flush()
}

// work returns the work done in a round: events of streams, including [DONE], or requests.
func (r round) work() float64 {
	if r.Events > 0 {
		return float64(r.Events + r.Requests)
	}
	return float64(r.Requests)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func megabytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }
