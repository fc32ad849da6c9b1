//go:build compare && linux

package proxy_test

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"
)

const (
	burstSize   = 20                     // requests that start at the same time
	burstEvery  = 100 * time.Millisecond // 200 requests per second
	burstDelay  = 5 * time.Millisecond   // of the engine, which starts all requests at once
	burstLength = 10 * time.Second       // of a round: 2,000 requests
)

// TestCompareBursts measures the latency that the balancer adds to bursts of requests: the same
// client sends the same bursts to an engine directly, and through balancers with one engine and
// with three. `make compare-bursts` runs it. It checks no times, only that every response was
// correct.
func TestCompareBursts(t *testing.T) {
	if _, err := os.Stat(*binaryFlag); err != nil {
		t.Fatalf("comparing bursts: %v\nhint: make build, or -binary FILE", err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c := &comparison{T: t, ctx: ctx}
	c.engine = startHelper(ctx, t, "engine", engineJob{Replicas: 3, Events: 8, Gap: burstDelay, Delay: burstDelay})
	c.engine.readLine(t, &c.engines)

	one := startSkyserve("cost")(ctx, t, c.engines[:1], 0)
	three := startSkyserve("cost")(ctx, t, c.engines, 0)
	paths := []struct {
		name string
		contender
	}{
		{"direct", contender{group: c.engine, address: c.engines[0]}},
		{"balancer, one engine", one},
		{"balancer, three engines", three},
	}
	fmt.Printf("\n%s\n", machine())
	for _, stream := range []bool{false, true} {
		rounds := make([][]clientResult, len(paths))
		for i := range *roundsFlag + 1 { // the first round warms up
			for j, p := range paths {
				r := c.runBursts(p.contender, stream, uint16(i)<<4|uint16(j))
				if i > 0 {
					rounds[j] = append(rounds[j], r)
				}
			}
		}
		fmt.Printf("\n%s in bursts of %d every %s: %d rounds of %s, median (min..max)\n", map[bool]string{false: "whole responses", true: "streams"}[stream], burstSize, burstEvery, *roundsFlag, burstLength)
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "\tp50 ms\tp99 ms\trequests")
		for j, p := range paths {
			var p50, p99, requests []float64
			for _, r := range rounds[j] {
				p50, p99 = append(p50, micros(r.Median)/1000), append(p99, micros(r.P99)/1000)
				requests = append(requests, float64(r.Requests))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.name, spreadOf(p50).write(2), spreadOf(p99).write(2), spreadOf(requests).only(0))
		}
		_ = w.Flush()
	}
}

// runBursts sends one round of bursts to an address.
func (c *comparison) runBursts(p contender, stream bool, seed uint16) clientResult {
	c.Helper()
	client := startHelper(c.ctx, c.T, "client", clientJob{
		Address: p.address, Connections: burstSize, Length: burstLength, Burst: burstEvery, Stream: stream, Events: 8, Seed: seed,
	})
	defer client.end(c.T)
	c.waitForLine(client, "ready")
	client.writeLine(c.T, nil)
	var r clientResult
	client.readLine(c.T, &r)
	if len(r.Failures) > 0 || r.Requests == 0 {
		c.Fatalf("sending bursts to %s: %d requests were answered, and: %s", p.name, r.Requests, strings.Join(r.Failures, "\n"))
	}
	return r
}
